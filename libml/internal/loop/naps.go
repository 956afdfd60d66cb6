package loop

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/shm"
)

const (
	// maxNap bounds how late the loop notices new work. minNap is the shortest nap that
	// is worth the system call.
	maxNap = 100 * time.Microsecond
	minNap = 10 * time.Microsecond
)

// naps saves CPU time while a batch is in flight: the loop naps instead of polling. A nap is half of
// the time that is left, so the naps get shorter towards the end of the batch; at last the loop
// polls.
type naps struct {
	poll      bool          // never nap
	overslept time.Duration // how much longer than requested a nap takes
}

// next is how long the next nap is, 0 to poll. It is shorter than requested by the time that naps are known to oversleep.
func (n *naps) next(left time.Duration) time.Duration {
	d := min(left/2-n.overslept, maxNap)
	if n.poll || d < minNap {
		return 0
	}
	return d
}

// nap naps for a part of the time that is left.
func (n *naps) nap(left time.Duration) {
	d := n.next(left)
	if d == 0 {
		return
	}
	began := shm.Now()
	nap(d)
	n.overslept = oversleep(n.overslept, d, time.Duration(shm.Now()-began))
}

// oversleep updates the estimate of how much longer naps take, after a nap of d took that long. A
// stall counts as maxNap: with a larger estimate the loop would never nap again, and so could
// not correct it.
func oversleep(estimate, d, took time.Duration) time.Duration {
	return estimate + (min(took-d, maxNap)-estimate)/8
}

// nap sleeps in the kernel. Go's own sleep would first look for other goroutines to run.
func nap(d time.Duration) {
	t := unix.NsecToTimespec(int64(d))
	unix.Nanosleep(&t, nil)
}
