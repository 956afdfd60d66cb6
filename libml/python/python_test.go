package python

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/testing/must"
)

// TestModule runs the module's tests in each python3. If PyTorch is missing, its tests are skipped
// and report that.
func TestModule(t *testing.T) {
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("python3 is missing: the module penstock_model is not tested here")
	}
	here, err := os.Getwd()
	must.OK(t, err)
	tried := map[string]bool{}
	for _, name := range []string{os.Getenv(InterpreterVariable), "python3", "/usr/bin/python3"} {
		path, err := exec.LookPath(name)
		if err != nil || tried[path] {
			continue
		}
		tried[path] = true
		t.Run(path, func(t *testing.T) {
			c := exec.CommandContext(t.Context(), path, "-m", "unittest", "discover", "-v", "-s", "tests")
			c.Env = append(os.Environ(), "PYTHONPATH="+here, "PYTHONDONTWRITEBYTECODE=1")
			out, err := c.CombinedOutput()
			if err != nil || !strings.Contains(string(out), "test_offsets") {
				t.Errorf("%v\n%s", err, out)
			}
			for line := range strings.Lines(string(out)) {
				if strings.Contains(line, "skipped") {
					t.Log(strings.TrimSpace(line))
				}
			}
		})
	}
}

func TestVariables(t *testing.T) {
	dir := t.TempDir()
	library := filepath.Join(dir, "libpenstock.so")
	must.OK(t, os.WriteFile(library, nil, 0o600))
	must.OK(t, os.Mkdir(filepath.Join(dir, "penstock_model"), 0o700))
	must.OK(t, os.WriteFile(filepath.Join(dir, "penstock_model", "__init__.py"), nil, 0o600))
	for _, c := range []struct {
		variable, good, bad string
		find                func() (string, error)
	}{
		{libraryVariable, library, dir, findLibrary},
		{folderVariable, dir, filepath.Join(dir, "penstock_model"), moduleFolder},
		{InterpreterVariable, "/bin/sh", library, findInterpreter},
	} {
		t.Setenv(c.variable, c.good)
		if got, err := c.find(); err != nil || got != c.good {
			t.Errorf("%s=%s: found %q, %v", c.variable, c.good, got, err)
		}
		t.Setenv(c.variable, c.bad)
		if got, err := c.find(); !errors.Is(err, errMissing) || !strings.Contains(err.Error(), c.variable) || !strings.Contains(err.Error(), c.bad) {
			t.Errorf("%s=%s: found %q, %v; want a refusal that names both", c.variable, c.bad, got, err)
		}
	}
	// The error names all missing files.
	t.Setenv(libraryVariable, dir)
	_, err := Command("penstock_model.pytorch")
	for _, variable := range []string{libraryVariable, folderVariable, InterpreterVariable} {
		if err == nil || !strings.Contains(err.Error(), variable) {
			t.Errorf("%v; want %s in it", err, variable)
		}
	}
}

func TestChildren(t *testing.T) {
	here, err := os.Getwd()
	must.OK(t, err)
	t.Setenv(folderVariable, here)
	t.Setenv("PYTHONPATH", "/somewhere")
	must.OK(t, SetEnvironment())
	if got, want := os.Getenv("PYTHONPATH"), here+":/somewhere"; got != want {
		t.Errorf("PYTHONPATH is %q, want %q", got, want)
	}
}

// interpreterIn writes a python3 that prints these words for any program. It fails if there are
// none.
func interpreterIn(t *testing.T, dir, says string) string {
	t.Helper()
	script := "#!/bin/sh\nexit 1\n"
	if says != "" {
		script = "#!/bin/sh\necho " + says + "\n"
	}
	path := filepath.Join(dir, "python3")
	must.OK(t, os.WriteFile(path, []byte(script), 0o700))
	return path
}

func TestPyTorchElsewhere(t *testing.T) {
	without, with, linked := t.TempDir(), t.TempDir(), filepath.Join(t.TempDir(), "linked")
	asked, other := interpreterIn(t, without, ""), interpreterIn(t, with, "2.11.0, CUDA 13.0")
	must.OK(t, os.Symlink(with, linked))
	debian := interpreterIn(t, t.TempDir(), "1.13.1, no CUDA")
	for name, c := range map[string]struct{ variable, path, want string }{
		"later in PATH":                 {"", without + ":" + with, other},
		"in PATH beside the variable's": {asked, with, other},
		"where the variable's is none":  {"/nowhere/python3", without + ":" + with, other},
		"not the one that was asked":    {other, linked, debian},
		"out of PATH":                   {"", without, debian},
		"nowhere":                       {debian, without, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(InterpreterVariable, c.variable)
			t.Setenv("PATH", c.path)
			says := map[string]string{other: "2.11.0, CUDA 13.0", debian: "1.13.1, no CUDA"}[c.want]
			if got, version := pyTorchElsewhere(t.Context(), debian); got != c.want || version != says {
				t.Errorf("found %q, %q; want %q, %q", got, version, c.want, says)
			}
		})
	}
}
