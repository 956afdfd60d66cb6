package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock/penstock/orchestrator/guest"
)

// TestRunEmptyFlags gives flags of `penstock run` the value of a variable that is not set.
func TestRunEmptyFlags(t *testing.T) {
	for flag, want := range map[string]string{
		"--memory": `--memory is "", want a size of 1MiB or more, like 40GiB`,
		"--name":   `--name is "", want letters, digits, '-' and '_', at most 128`,
	} {
		cmd := root()
		cmd.SetArgs([]string{"run", "--runtime-dir", t.TempDir(), flag, "", "--", "true"})
		if err := cmd.Execute(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q in it", flag, err, want)
		}
	}
}

// TestRunNoProgram runs commands that are no programs.
func TestRunNoProgram(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		name, command string
		want          exitStatus
	}{
		{"folder", dir, guest.StatusNoExec},
		{"no right", file, guest.StatusNoExec},
		{"below a file", filepath.Join(file, "x"), guest.StatusNoExec},
		{"missing", filepath.Join(dir, "x"), guest.StatusNotFound},
		{"not in PATH", "no-such-program", guest.StatusNotFound},
		{"empty", "", guest.StatusNotFound},
	} {
		t.Run(row.name, func(t *testing.T) {
			cmd := root()
			cmd.SetArgs([]string{"run", "--runtime-dir", dir, "--", row.command})
			if err := cmd.Execute(); err != row.want {
				t.Errorf("%v, want status %d", err, row.want)
			}
		})
	}
}
