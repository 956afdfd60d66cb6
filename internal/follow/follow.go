// Package follow watches files that operators edit.
package follow

import (
	"context"
	"path/filepath"
	"slices"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/rs/zerolog"
)

// settle is how long files must stay unchanged before they are read. Editors write in several
// steps, and only the last one is complete.
const settle = 200 * time.Millisecond

// Files calls changed once when it watches the files, which may have changed since they were read,
// and after each edit of one of them. It returns when ctx ends, or at once if it cannot watch.
func Files(ctx context.Context, changed func(), log zerolog.Logger, files ...string) {
	// Watch the folders instead of the files: editors replace files.
	watcher, err := fsnotify.NewWatcher()
	if err == nil {
		defer watcher.Close()
		for _, file := range files {
			if err == nil {
				err = watcher.Add(filepath.Dir(file))
			}
		}
	}
	if err != nil {
		log.Warn().Err(err).Strs("files", files).Msg("cannot watch files; edits to them need a restart")
		return
	}

	changed()
	var due <-chan time.Time
	for {
		select {
		case event := <-watcher.Events:
			// Kubernetes replaces the link ..data, which leads to all files of a volume.
			named := slices.Contains(files, filepath.Clean(event.Name)) || filepath.Base(event.Name) == "..data"
			// A change of mode or times is not an edit.
			if named && event.Op != fsnotify.Chmod {
				due = time.After(settle)
			}
		case err := <-watcher.Errors:
			log.Warn().Err(err).Strs("files", files).Msg("cannot watch files")
		case <-due:
			changed()
		case <-ctx.Done():
			return
		}
	}
}
