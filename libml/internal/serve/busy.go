package serve

import (
	"os"

	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/shm"
)

// takeBusyBit takes the process's bit in the busy word. It returns nil if there is none to take, or after an
// error. Batches then run without it, and guests do not wait for them.
func (p *process) takeBusyBit(files []*os.File) *shm.BusyBit {
	if len(files) == 0 {
		return nil
	}
	return p.worker.Busy(func() *shm.BusyBit { return p.openBusyBit(files) })
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
