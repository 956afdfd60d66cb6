package libml

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/shm"
)

// workerBusy is the bit of a worker in the busy word, which its first member takes.
type workerBusy struct {
	mu  sync.Mutex // guards bit
	bit *shm.BusyBit
}

// openBusy takes the process's bit in the busy word, whose file comes last. It returns nil if there is none
// to take. Batches then run without it, and guests do not wait for them.
func (p *process) openBusy(attached control.Attached, files []*os.File) (*shm.BusyBit, error) {
	if !attached.Busy {
		return nil, nil
	}
	if p.worker == nil {
		return p.takeBusyBit(files[len(files)-1])
	}
	w := &p.worker.busy
	w.mu.Lock()
	defer w.mu.Unlock()
	var err error
	if w.bit == nil {
		w.bit, err = p.takeBusyBit(files[len(files)-1])
	}
	return w.bit, err
}

// takeBusyBit leaves the file open for its owner. A worker's bit outlives the member that took it.
func (p *process) takeBusyBit(f *os.File) (*shm.BusyBit, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("duplicate busy file: %w", err)
	}
	bit, err := shm.OpenBusyBit(os.NewFile(uintptr(fd), f.Name()))
	if errors.Is(err, shm.ErrNoBit) {
		p.log.Warn().Err(err).Msg("guests do not wait for batches of this process")
		return nil, nil
	}
	return bit, err
}

// closeBusy gives back the bit of a process that ends. A worker keeps its bit.
func (p *process) closeBusy() {
	if p.busy != nil && p.worker == nil {
		p.busy.Close()
	}
}

// showBatch makes guests wait for a batch that begins within the guarantee.
func (l *loop) showBatch(f *flight) {
	f.shown = l.p.busy != nil && !f.demoted && l.p.busy.Begin(f.dispatched)
}

// hideBatch ends that.
func (l *loop) hideBatch(f *flight) {
	if f.shown {
		f.shown = false
		l.p.busy.End()
	}
}
