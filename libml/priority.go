package libml

import (
	"time"

	"golang.org/x/sys/unix"
)

// The priority of the batch loop's thread on a GPU, where the process may ask for one
// (root, or CAP_SYS_NICE); it runs without as well. On a GPU the loop's thread runs for
// microseconds at a time and is waited for, by clients and in a hand-over, while
// shadows that load keep whole CPUs busy. On a CPU it is what computes: there the
// share decides.
//
//	normal    nice -15: ahead of the other threads of its cgroup
//	handing   SCHED_FIFO: ahead of every ordinary thread. From the moment at which a
//	          process waits for the ring to its first batch, and for the last batch of
//	          the one before it: a thread of another cgroup has its slice (3 ms) to
//	          the end, whatever the nice value, and the ring stands still meanwhile.

//
// Where there are CPUs to spare, who is next looks for the ring while the last batch
// before it ends, in place of being woken: that takes a CPU out of its sleep, which was
// measured to take 200 µs on a virtual machine.

const (
	loopNice         = -15
	handOverPriority = 1 // of 99: behind whoever else has a real-time priority

	cpusToBeEager = 4
	eagerFor      = 50 * time.Millisecond // a few batches
)

// goFirst gives the calling thread, which is locked, the loop's normal priority, and
// has its naps end when they should: the kernel's default is up to 50 µs later.
func goFirst() {
	schedule(unix.SchedAttr{Policy: unix.SCHED_NORMAL, Nice: loopNice})
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
}

// goAtOnce gives it the one for a hand-over.
func goAtOnce() { schedule(unix.SchedAttr{Policy: unix.SCHED_FIFO, Priority: handOverPriority}) }

// schedule costs a system call of a microsecond.
func schedule(a unix.SchedAttr) {
	a.Flags = unix.SCHED_FLAG_RESET_ON_FORK
	_ = unix.SchedSetAttr(0, &a, 0)
}
