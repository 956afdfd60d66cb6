package manager

import (
	"cmp"
	"errors"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/control/runclock"
)

// folder is the runtime folder: the manager's sockets and its record lie there. A cleaner of
// temporary folders may remove them. The control loop owns it.
type folder struct {
	recorder
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
		f.kept = nil // the record was removed, too
	}
	return restored
}

// watchFolder restores what was removed from the runtime folder: sockets, the record of
// functions, and the unpacked files of models.
func (m *Manager) watchFolder() {
	restored := m.folder.restore(runclock.Now(), m.log)
	if restored == 0 {
		return
	}

	m.keep()
	for _, f := range m.functions {
		if _, err := m.find(cmp.Or(f.config.Model, f.name)); err != nil {
			m.log.Error().Err(err).Str("if", f.name).Msg("cannot unpack model again")
		}
	}
	m.log.Warn().Str("dir", m.folder.dir).Int("sockets", restored).Msg("runtime folder was emptied; restored its files")
}
