//go:build slim

package zoo

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
)

// folderVariable names the environment variable with the folder of the shipped
// models' files, for a build with the tag slim.
const folderVariable = "PENSTOCK_ZOO"

// errNoFolder is the error of every file of the zoo if the folder was not found.
var errNoFolder = errors.New("the shipped models are not in this binary (built with the tag slim), and their folder was not found")

// files returns everything that ships, by path below this folder. It looks for it
// in this order:
//
//  1. in the folder of PENSTOCK_ZOO; if that is set, nowhere else
//  2. in zoo next to the executable
//  3. in models/zoo of a folder above the executable or the working folder: a
//     source tree
var files = sync.OnceValue(func() fs.FS {
	if dir := os.Getenv(folderVariable); dir != "" {
		if !holdsZoo(dir) {
			return missing{fmt.Errorf("%w: %s is %s, which has no face/card.yaml", errNoFolder, folderVariable, dir)}
		}
		return os.DirFS(dir)
	}
	var places []string
	if exe, err := os.Executable(); err == nil {
		if real, err := filepath.EvalSymlinks(exe); err == nil {
			exe = real
		}
		places = append(append(places, filepath.Join(filepath.Dir(exe), "zoo")), above(filepath.Dir(exe))...)
	}
	if dir, err := os.Getwd(); err == nil {
		places = append(places, above(dir)...)
	}
	for _, dir := range places {
		if holdsZoo(dir) {
			return os.DirFS(dir)
		}
	}
	return missing{fmt.Errorf("%w: not at %s; name it in %s", errNoFolder, strings.Join(places, ", "), folderVariable)}
})

// above returns models/zoo in dir and in each folder above it.
func above(dir string) (places []string) {
	for {
		places = append(places, filepath.Join(dir, "models", "zoo"))
		parent := filepath.Dir(dir)
		if parent == dir {
			return places
		}
		dir = parent
	}
}

func holdsZoo(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "face", "card.yaml"))
	return err == nil
}

// missing is a file system that does not exist; opening any file fails with the
// reason.
type missing struct{ why error }

func (m missing) Open(name string) (fs.File, error) {
	return nil, &fs.PathError{Op: "open", Path: name, Err: m.why}
}
