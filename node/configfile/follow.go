// Package configfile follows the edits of a node's configuration file, keeps a copy of the
// last valid text, and saves functions into the file.
package configfile

import (
	"context"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/rs/zerolog"

	"github.com/penstock/penstock/configs"
)

// Follower is a manager whose list of functions can be changed.
type Follower interface {
	Reconfigure(configs.Config) error
	RejectConfiguration(error)
}

// settle is how long a file must stay unchanged before it is read. Editors write in several
// steps, and only the last one is complete.
const settle = 200 * time.Millisecond

// Follow watches the file that begun was read from. After each edit it gives m the new list
// of functions, and calls keep with the new configuration. It returns when ctx ends.
func Follow(ctx context.Context, m Follower, begun configs.Config, keep func(configs.Config), log zerolog.Logger) {
	// Watch the folder instead of the file: editors replace files.
	watcher, err := watch(filepath.Dir(begun.File))
	if err != nil {
		log.Warn().Err(err).Msg("cannot watch the configuration; edits to it need a restart")
		return
	}
	defer watcher.Close()
	f := following{m, begun.File, keep, log}
	var due <-chan time.Time
	// Check the file once now. A node takes seconds to start, and until here the file was
	// not watched. An edit that left the same text makes no difference.
	unwatched := time.After(0)
	for {
		select {
		case event, ok := <-watcher.Events:
			if !ok {
				return
			}
			// A change of mode or times is not an edit.
			if filepath.Clean(event.Name) == begun.File && event.Op != fsnotify.Chmod {
				due, unwatched = time.After(settle), nil
			}
		case err, ok := <-watcher.Errors:
			if !ok {
				return
			}
			log.Warn().Err(err).Msg("cannot watch configuration")
		case <-unwatched:
			f.follow(begun.Digest)
		case <-due:
			f.follow("")
		case <-ctx.Done():
			return
		}
	}
}

func watch(dir string) (*fsnotify.Watcher, error) {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, err
	}
	if err := watcher.Add(dir); err != nil {
		watcher.Close()
		return nil, err
	}
	return watcher, nil
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
