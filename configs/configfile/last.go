package configfile

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/models/document"
)

// A node keeps the configuration that it last followed. If an edit cannot be read, a process
// that dies is started again with the kept one; with the file, the node would end.

// lastFile is the name, in the runtime folder, of the text that was last followed. The
// manager writes it when it is there, which only one can be, and after each edit.
const lastFile = "followed.yaml"

// Keep makes a configuration the one that was last followed.
func Keep(dir string, c configs.Config) error {
	path := filepath.Join(dir, lastFile)
	if err := control.ReplaceFile(path, c.Text); err != nil {
		os.Remove(path) // an older one would be another node's
		return fmt.Errorf("save a copy of the configuration: %w", err)
	}
	return nil
}

// Read reads a configuration for a process of the node whose runtime folder is dir: the
// one that was last followed where file cannot be read, which unread says why; none where the
// process is of no node that `penstock up` runs.
func Read(file, dir, run string) (c configs.Config, unread, err error) {
	c, err = configs.Read(file)
	if err == nil || run == "" {
		return c, nil, err
	}
	// An error of the file itself says what the operator can correct, so it goes first.
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
