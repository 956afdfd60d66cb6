package configfile

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/internal/atomicfile"
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
	return atomicfile.Replace(path, after, atomicfile.Keep, func() error {
		if now, err := os.ReadFile(path); err != nil || !bytes.Equal(now, before) {
			return errors.Join(errors.New("it was edited at the same time; try again"), err)
		}
		return nil
	})
}
