package onnx

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/testing/must"
)

// The version of the library is the one in go.mod.
func TestCarrierVersion(t *testing.T) {
	module, version, _ := strings.Cut(carrier, "@")
	data, err := os.ReadFile("../../go.mod")
	must.OK(t, err)
	if !strings.Contains(string(data), module+" "+version+"\n") {
		t.Errorf("go.mod does not require %s %s", module, version)
	}
}

func TestLibraryVariable(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mine.so")
	must.OK(t, os.WriteFile(path, []byte("x"), 0o644))
	t.Setenv(LibraryVariable, path)
	if got, err := Library(); err != nil || got != path {
		t.Errorf("got %s, %v", got, err)
	}
}

// A wrong variable is an error: no other place is searched.
func TestLibraryVariableWrong(t *testing.T) {
	path := filepath.Join(t.TempDir(), "nowhere.so")
	t.Setenv(LibraryVariable, path)
	_, err := Library()
	if !errors.Is(err, errNoLibrary) || !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), path) {
		t.Errorf("got %v", err)
	}
}

func TestLibraryPlaces(t *testing.T) {
	exe, err := os.Executable()
	must.OK(t, err)
	dir := filepath.Join(filepath.Dir(exe), "lib")
	must.OK(t, os.Mkdir(dir, 0o755))
	t.Cleanup(func() { os.RemoveAll(dir) })
	want := filepath.Join(dir, libraryFile)
	must.OK(t, os.WriteFile(want, []byte("x"), 0o644))
	t.Setenv(LibraryVariable, "")
	if got, err := Library(); err != nil || got != want {
		t.Errorf("got %s, %v; want %s", got, err, want)
	}
}

func TestLibraryMissing(t *testing.T) {
	empty := t.TempDir()
	t.Setenv(LibraryVariable, "")
	t.Setenv("GOMODCACHE", empty)
	_, err := Library()
	if !errors.Is(err, errNoLibrary) {
		t.Fatalf("got %v", err)
	}
	for _, part := range []string{empty, "make build", LibraryVariable} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q does not say %q", err, part)
		}
	}
}
