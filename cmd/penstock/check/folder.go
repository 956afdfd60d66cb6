package check

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/orchestrator"
)

// runtimeDir reports whether a node could use a runtime folder. A missing folder is tried by
// another one in the same place: dir, for models that the check unpacks, until remove.
func runtimeDir(want string, confined *orchestrator.Sandbox) (dir string, remove func(), err error) {
	nothing := func() {}
	above := want
	for {
		if _, err = os.Stat(above); !errors.Is(err, fs.ErrNotExist) {
			break
		}
		above = filepath.Dir(above)
	}
	if err != nil {
		return want, nothing, fmt.Errorf("make runtime folder: %w", err)
	}

	dir, remove = want, nothing
	if above != want {
		if dir, err = os.MkdirTemp(above, ".penstock-check-"); err != nil {
			return want, nothing, fmt.Errorf("make runtime folder %s: %w", want, err)
		}
		made := dir
		remove = func() { os.RemoveAll(made) }
		if confined != nil && confined.User != nil { // as a node's: that user reads unpacked models
			if err := os.Chmod(dir, 0o711); err != nil {
				return dir, remove, fmt.Errorf("make runtime folder: %w", err)
			}
		}
	}

	folder, err := control.MakeRuntimeDir(dir)
	if err != nil {
		return dir, remove, err
	}
	return folder.Path(), remove, folder.Close()
}
