package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
)

// addAndSave adds a function to the node and to its configuration file. If the file cannot be
// written, nothing is added.
func addAndSave(ctx context.Context, dir string, f configs.Function) error {
	status, err := control.ReadStatus(ctx, dir)
	if err != nil {
		return err
	}
	c := status.Configuration
	switch {
	case c.File == "":
		return errors.New("save function: the node runs on the built-in configuration, which is no file; write one (configs/reference.yaml names every key) and start the node with `penstock up --config FILE`")
	case c.Error != "":
		return fmt.Errorf("save function: the node does not follow its configuration file: %s; mend that first", c.Error)
	}
	if _, _, err := withFunction(c.File, f); err != nil {
		return err
	}
	if err := sendAdd(ctx, dir, f); err != nil {
		return err
	}

	before, after, err := withFunction(c.File, f)
	if err == nil {
		err = replaceText(c.File, before, after)
	}
	if err != nil {
		return fmt.Errorf("%s serves and is not saved: %w", f.Name, err)
	}
	if err := awaitSaved(ctx, dir, f.Name); err != nil {
		return err
	}
	fmt.Printf("%s is saved in %s\n", f.Name, c.File)
	return nil
}

// withFunction is the text of a configuration file, and that text with one more function.
func withFunction(file string, f configs.Function) (before, after []byte, err error) {
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

// replaceText puts another text in the place of a file's, whole or not at all, if the file still
// has the text before. Mode and owner stay. A symbolic link stays one.
func replaceText(path string, before, after []byte) (err error) {
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
		return fmt.Errorf("write beside %s: %w", path, err)
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
		return errors.Join(fmt.Errorf("%s was edited meanwhile", path), err)
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

// savePatience is how long a node may take to follow its file: followConfig waits for an editor
// to end first.
const savePatience = 10 * time.Second

// awaitSaved waits until the node has found the function in its file.
func awaitSaved(ctx context.Context, dir, name string) error {
	for deadline := time.Now().Add(savePatience); ; {
		status, err := control.ReadStatus(ctx, dir)
		if err != nil {
			return err
		}
		if f, ok := status.Function(name); ok && f.Unsaved == "" {
			return nil
		}
		if status.Configuration.Error != "" {
			return fmt.Errorf("%s is saved, and the node does not follow the file: %s", name, status.Configuration.Error)
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s is saved, and the node has not followed the file within %s; its log says why", name, savePatience)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(50 * time.Millisecond):
		}
	}
}
