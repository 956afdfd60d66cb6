// Package configfile follows the edits of a node's configuration file, keeps the text that
// was last followed, and saves functions into the file.
package configfile

import (
	"context"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/rs/zerolog"

	"github.com/penstock/penstock/configs"
)

// Follower is a manager that the list of functions can be changed of.
type Follower interface {
	Reconfigure(configs.Config) error
	RejectConfiguration(error)
}

// settle is how long a file must rest: editors write in several steps, and the last one
// counts.
const settle = 200 * time.Millisecond

// Follow has m take over the list of functions each time the file is written after it was
// read as begun, and calls keep with what was followed. It returns when ctx ends.
func Follow(ctx context.Context, m Follower, begun configs.Config, keep func(configs.Config), log zerolog.Logger) {
	// The folder, not the file: editors replace files.
	watcher, err := watch(filepath.Dir(begun.File))
	if err != nil {
		log.Warn().Err(err).Msg("cannot watch the configuration; edits to it need a restart")
		return
	}
	defer watcher.Close()
	f := following{m, begun.File, keep, log}
	var due <-chan time.Time
	// A node takes seconds to begin, and the file was not watched in that time. If its text
	// is the same, nothing shows that it was written.
	unwatched := time.After(0)
	for {
		select {
		case event, ok := <-watcher.Events:
			if !ok {
				return
			}
			// A change of mode or times is no edit.
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

// following is a manager that follows a file.
type following struct {
	manager Follower
	file    string
	keep    func(configs.Config)
	log     zerolog.Logger
}

// follow takes over what the file says now, unless its text has the digest known.
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
