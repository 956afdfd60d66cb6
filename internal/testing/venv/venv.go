// Package venv makes Python environments for tests.
package venv

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/testing/must"
)

// python is Debian's, which .ci/run installs.
const python = "/usr/bin/python3"

// Make makes an environment with the packages of a list, and nothing else that pip would add. It returns the environment's folder,
// which all users may read and which goes with the test, and that of the packages. Options are those of venv.
// It skips the test if the registry does not answer.
func Make(t *testing.T, list string, options ...string) (dir, packages string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "penstock-venv-")
	must.OK(t, err)
	t.Cleanup(func() { must.OK(t, os.RemoveAll(dir)) })
	must.OK(t, os.Chmod(dir, 0o755))

	make := append([]string{"-m", "venv", dir}, options...)
	if out, err := exec.CommandContext(t.Context(), python, make...).CombinedOutput(); err != nil {
		t.Fatalf("make a Python environment: %v\n%s", err, out)
	}
	install := exec.CommandContext(t.Context(), filepath.Join(dir, "bin/pip"), "install", "--quiet", "--no-deps", "--no-compile", "-r", list)
	if out, err := install.CombinedOutput(); err != nil {
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		t.Skipf("not on this machine: pip install -r %s: %s", list, lines[len(lines)-1])
	}

	found, err := filepath.Glob(filepath.Join(dir, "lib/python3*/site-packages"))
	if err != nil || len(found) != 1 {
		t.Fatalf("folders of packages: %q, %v", found, err)
	}
	return dir, found[0]
}
