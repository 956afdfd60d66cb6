package configfile

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/models/document"
)

// A node keeps a copy of the last configuration that it applied. If the file becomes
// unreadable and a process dies, the restarted process uses the copy. Otherwise the node
// would end.

// lastFile is the name of the copy in the runtime folder. The manager writes it once it owns
// the folder, and after each edit. A folder has at most one manager.
const lastFile = "followed.yaml"

// Keep saves a copy of a configuration's text, for Read.
func Keep(dir string, c configs.Config) error {
	path := filepath.Join(dir, lastFile)
	if err := control.ReplaceFile(path, c.Text); err != nil {
		os.Remove(path) // an older copy would be from another configuration
		return fmt.Errorf("save a copy of the configuration: %w", err)
	}
	return nil
}

// Read reads a configuration for a process of the node whose runtime folder is dir. If file
// cannot be read, it returns the copy that Keep saved, and in unread the file's error. A
// process that does not belong to a run of `penstock up` (an empty run) gets no copy.
func Read(file, dir, run string) (c configs.Config, unread, err error) {
	c, err = configs.Read(file)
	if err == nil || run == "" {
		return c, nil, err
	}
	// If the copy cannot be read either, return the file's error: the operator can correct
	// the file.
	text, lastErr := control.ReadFile(filepath.Join(dir, lastFile), document.MaxBytes)
	if lastErr != nil {
		return c, nil, err
	}
	last, lastErr := configs.ReadText(file, text)
	if lastErr != nil {
		return c, nil, err
	}
	return last, err, nil
}
