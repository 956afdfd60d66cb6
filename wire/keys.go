package wire

import (
	"bytes"
	"fmt"
)

// The bounds of a file of keys. Each key costs a proof of a client some microseconds.
const (
	MaxKeyFile  = 64 << 10
	MaxKeys     = 8
	minKeyBytes = 16
	maxKeyBytes = 256
)

// DecodeKeys reads the keys of a function (docs/wire.md) from a file's text: one in each line, in the order of the file.
// There are 1 to MaxKeys. A node accepts all of them, and a client uses the first. Empty lines and lines that
// begin with # are ignored.
func DecodeKeys(file string, text []byte) (keys [][]byte, err error) {
	for i, line := range bytes.Split(text, []byte("\n")) {
		line = bytes.TrimSpace(line)
		switch {
		case len(line) == 0 || line[0] == '#':
			continue
		case len(line) < minKeyBytes || len(line) > maxKeyBytes:
			return nil, fmt.Errorf("read keys: %s:%d: a key of %d characters; want %d to %d, as from `openssl rand -hex 32`", file, i+1, len(line), minKeyBytes, maxKeyBytes)
		case len(keys) == MaxKeys:
			return nil, fmt.Errorf("read keys: %s:%d: one key too many; want at most %d", file, i+1, MaxKeys)
		}
		keys = append(keys, line)
	}
	if len(keys) == 0 {
		return nil, fmt.Errorf("read keys: %s has none; want one in a line, as from `openssl rand -hex 32`", file)
	}
	return keys, nil
}
