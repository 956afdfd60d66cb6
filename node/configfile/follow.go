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
	f := following{m, begun.File, keep, log}
	// A node takes seconds to start, and until the watch starts an edit is not noticed. An edit
	// that left the same text makes no difference.
	known := begun.Digest
	follow.Files(ctx, func() {
		f.follow(known)
		known = ""
	}, log, begun.File)
}

// following is the state of Follow.
type following struct {
	manager Follower
	file    string
	keep    func(configs.Config)
	log     zerolog.Logger
}

// follow applies the file's current text, unless the text has the digest known.
func (f *following) follow(known string) {
	c, err := configs.Read(f.file)
	if err == nil && c.Digest == known {
		return
	}
	if err != nil {
		f.manager.RejectConfiguration(err)
	} else {
		err = f.manager.Reconfigure(c)
	}
	if err != nil {
		f.log.Error().Err(err).Msg("configuration rejected; keeping the last one")
		return
	}
	f.keep(c)
}
