package main

import (
	"strings"
	"testing"
)

// TestRunEmptyFlags gives flags of `penstock run` the value of a variable that is not set.
func TestRunEmptyFlags(t *testing.T) {
	for flag, want := range map[string]string{
		"--memory": `--memory is "", want a size of 1MiB or more, like 40GiB`,
		"--name":   `name "" has 0 bytes, want 1 to`,
	} {
		cmd := root()
		cmd.SetArgs([]string{"run", "--runtime-dir", t.TempDir(), flag, "", "--", "true"})
		if err := cmd.Execute(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q in it", flag, err, want)
		}
	}
}
