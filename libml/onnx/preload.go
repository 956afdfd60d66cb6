//go:build cgo

package onnx

import (
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// errNoProvider is returned by Init on a GPU if ONNX Runtime's CUDA provider, or a library
// that it needs, is missing.
var errNoProvider = errors.New("ONNX Runtime cannot run on a GPU")

// The files of ONNX Runtime's CUDA provider. ONNX Runtime looks for them in the folder of
// its own library.
const (
	providerFile = "libonnxruntime_providers_cuda.so"
	bridgeFile   = "libonnxruntime_providers_shared.so"
)

// cudnnParts are the libraries of cuDNN. Without a preload, the provider opens cuDNN at its
// first use, and cuDNN opens its parts at theirs. Optional parts may be missing: another
// version has other parts.
var cudnnParts = []struct {
	name     string
	optional bool
}{
	{"libcudnn.so.9", false},
	{"libcudnn_graph.so.9", true},
	{"libcudnn_ops.so.9", true},
	{"libcudnn_cnn.so.9", true},
	{"libcudnn_heuristic.so.9", true},
	{"libcudnn_engines_precompiled.so.9", true},
	{"libcudnn_engines_runtime_compiled.so.9", true},
}

// provider returns the path of the CUDA provider of an ONNX Runtime, and the libraries that
// it was linked with. The error names the missing file and the remedy.
func provider(library string) (path string, needs []string, err error) {
	for _, name := range []string{bridgeFile, providerFile} {
		path = filepath.Join(filepath.Dir(library), name)
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			return "", nil, fmt.Errorf("%w: %s is missing; the ONNX Runtime of `make build` is for CPUs, so unpack one for CUDA 13 and set %s to its libonnxruntime.so",
				errNoProvider, path, LibraryVariable)
		} else if err != nil {
			return "", nil, fmt.Errorf("%w: %w", errNoProvider, err)
		}
	}
	f, err := elf.Open(path)
	if err != nil {
		return "", nil, fmt.Errorf("%w: read %s: %w", errNoProvider, path, err)
	}
	defer f.Close()
	all, err := f.ImportedLibraries()
	if err != nil {
		return "", nil, fmt.Errorf("%w: read %s: %w", errNoProvider, path, err)
	}
	for _, name := range all {
		if strings.HasPrefix(name, "libcu") || strings.HasPrefix(name, "libnv") {
			needs = append(needs, name)
		}
	}
	return path, needs, nil
}

// preloadAll loads the libraries that a model on a GPU needs, so that a woken shadow does
// not wait for them. It takes 60 ms if the files are in memory, and 0.4 s if they are read
// from a disk. It calls nothing of CUDA: loading a library does not touch a device.
func preloadAll(library string, load func(string) error) error {
	path, needs, err := provider(library)
	if err != nil {
		return err
	}
	for _, name := range needs {
		if err := load(name); err != nil {
			return providerError(name, path, err)
		}
	}
	for _, part := range cudnnParts {
		if err := load(part.name); err != nil && !part.optional {
			return providerError(part.name, path, err)
		}
	}
	return nil
}

func providerError(name, provider string, err error) error {
	hint := "add its folder to LD_LIBRARY_PATH, or run ldconfig"
	switch {
	case strings.HasPrefix(name, "libcuda.so"):
		hint = "install the NVIDIA driver, which has it"
	case strings.HasPrefix(name, "libcudnn"):
		hint = "install cuDNN 9, which has it; " + hint
	default:
		hint = "install the CUDA toolkit of that version, which has it; " + hint
	}
	return fmt.Errorf("%w: %s, which %s needs, cannot be loaded: %w; %s", errNoProvider, name, provider, err, hint)
}
