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

// LibraryVariable names the environment variable that has the path of libonnxruntime.so. If it
// is set, Library does not search.
const LibraryVariable = "PENSTOCK_ONNXRUNTIME"

// errNoLibrary is returned by Library if it does not find ONNX Runtime.
var errNoLibrary = errors.New("ONNX Runtime (libonnxruntime.so) not found")

const libraryFile = "libonnxruntime.so"

// carrier is the module with ONNX Runtime 1.27.0, in the version of go.mod.
const carrier = "github.com/k2-fsa/sherpa-onnx-go-linux@v1.13.4"

// Library returns the path of ONNX Runtime's shared library. It searches
//
//  1. the path in PENSTOCK_ONNXRUNTIME; if that is set, nothing else
//  2. lib in the executable's folder: `make build` puts it there
//  3. ../lib, for an installation under a prefix
//  4. the module cache, for `go test` and `go run`
//
// The error names the paths that were searched.
func Library() (string, error) {
	if path := os.Getenv(LibraryVariable); path != "" {
		if err := checkRegular(path); err != nil {
			return "", fmt.Errorf("%w: %s is %s: %w", errNoLibrary, LibraryVariable, path, err)
		}
		return path, nil
	}
	places := candidates()
	for _, path := range places {
		if checkRegular(path) == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("%w: not at %s; run `make build`, which puts it next to the binary, or set %s",
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
	// The carrier has a folder per architecture.
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

// moduleCache returns the go command's module cache, or "" if it is unknown. It ignores settings
// of `go env -w`.
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

// checkRegular returns an error if a path is not a regular file.
func checkRegular(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		var p *fs.PathError
		if errors.As(err, &p) {
			err = p.Err
		}
		return err
	}
	if !info.Mode().IsRegular() {
		return errors.New("not a regular file")
	}
	return nil
}
