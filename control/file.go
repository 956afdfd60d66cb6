package control

import (
	"path/filepath"

	"github.com/penstock/penstock/private"
)

// ReplaceFile replaces a file of the runtime folder; see private.Folder.ReplaceFile.
func ReplaceFile(path string, data []byte) error {
	folder, err := private.OpenFolder(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer folder.Close()
	return folder.ReplaceFile(filepath.Base(path), data)
}

// ReadFile reads a file of the runtime folder; see private.Folder.ReadFile.
func ReadFile(path string, maxBytes int64) ([]byte, error) {
	folder, err := private.OpenFolder(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer folder.Close()
	return folder.ReadFile(filepath.Base(path), maxBytes)
}
