package manager

import (
	"errors"
	"time"

	"github.com/rs/zerolog"
)

// folder is the runtime folder with the manager's sockets. A cleaner of temporary folders may remove
// them. The control loop owns it.
type folder struct {
	dir      string
	sockets  []restorer
	lookAt   time.Duration // when to check next, by runclock.Now
	restored uint64
	err      error // why the last restore failed
}

// restorer is a socket that can be created again; see control.Listener.
type restorer interface {
	Restore() (restored bool, err error)
}

// folderEvery is how often the manager checks the sockets' files: a check is a few system
// calls.
const folderEvery = 500 * time.Millisecond

// restore creates the sockets' files again that were removed, and returns their number.
func (f *folder) restore(now time.Duration, log zerolog.Logger) (restored int) {
	if now < f.lookAt {
		return 0
	}
	f.lookAt = now + folderEvery

	var failed error
	for _, s := range f.sockets {
		ok, err := s.Restore()
		if ok {
			restored++
		}
		failed = errors.Join(failed, err)
	}
	if failed != nil && (f.err == nil || f.err.Error() != failed.Error()) {
		log.Error().Err(failed).Msg("cannot restore the runtime folder; no process can start, and `penstock if` does not work")
	}
	f.err = failed
	if restored > 0 {
		f.restored++
	}
	return restored
}
