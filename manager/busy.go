package manager

import (
	"os"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/shm"
)

// busy is the busy word, which shows guests on a GPU when functions use it. The control loop owns it.
type busy struct {
	shared *shm.BusyFile // nil on a CPU
	failed string        // the last error
}

// sweepBusy makes the file of the word when the node runs on a GPU, and lets guests go on that wait for
// processes that have ended.
func (m *Manager) sweepBusy() {
	if !m.onGPU() {
		return
	}
	var err error
	if m.busy.shared == nil {
		m.busy.shared, err = newBusy(m.folder.dir)
	} else {
		err = m.busy.shared.Sweep()
	}
	m.noteBusy(err)
}

func newBusy(dir string) (*shm.BusyFile, error) {
	f, err := control.MakeBusyFile(dir)
	if err != nil {
		return nil, err
	}
	return shm.OpenBusyFile(f)
}

// busyFiles returns the files for a process that attaches, none on a CPU. The caller closes the second one.
func (m *Manager) busyFiles() []*os.File {
	if m.busy.shared == nil {
		m.sweepBusy()
	}
	if m.busy.shared == nil {
		return nil
	}
	word, locks, err := m.busy.shared.Files()
	if m.noteBusy(err); err != nil {
		return nil
	}
	return []*os.File{word, locks}
}

// noteBusy logs an error once.
func (m *Manager) noteBusy(err error) {
	if err != nil && err.Error() != m.busy.failed {
		m.busy.failed = err.Error()
		m.log.Warn().Err(err).Msg("guests do not wait for batches of functions; they have only their low priority")
	}
}

// close unmaps the file. Processes and guests keep their mappings.
func (b *busy) close() {
	if b.shared != nil {
		b.shared.Close()
	}
}
