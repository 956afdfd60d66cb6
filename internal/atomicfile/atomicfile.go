// Package atomicfile replaces files.
package atomicfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// Keep is the mode for a file that exists and keeps its mode and its owner.
const Keep fs.FileMode = 0

// Replace replaces a file: readers see the old content or the new content, never a part, also after a power failure.
// The folder must be one that only trusted users can write. Several processes may replace the same file. If check is not
// nil, Replace calls it right before, and leaves the file as it is after an error. A process that is killed
// meanwhile leaves a temporary file.
func Replace(path string, data []byte, mode fs.FileMode, check func() error) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("replace %s: %w", path, err)
		}
	}()
	dir, name := filepath.Split(path)
	folder, err := os.Open(filepath.Clean(dir))
	if err != nil {
		return err
	}
	defer folder.Close()
	file, err := os.CreateTemp(folder.Name(), "."+name+".*.new")
	if err != nil {
		return err
	}
	defer os.Remove(file.Name()) // already gone on success
	defer file.Close()
	if mode == Keep {
		if mode, err = takeOwner(file, path); err != nil {
			return err
		}
	}
	_, err = file.Write(data)
	if err = errors.Join(err, file.Chmod(mode), file.Sync()); err != nil {
		return err
	}
	if check != nil {
		if err := check(); err != nil {
			return err
		}
	}
	return errors.Join(os.Rename(file.Name(), path), folder.Sync())
}

// takeOwner gives a file the owner of another, and returns the other's mode.
func takeOwner(file *os.File, path string) (fs.FileMode, error) {
	info, err := os.Stat(path)
	if err != nil {
		return 0, fmt.Errorf("read mode and owner: %w", err)
	}
	if owner, ok := info.Sys().(*syscall.Stat_t); ok && (int(owner.Uid) != os.Geteuid() || int(owner.Gid) != os.Getegid()) {
		if err := file.Chown(int(owner.Uid), int(owner.Gid)); err != nil {
			return 0, fmt.Errorf("keep the owner: %w", err)
		}
	}
	return info.Mode().Perm(), nil
}
