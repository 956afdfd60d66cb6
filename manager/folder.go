package manager

import (
	"cmp"
	"errors"
	"time"

	"github.com/penstock/penstock/control/runclock"
)

// folder watches the runtime folder: a cleaner of temporary folders may remove its files.
// The control loop owns it.
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

// watchFolder restores what was removed from the runtime folder: sockets, the record of
// functions, and the unpacked files of models.
func (m *Manager) watchFolder() {
	w := &m.folder
	if now := runclock.Now(); now < w.lookAt {
		return
	} else {
		w.lookAt = now + folderEvery
	}

	var failed error
	restored := 0
	for _, s := range w.sockets {
		ok, err := s.Restore()
		if ok {
			restored++
		}
		failed = errors.Join(failed, err)
	}
	if failed != nil && (w.err == nil || w.err.Error() != failed.Error()) {
		m.log.Error().Err(failed).Msg("cannot restore the runtime folder; no process can start, and `penstock if` does not work")
	}
	w.err = failed
	if restored == 0 {
		return
	}

	w.restored++
	m.recorder.kept = nil
	m.keep()
	for _, f := range m.functions {
		if _, err := m.find(cmp.Or(f.config.Model, f.name)); err != nil {
			m.log.Error().Err(err).Str("if", f.name).Msg("cannot unpack model again")
		}
	}
	m.log.Warn().Str("dir", w.dir).Int("sockets", restored).Msg("runtime folder was emptied; restored its files")
}
