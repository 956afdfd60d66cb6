// Package atomicfile replaces files.
package atomicfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Replace replaces a file: readers see the old content or the new content, never a part, also after a power failure.
// The folder must be one that only trusted users can write. Several processes may replace the same file. A process that
// is killed meanwhile leaves a temporary file.
func Replace(path string, data []byte, mode fs.FileMode) (err error) {
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
	_, err = file.Write(data)
	if err = errors.Join(err, file.Chmod(mode), file.Sync()); err != nil {
		return err
	}
	return errors.Join(os.Rename(file.Name(), path), folder.Sync())
}
