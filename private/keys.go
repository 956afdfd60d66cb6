package private

import (
	"bytes"
	"fmt"
	"os"
)

// The bounds of a file of keys. Each key costs a proof of a client some microseconds.
const (
	MaxKeys     = 8
	minKeyBytes = 16
	maxKeyBytes = 256
)

// ReadKeys reads the keys of a function (docs/wire.md): one in each line, in the order of the file, at least one and at most
// MaxKeys. A node accepts all of them, and a client uses the first. Empty lines and lines that begin with # are ignored.
// If all users may read the file, ReadKeys returns an error that wraps ErrNotPrivate.
func ReadKeys(path string) (keys [][]byte, err error) {
	text, err := ReadFile(path, 64<<10)
	if err != nil {
		return nil, fmt.Errorf("read keys: %w", err)
	}
	if info, err := os.Stat(path); err != nil {
		return nil, fmt.Errorf("read keys: %w", err)
	} else if info.Mode()&0o004 != 0 {
		found := fmt.Sprintf("has mode %04o, so every user may read it", info.Mode().Perm())
		return nil, fmt.Errorf("read keys: %w", &pathError{Path: path, Found: found, Want: "`chmod o-r " + path + "`"})
	}

	for i, line := range bytes.Split(text, []byte("\n")) {
		line = bytes.TrimSpace(line)
		switch {
		case len(line) == 0 || line[0] == '#':
			continue
		case len(line) < minKeyBytes || len(line) > maxKeyBytes:
			return nil, fmt.Errorf("read keys: %s:%d: a key of %d characters; want %d to %d, as from `openssl rand -hex 32`", path, i+1, len(line), minKeyBytes, maxKeyBytes)
		case len(keys) == MaxKeys:
			return nil, fmt.Errorf("read keys: %s:%d: one key too many; want at most %d", path, i+1, MaxKeys)
		}
		keys = append(keys, line)
	}
	if len(keys) == 0 {
		return nil, fmt.Errorf("read keys: %s has none; want one in a line, as from `openssl rand -hex 32`", path)
	}
	return keys, nil
}
