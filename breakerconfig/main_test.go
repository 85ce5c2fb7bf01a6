package breakerconfig_test

import (
	"os"
	"strings"
	"testing"
)

// The environment of whoever runs the tests says nothing in them: the checks of
// this repository set a variable that begins as ours do.
func TestMain(m *testing.M) {
	for _, variable := range os.Environ() {
		if name, _, _ := strings.Cut(variable, "="); strings.HasPrefix(name, "BREAKER_") {
			_ = os.Unsetenv(name)
		}
	}
	os.Exit(m.Run())
}
