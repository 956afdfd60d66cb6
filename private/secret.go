package private

import (
	"fmt"
	"os"
)

// ReadSecret is ReadFile for a file that not all users may read. For others the error wraps ErrNotPrivate.
func ReadSecret(path string, most int64) ([]byte, error) {
	text, err := ReadFile(path, most)
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(path)
	if err == nil && info.Mode()&0o004 != 0 {
		err = &pathError{Path: path, Found: fmt.Sprintf("has mode %04o, so every user may read it", info.Mode().Perm()), Want: "`chmod o-r " + path + "`"}
	}
	return text, err
}
