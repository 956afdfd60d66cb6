package serve

import (
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/shm"
)

// workerBusy is the bit of a worker in the busy word, which its first member takes.
type workerBusy struct {
	mu  sync.Mutex // guards bit
	bit *shm.BusyBit
}

// takeBusyBit takes the process's bit in the busy word. It returns nil if there is none to take, or after an
// error. Batches then run without it, and guests do not wait for them.
func (p *process) takeBusyBit(files []*os.File) *shm.BusyBit {
	if len(files) == 0 {
		return nil
	}
	if p.worker == nil {
		return p.openBusyBit(files)
	}
	w := &p.worker.busy
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.bit == nil {
		w.bit = p.openBusyBit(files)
	}
	return w.bit
}

// openBusyBit leaves the files open for their owner. A worker's bit outlives the member that took it.
func (p *process) openBusyBit(files []*os.File) *shm.BusyBit {
	var own []*os.File
	for _, f := range files {
		fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			for _, f := range own {
				f.Close()
			}
			p.log.Warn("cannot duplicate the busy file; guests do not wait for batches of this process", "error", err)
			return nil
		}
		own = append(own, os.NewFile(uintptr(fd), f.Name()))
	}
	bit, err := shm.OpenBusyBit(own[0], own[1])
	if err != nil {
		p.log.Warn("guests do not wait for batches of this process", "error", err)
		return nil
	}
	return bit
}

// closeBusy gives back the bit of a process that ends. A worker keeps its bit.
func (p *process) closeBusy() {
	if p.busy != nil && p.worker == nil {
		p.busy.Close()
	}
}
