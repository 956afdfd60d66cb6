package evaluate

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/penstock/penstock/internal/lockfile"
)

// errInUse is returned if another call is measuring the same figure, or on the same
// device, into the same folder.
var errInUse = errors.New("another call is measuring")

// claim creates the folder of the reports and locks a figure and a device in it. Calls for
// other figures on other devices may use the same folder at the same time. The caller
// releases both locks with release; they also end with the process, however it ends. claim
// fails before anything is measured if the folder is not writable.
func claim(out, figure, device string) (release func(), err error) {
	if err := os.MkdirAll(out, 0o755); err != nil {
		return nil, fmt.Errorf("make folder of reports: %w", err)
	}
	onDevice, err := lock(out, device)
	if err != nil {
		return nil, err
	}
	ofFigure, err := lock(out, figure)
	if err != nil {
		onDevice()
		return nil, err
	}
	return func() {
		ofFigure()
		onDevice()
	}, nil
}

// lock locks the file of that name in a folder.
func lock(out, what string) (release func(), err error) {
	path := filepath.Join(out, "."+what+".lock")
	for {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
		if err != nil {
			return nil, fmt.Errorf("write into folder of reports: %w", err)
		}
		switch err = lockfile.Try(f); {
		case errors.Is(err, lockfile.ErrLocked):
			holder, _ := os.ReadFile(path)
			f.Close()
			return nil, fmt.Errorf("%w: process %s has %s in %s; wait for it, or take another folder", errInUse, strings.TrimSpace(string(holder)), what, out)
		case err != nil:
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		if !still(f, path) { // its owner has removed it meanwhile
			f.Close()
			continue
		}
		if err = f.Truncate(0); err == nil {
			_, err = fmt.Fprintln(f, os.Getpid()) // for people who read the file
		}
		release := func() {
			os.Remove(path) // first, while no other process can lock it
			f.Close()
		}
		if err != nil {
			release()
			return nil, fmt.Errorf("write into folder of reports: %w", err)
		}
		return release, nil
	}
}

// still reports whether an open file is the one at path.
func still(f *os.File, path string) bool {
	opened, err := f.Stat()
	if err != nil {
		return false
	}
	info, err := os.Stat(path)
	return err == nil && os.SameFile(opened, info)
}
