//go:build cgo

package onnx

import (
	"bytes"
	"debug/elf"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/libml/framework"
)

// This machine has the ONNX Runtime for CPUs.
func TestMissingProvider(t *testing.T) {
	f := New()
	err := f.Init(framework.Environment{
		Card: shipped(t, "fashion"), Threads: 1, Device: "GPU-1", Stream: func(int) uintptr { return 0 },
	})
	if !errors.Is(err, errNoProvider) {
		t.Fatalf("got %v", err)
	}
	for _, part := range []string{bridgeFile, LibraryVariable, "CUDA 13"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q does not say %q", err, part)
		}
	}
	if err := f.Deinit(); err != nil {
		t.Error(err)
	}
}

func TestMissingLibrary(t *testing.T) {
	dir := t.TempDir()
	library, err := Library()
	must.OK(t, err)
	// A provider that was linked with what it is here: any shared library will do.
	for _, name := range []string{bridgeFile, providerFile} {
		must.OK(t, os.Symlink(library, filepath.Join(dir, name)))
	}
	mine := filepath.Join(dir, libraryFile)
	var asked []string
	if err := preloadAll(mine, func(name string) error {
		asked = append(asked, name)
		if strings.Contains(name, "ops") {
			return errors.New("cannot open shared object file")
		}
		return nil
	}); err != nil {
		t.Errorf("a part that may be missing: %v", err)
	}
	if !slices.Contains(asked, "libcudnn.so.9") {
		t.Errorf("asked for %v", asked)
	}
	err = preloadAll(mine, func(name string) error {
		if name == "libcudnn.so.9" {
			return errors.New("cannot open shared object file")
		}
		return nil
	})
	if !errors.Is(err, errNoProvider) || !strings.Contains(err.Error(), "libcudnn.so.9") || !strings.Contains(err.Error(), "install cuDNN 9") {
		t.Errorf("got %v", err)
	}
	if err := providerError("libcuda.so.1", "p", errors.New("x")); !strings.Contains(err.Error(), "NVIDIA driver") {
		t.Errorf("got %v", err)
	}
}

// A library that was hidden is found, and has no functions. Another one stays as it was.
func TestHide(t *testing.T) {
	const library, other = "libpenstock-hidden.so.13", "libpenstock-other.so.13"
	if err := preload(library); err == nil {
		t.Fatalf("%s is on this machine", library)
	}
	must.OK(t, hide(library, preload))
	if err := preload(library); err != nil {
		t.Errorf("hidden, but not found: %v", err)
	}
	if err := preload(other); err == nil {
		t.Errorf("%s was found", other)
	}

	f, err := elf.NewFile(bytes.NewReader(emptyLibrary(library)))
	must.OK(t, err)
	if symbols, err := f.DynamicSymbols(); len(symbols) > 0 {
		t.Errorf("symbols %v, %v; want none", symbols, err)
	}
	refused := errors.New("refused")
	if err := hide(library, func(string) error { return refused }); !errors.Is(err, refused) || !strings.Contains(err.Error(), library) {
		t.Errorf("got %v", err)
	}
}
