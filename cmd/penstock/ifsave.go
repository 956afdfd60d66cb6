package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/configs/configfile"
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
	if _, _, err := configfile.WithFunction(c.File, f); err != nil {
		return err
	}
	if err := sendAdd(ctx, dir, f); err != nil {
		return err
	}

	before, after, err := configfile.WithFunction(c.File, f)
	if err == nil {
		err = configfile.Replace(c.File, before, after)
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

// savePatience is how long a node may take to follow its file: configfile.Follow waits for an editor
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
