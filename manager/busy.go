package manager

import (
	"os"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/shm"
)

// busy is the file of the busy word, which shows guests on a GPU when functions use it. The control loop owns it.
type busy struct {
	shared *shm.BusyFile // nil until a process comes
	failed bool          // it could not be made, or swept
}

// open returns the file for a process that attaches.
func (b *busy) open(dir string) (*os.File, error) {
	if b.shared == nil {
		f, _, err := control.OpenBusyFile(dir)
		if err != nil {
			return nil, err
		}
		if b.shared, err = shm.OpenBusyFile(f); err != nil {
			return nil, err
		}
	}
	return b.shared.File()
}

// openBusy returns the file for a process that attaches. It returns nil on a CPU and after an error.
func (m *Manager) openBusy() *os.File {
	if !m.onGPU() {
		return nil
	}
	f, err := m.busy.open(m.folder.dir)
	if err != nil {
		m.warnBusy(err)
		return nil
	}
	return f
}

// sweepBusy lets guests go on that wait for processes that have ended.
func (m *Manager) sweepBusy() {
	if m.busy.shared == nil {
		return
	}
	if err := m.busy.shared.Sweep(); err != nil {
		m.warnBusy(err)
	}
}

func (m *Manager) warnBusy(err error) {
	if !m.busy.failed {
		m.busy.failed = true
		m.log.Warn().Err(err).Msg("cannot show guests when functions use the GPU")
	}
}

// close unmaps the file. Processes and guests keep their mappings.
func (b *busy) close() {
	if b.shared != nil {
		b.shared.Close()
	}
}
