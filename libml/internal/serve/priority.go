package serve

import (
	"time"

	"golang.org/x/sys/unix"
)

// The batch loop's thread on a GPU runs for microseconds at a time. Clients and
// hand-overs wait for it, while shadows that load keep whole CPUs busy. So it gets a
// higher priority if the process has the right to set it (root, or CAP_SYS_NICE), and
// runs without it otherwise. On a CPU the thread itself computes, and the share
// decides.
//
// A real-time priority is worse. A real-time thread that wakes takes the CPU that it
// last ran on from the thread that runs there. That may be the loop whose ring it
// waits for, while other CPUs are idle. Measured on an H200, one hand-over in ten
// then took more than 100 µs, some 40 ms.
//
// If there are CPUs to spare, the next owner is not woken. It polls for the ring while
// the last batch before it ends. On a virtual machine it takes about 150 µs to bring a
// CPU out of its sleep.
const (
	loopNice  = -15
	eagerCPUs = 4
	eagerTime = 50 * time.Millisecond // a few batches
)

// raisePriority gives the calling thread, to which the goroutine must be locked, a higher
// priority and accurate naps: by default the kernel ends them up to 50 µs later.
func raisePriority() {
	_ = unix.Setpriority(unix.PRIO_PROCESS, 0, loopNice) // 0 is the calling thread, the only one that the sandbox permits
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
}
