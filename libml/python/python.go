// Package python finds the files that models in Python need: an interpreter, the module penstock_model
// (the folder next to this file), and libpenstock.so.
package python

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// Environment variables that replace the search.
const (
	// InterpreterVariable has the python3 that runs models of framework pytorch: a path, or
	// a name to find in PATH.
	InterpreterVariable = "PENSTOCK_PYTHON"
	// folderVariable has the folder that contains the module penstock_model.
	folderVariable = "PENSTOCK_PYTHONPATH"
	// libraryVariable has the path of libpenstock.so; the module reads it, too.
	libraryVariable = "PENSTOCK_LIBRARY"
)

// errMissing is wrapped if a file or an interpreter is not found.
var errMissing = errors.New("not found")

// findInterpreter returns the python3 that runs models.
func findInterpreter() (string, error) {
	name, from := os.Getenv(InterpreterVariable), InterpreterVariable+" is "
	if name == "" {
		name, from = "python3", ""
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("python: %s%s: %w; install Debian's python3, or name one in %s", from, name, errMissing, InterpreterVariable)
	}
	return path, nil
}

// moduleFolder returns the folder that contains the module penstock_model. It searches
//
//  1. PENSTOCK_PYTHONPATH and, if that is set, no other place
//  2. lib/python next to the executable
//  3. ../lib/python, for an installation under a prefix
//  4. ../libml/python, for a clone
func moduleFolder() (string, error) {
	return find("module penstock_model", folderVariable, func(dir string) []string {
		return []string{filepath.Join(dir, "lib", "python"), filepath.Join(dir, "..", "lib", "python"), filepath.Join(dir, "..", "libml", "python")}
	}, filepath.Join("penstock_model", "__init__.py"), "a clone has it in libml/python")
}

// findLibrary returns the path of libpenstock.so. It searches
//
//  1. PENSTOCK_LIBRARY and, if that is set, no other place
//  2. lib next to the executable, the place of `make build`
//  3. ../lib, for an installation under a prefix
func findLibrary() (string, error) {
	return find("libpenstock.so", libraryVariable, func(dir string) []string {
		return []string{filepath.Join(dir, "lib", "libpenstock.so"), filepath.Join(dir, "..", "lib", "libpenstock.so")}
	}, "", "`make build` builds it")
}

// find returns the first place that is, or contains, the file. origin names the source of a place
// in errors.
func find(what, variable string, places func(dir string) []string, file, origin string) (string, error) {
	has := func(place string) bool {
		info, err := os.Stat(filepath.Join(place, file))
		return err == nil && info.Mode().IsRegular()
	}
	if place := os.Getenv(variable); place != "" {
		if !has(place) {
			return "", fmt.Errorf("%s: %w: %s is %s", what, errMissing, variable, place)
		}
		return filepath.Abs(place)
	}
	exe, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("%s: %w", what, err)
	}
	if real, err := filepath.EvalSymlinks(exe); err == nil {
		exe = real
	}
	var looked []string
	for _, place := range places(filepath.Dir(exe)) {
		place = filepath.Clean(place)
		if has(place) {
			return place, nil
		}
		looked = append(looked, place)
	}
	return "", fmt.Errorf("%s: %w: not at %s; %s, or set %s to its place", what, errMissing, strings.Join(looked, ", "), origin, variable)
}

// SetEnvironment sets the variables with which children of this process find module and library, if
// these exist. A card's command in Python can then import penstock_model.
func SetEnvironment() error {
	if folder, err := moduleFolder(); err == nil {
		if err := os.Setenv("PYTHONPATH", joined(folder, os.Getenv("PYTHONPATH"))); err != nil {
			return fmt.Errorf("set PYTHONPATH: %w", err)
		}
	}
	if library, err := findLibrary(); err == nil {
		if err := os.Setenv(libraryVariable, library); err != nil {
			return fmt.Errorf("set %s: %w", libraryVariable, err)
		}
	}
	return nil
}

func joined(first, rest string) string {
	if rest == "" {
		return first
	}
	return first + string(filepath.ListSeparator) + rest
}

// Command returns a command that runs a module of the folder. The error names all missing files.
func Command(module string) ([]string, error) {
	interpreter, err := findInterpreter()
	_, folderErr := moduleFolder()
	_, libraryErr := findLibrary()
	if err := errors.Join(err, folderErr, libraryErr); err != nil {
		return nil, fmt.Errorf("run %s: %w", module, err)
	}
	return []string{interpreter, "-m", module}, nil
}

// PyTorch returns the version of the interpreter's PyTorch: "2.11.0+cu130, CUDA 13.0", or "1.13.1,
// no CUDA". The import takes seconds. It touches no GPU.
func PyTorch(ctx context.Context) (string, error) {
	interpreter, err := findInterpreter()
	if err != nil {
		return "", err
	}
	return pyTorchOf(ctx, interpreter)
}

// Debian is the python3 of Debian's packages, such as python3-torch.
const Debian = "/usr/bin/python3"

// PyTorchElsewhere searches for PyTorch in every other python3 of PATH, then in Debian's. It
// returns the first interpreter that has it, and the version. Both are empty if none has it.
func PyTorchElsewhere(ctx context.Context) (interpreter, version string) {
	return pyTorchElsewhere(ctx, Debian)
}

func pyTorchElsewhere(ctx context.Context, last string) (interpreter, version string) {
	var places []string
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		places = append(places, filepath.Join(dir, "python3"))
	}
	tried := map[string]bool{}
	if asked, err := findInterpreter(); err == nil {
		tried[resolve(asked)] = true
	}
	for _, place := range append(places, last) {
		path, err := exec.LookPath(place)
		if err != nil || !filepath.IsAbs(path) || tried[resolve(path)] {
			continue
		}
		tried[resolve(path)] = true
		if version, err := pyTorchOf(ctx, path); err == nil {
			return path, version
		}
	}
	return "", ""
}

// resolve returns a path whose folder is not a link, such as /usr/bin/python3 for /bin/python3. The
// file may be a link: a venv's link finds other packages than its target.
func resolve(path string) string {
	if dir, err := filepath.EvalSymlinks(filepath.Dir(path)); err == nil {
		return filepath.Join(dir, filepath.Base(path))
	}
	return path
}

func pyTorchOf(ctx context.Context, interpreter string) (string, error) {
	const patience = 60 * time.Second
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	const ask = `import torch; print(torch.__version__, "CUDA " + torch.version.cuda if torch.version.cuda else "no CUDA", sep=", ")`
	cmd := exec.CommandContext(ctx, interpreter, "-c", ask)
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		lines := strings.Split(strings.TrimSpace(said.String()), "\n")
		return "", fmt.Errorf("%s: import torch: %w", interpreter, errors.New(lastLine(lines, err)))
	}
	return strings.TrimSpace(string(out)), nil
}

// lastLine returns the last line of a traceback, which is the error.
func lastLine(lines []string, err error) string {
	if last := lines[len(lines)-1]; last != "" {
		return last
	}
	return err.Error()
}
