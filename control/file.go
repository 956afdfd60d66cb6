package control

import "os"

// ReplaceFile puts data in the place of a file of the runtime folder, whole or not at all. It
// has one writer; what that left half when it died is written over.
func ReplaceFile(path string, data []byte) error {
	half := path + ".new"
	if err := os.WriteFile(half, data, 0o600); err != nil {
		return err
	}
	return os.Rename(half, path)
}
