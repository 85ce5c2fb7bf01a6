package breakerconfig_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker/breakerconfig"
)

func fences(t *testing.T, file, language string) (blocks []string) {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	for _, block := range regexp.MustCompile("(?s)```"+language+"\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
		blocks = append(blocks, block[1])
	}
	require.NotEmpty(t, blocks, file)
	return blocks
}

func TestTheFilesInTheDocsAreGood(t *testing.T) {
	for _, file := range []string{"../README.md", "../docs/configuration.md"} {
		for _, block := range fences(t, file, "yaml") {
			if !strings.Contains(block, "circuits:") {
				continue // it is something else's
			}
			s, err := breakerconfig.Parse("breaker.yaml", []byte(block), nil)
			require.NoError(t, err, file)
			assert.Equal(t, 3, s.Config.Policies["stripe"].ConsecutiveFailures)
			_, ok := s.Config.PolicyFor("tenant-7/webhooks")
			assert.True(t, ok)
		}
	}
}

// What the docs show of code and of errors is in the examples, which run.
func TestWhatTheDocsShowIsInTheExamples(t *testing.T) {
	examples, err := os.ReadFile("example_test.go")
	require.NoError(t, err)
	squeeze := func(s string) string { return strings.Join(strings.Fields(strings.ReplaceAll(s, "//", " ")), " ") }
	for file, language := range map[string]string{"../README.md": "go breakerconfig", "../docs/configuration.md": "console"} {
		for _, block := range fences(t, file, language) {
			assert.Contains(t, squeeze(string(examples)), squeeze(block))
		}
	}
}
