package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestThePageNamesEveryModule(t *testing.T) {
	want, err := generate("../..")
	require.NoError(t, err)
	have, err := os.ReadFile(filepath.Join("../..", page))
	require.NoError(t, err)
	lines := func(text []byte) []string { return slices.Collect(strings.Lines(string(text))) }
	assert.Equal(t, lines(want), lines(have), "%s is out of date: run make licences", page)
}

func TestLicencesAreToldApart(t *testing.T) {
	for text, want := range map[string]string{
		"Apache License\n  Version 2.0, January 2004":                                                  "Apache-2.0",
		"Permission is hereby granted, free\nof charge, to any person, without restriction":            "MIT",
		"Redistribution and use in source and binary forms, with or without":                           "BSD-2-Clause",
		"Redistribution and use in source and binary forms ... to endorse or promote products derived": "BSD-3-Clause",
		"All rights reserved.": "",
	} {
		assert.Equal(t, want, nameOf(text))
	}
}
