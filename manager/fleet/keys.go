package fleet

import (
	"bytes"
	"fmt"
	"slices"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/control/runclock"
	"github.com/penstock/penstock/private"
	"github.com/penstock/penstock/wire"
)

// keysEvery is how often a file of keys is read again.
const keysEvery = time.Second

// keys are those of a function, from a file that is followed. If the file is wrong, the last right ones stay.
type keys struct {
	file   string // empty: the function has none
	all    [][]byte
	readAt time.Duration // by runclock.Now
	err    string
}

func readKeys(file string) (k keys, err error) {
	k = keys{file: file, readAt: runclock.Now()}
	if file != "" {
		k.all, err = decodeKeys(file)
	}
	return k, err
}

// follow reads the file again, if it is time. It reports whether the keys have changed.
func (k *keys) follow(now time.Duration, log zerolog.Logger) (changed bool) {
	if k.file == "" || now-k.readAt < keysEvery {
		return false
	}
	k.readAt = now
	all, err := decodeKeys(k.file)
	if err != nil {
		if k.err != err.Error() {
			log.Error().Err(err).Msg("keep the last keys")
		}
		k.err = err.Error()
		return false
	}
	k.err = ""
	if slices.EqualFunc(all, k.all, bytes.Equal) {
		return false
	}
	k.all = all
	log.Info().Int("keys", len(all)).Msg("keys changed")
	return true
}

// decodeKeys reads the keys in a file.
func decodeKeys(file string) ([][]byte, error) {
	text, err := private.ReadSecret(file, wire.MaxKeyFile)
	if err != nil {
		return nil, fmt.Errorf("read keys: %w", err)
	}
	return wire.DecodeKeys(file, text)
}
