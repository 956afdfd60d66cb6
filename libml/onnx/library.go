package onnx

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
)

// LibraryVariable names the environment variable that overrides the search for
// ONNX Runtime: the path of libonnxruntime.so.
const LibraryVariable = "PENSTOCK_ONNXRUNTIME"

// errNoLibrary is returned by Library when ONNX Runtime is nowhere to be found.
var errNoLibrary = errors.New("ONNX Runtime (libonnxruntime.so) not found")

const libraryFile = "libonnxruntime.so"

// carrier is the module that carries ONNX Runtime 1.27.0, as go.mod pins it.
const carrier = "github.com/k2-fsa/sherpa-onnx-go-linux@v1.13.4"

// Library returns the path of ONNX Runtime's shared library. It is looked for
//
//  1. where PENSTOCK_ONNXRUNTIME says; when that is set, nowhere else
//  2. in lib beside the executable, where `make build` puts it
//  3. in ../lib, as installed under a prefix
//  4. in the module cache, for `go test` and `go run`
//
// The error names the places that were looked at.
func Library() (string, error) {
	if path := os.Getenv(LibraryVariable); path != "" {
		if err := usable(path); err != nil {
			return "", fmt.Errorf("%w: %s says %s: %w", errNoLibrary, LibraryVariable, path, err)
		}
		return path, nil
	}
	places := candidates()
	for _, path := range places {
		if usable(path) == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("%w: not at %s; `make build` puts it beside the binary, or set %s",
		errNoLibrary, strings.Join(places, ", "), LibraryVariable)
}

func candidates() []string {
	var places []string
	if exe, err := os.Executable(); err == nil {
		if real, err := filepath.EvalSymlinks(exe); err == nil {
			exe = real
		}
		dir := filepath.Dir(exe)
		places = append(places, filepath.Join(dir, "lib", libraryFile), filepath.Join(filepath.Dir(dir), "lib", libraryFile))
	}
	// The folder in the carrier for each architecture that it has.
	arch, ok := map[string]string{
		"amd64": "x86_64-unknown-linux-gnu",
		"arm64": "aarch64-unknown-linux-gnu",
		"arm":   "arm-unknown-linux-gnueabihf",
	}[runtime.GOARCH]
	if cache := moduleCache(); ok && cache != "" {
		places = append(places, filepath.Join(cache, filepath.FromSlash(carrier), "lib", arch, libraryFile))
	}
	return places
}

// moduleCache is where the go command keeps modules, by its own rules but for
// settings of `go env -w`; empty where nothing says.
func moduleCache() string {
	if dir := os.Getenv("GOMODCACHE"); dir != "" {
		return dir
	}
	if list := filepath.SplitList(os.Getenv("GOPATH")); len(list) > 0 {
		return filepath.Join(list[0], "pkg", "mod")
	}
	if home, err := os.UserHomeDir(); err == nil {
		return filepath.Join(home, "go", "pkg", "mod")
	}
	return ""
}

// usable reports why a path is no library.
func usable(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		var p *fs.PathError
		if errors.As(err, &p) {
			err = p.Err
		}
		return err
	}
	if !info.Mode().IsRegular() {
		return errors.New("no regular file")
	}
	return nil
}
