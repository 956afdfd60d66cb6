package libml

import (
	"time"

	"golang.org/x/sys/unix"
)

// The batch loop's thread on a GPU runs for microseconds at a time and is waited for,
// by clients and in a hand-over, while shadows that load keep whole CPUs busy. So it
// goes first there, where the process may ask for that (root, or CAP_SYS_NICE), and
// runs without as well. On a CPU it is what computes: there the share decides.
//
// A real-time priority is worse. A real-time thread that wakes takes the CPU that it
// last ran on from whoever runs there, and that may be the loop whose ring it waits
// for, while other CPUs are idle (measured on an H200: one hand-over in ten then took
// more than 100 µs, some 40 ms).
//
// Where there are CPUs to spare, who is next looks for the ring while the last batch
// before it ends, in place of being woken: to bring a CPU out of its sleep takes some
// 150 µs on a virtual machine.
const (
	loopNice      = -15
	cpusToBeEager = 4
	eagerFor      = 50 * time.Millisecond // a few batches
)

// goFirst gives the calling thread, which is locked, a higher priority, and has its
// naps end when they should: the kernel's default is up to 50 µs later.
func goFirst() {
	_ = unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), loopNice)
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
}
