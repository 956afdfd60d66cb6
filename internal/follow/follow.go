// Package follow watches files that operators edit.
package follow

import (
	"context"
	"slices"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"
)

// interval is the time between two looks at the files. The kernel's notifications would miss edits of files behind links,
// and each process may have few of them.
const interval = 250 * time.Millisecond

// Files calls read at first, as the files may have changed since they were read, and after each edit of one of them, until
// ctx ends. It logs errors as rejected. An edit counts when it has lasted for an interval: editors write in several steps.
func Files(ctx context.Context, log zerolog.Logger, rejected string, read func() error, files ...string) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	var last []stamp
	for seen := look(files); ; {
		now := look(files)
		if slices.Equal(now, seen) && !slices.Equal(now, last) {
			last = now
			if err := read(); err != nil {
				log.Error().Err(err).Msg(rejected)
			}
		}
		seen = now
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// stamp differs after an edit. No program can set the time of a file's last change.
type stamp struct {
	device, inode uint64
	changed       unix.Timespec
}

// look returns the stamps of files; zero for a missing one.
func look(files []string) (list []stamp) {
	for _, file := range files {
		var s unix.Stat_t
		_ = unix.Stat(file, &s)
		list = append(list, stamp{s.Dev, s.Ino, s.Ctim})
	}
	return list
}
