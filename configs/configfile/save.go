package configfile

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/penstock/penstock/configs"
)

// WithFunction returns the text of a configuration file, and that text with one more
// function.
func WithFunction(file string, f configs.Function) (before, after []byte, err error) {
	if before, err = os.ReadFile(file); err != nil {
		return nil, nil, fmt.Errorf("save function: %w", err)
	}
	if after, err = configs.AppendFunction(file, before, f); err == nil {
		return before, after, nil
	}
	entry, encodeErr := configs.Entry(f)
	if encodeErr != nil {
		return nil, nil, encodeErr
	}
	return nil, nil, fmt.Errorf("save function: %w; put it there by hand:\n%s", err, strings.TrimSuffix(entry, "\n"))
}

// Replace replaces a file's text atomically if it is still equal to before. Mode and owner
// stay. A symbolic link stays a link.
func Replace(path string, before, after []byte) (err error) {
	if path, err = filepath.EvalSymlinks(path); err != nil {
		return fmt.Errorf("find file: %w", err)
	}
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("read mode and owner: %w", err)
	}
	dir := filepath.Dir(path)
	file, err := os.CreateTemp(dir, "."+filepath.Base(path)+".*")
	if err != nil {
		return fmt.Errorf("write next to %s: %w", path, err)
	}
	defer func() {
		if err != nil {
			os.Remove(file.Name())
		}
	}()
	defer file.Close()
	if _, err := file.Write(after); err != nil {
		return fmt.Errorf("write %s: %w", file.Name(), err)
	}
	if owner, ok := info.Sys().(*syscall.Stat_t); ok && (int(owner.Uid) != os.Geteuid() || int(owner.Gid) != os.Getegid()) {
		if err := file.Chown(int(owner.Uid), int(owner.Gid)); err != nil {
			return fmt.Errorf("keep the owner of %s: %w", path, err)
		}
	}
	if err := file.Chmod(info.Mode().Perm()); err != nil {
		return fmt.Errorf("keep the mode of %s: %w", path, err)
	}
	if err := file.Sync(); err != nil {
		return fmt.Errorf("write %s to disk: %w", file.Name(), err)
	}
	if now, err := os.ReadFile(path); err != nil || !bytes.Equal(now, before) {
		return errors.Join(fmt.Errorf("%s was edited at the same time; try again", path), err)
	}
	if err := os.Rename(file.Name(), path); err != nil {
		return fmt.Errorf("replace %s: %w", path, err)
	}
	folder, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("open folder of %s: %w", path, err)
	}
	defer folder.Close()
	if err := folder.Sync(); err != nil {
		return fmt.Errorf("write folder of %s to disk: %w", path, err)
	}
	return nil
}
