package grpcbreaker_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The README's code is a part of the examples, which run.
func TestTheCodeInTheReadmeIsThatOfTheExamples(t *testing.T) {
	readme, err := os.ReadFile("../README.md")
	require.NoError(t, err)
	examples, err := os.ReadFile("example_test.go")
	require.NoError(t, err)
	blocks := regexp.MustCompile("(?s)```go grpcbreaker\n(.*?)```").FindAllStringSubmatch(string(readme), -1)
	require.NotEmpty(t, blocks)
	squeeze := func(s string) string { return strings.Join(strings.Fields(s), " ") }
	for _, block := range blocks {
		assert.Contains(t, squeeze(string(examples)), squeeze(block[1]))
	}
}
