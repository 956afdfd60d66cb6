// Package configfile follows the edits of a node's configuration file, keeps a copy of the
// last valid text, and saves functions into the file.
package configfile

import (
	"context"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/internal/follow"
)

// Follower is a manager whose list of functions can be changed.
type Follower interface {
	Reconfigure(configs.Config) error
	RejectConfiguration(error)
}

// Follow watches the file that begun was read from. After each edit it gives m the new list
// of functions, and calls keep with the new configuration. It returns when ctx ends.
func Follow(ctx context.Context, m Follower, begun configs.Config, keep func(configs.Config), log zerolog.Logger) {
	known := begun.Digest // of the text in force; an edit that leaves it makes no difference
	follow.Files(ctx, log, "configuration rejected; keeping the last one", func() error {
		c, err := configs.Read(begun.File)
		if err == nil && c.Digest == known {
			return nil
		}
		known = ""
		if err != nil {
			m.RejectConfiguration(err)
		} else {
			err = m.Reconfigure(c)
		}
		if err != nil {
			return err
		}
		known = c.Digest
		keep(c)
		return nil
	}, begun.File)
}
