package admin

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The document has the routes that there are, and their methods. That answers
// are as it says is tested in the module integration.
func TestTheDocumentHasTheRoutes(t *testing.T) {
	text, err := os.ReadFile("../docs/openapi.yaml")
	require.NoError(t, err)
	_, paths, found := strings.Cut(string(text), "\npaths:\n")
	require.True(t, found)
	paths, _, found = strings.Cut(paths, "\ncomponents:\n")
	require.True(t, found)

	var documented []string
	path := ""
	for _, line := range regexp.MustCompile(`(?m)^(?:  (/\S+)|    (get|post|put|patch|delete|head|options)):`).FindAllStringSubmatch(paths, -1) {
		if line[1] != "" {
			path = line[1]
		} else {
			documented = append(documented, strings.ToUpper(line[2])+" "+path)
		}
	}
	var served []string
	for path, methods := range endpoints {
		for method := range methods {
			if path != routePage && path != routeAsset {
				served = append(served, method+" "+path)
			}
		}
	}
	slices.Sort(documented)
	slices.Sort(served)
	assert.Equal(t, served, documented)
}
