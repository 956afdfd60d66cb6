package fleet

import (
	"context"
	"fmt"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/internal/follow"
	"github.com/penstock/penstock/private"
	"github.com/penstock/penstock/wire"
)

// readKeys reads the keys of a function from its file; nil if it has none.
func readKeys(file string) ([][]byte, error) {
	if file == "" {
		return nil, nil
	}
	text, err := private.ReadSecret(file, wire.MaxKeyFile)
	if err != nil {
		return nil, fmt.Errorf("read keys: %w", err)
	}
	return wire.DecodeKeys(file, text)
}

// followKeys calls set with the keys of a file after each edit, until ctx ends. If the file is wrong, the last right ones stay.
func followKeys(ctx context.Context, file string, set func([][]byte), log zerolog.Logger) {
	follow.Files(ctx, log, "keys rejected; keeping the last ones", func() error {
		keys, err := readKeys(file)
		if err != nil {
			return err
		}
		set(keys)
		log.Info().Str("file", file).Int("keys", len(keys)).Msg("keys in force")
		return nil
	}, file)
}
