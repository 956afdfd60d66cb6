package devicetest

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/libml/device"
)

// errFaulty is what a Faulty device fails with.
var errFaulty = errors.New("device fails on purpose")

// Faulty is a device that refuses, delays and fails as a test tells it to,
// otherwise the one that it wraps. The knobs may be turned at any time.
type Faulty struct {
	device.Device
	// Refuse has the next Gather refuse the request of this index plus one;
	// 0 none.
	Refuse atomic.Int64
	// FailGather and FailWait have that many of the next calls fail.
	FailGather, FailWait atomic.Int64
	// WaitFor is how much longer each Wait takes, in nanoseconds.
	WaitFor atomic.Int64
}

// Gather fails, or refuses a request, when it is its turn.
func (f *Faulty) Gather(slot int, dst []byte, reqs []device.Request, refused []bool) error {
	if take(&f.FailGather) {
		return errFaulty
	}
	err := f.Device.Gather(slot, dst, reqs, refused)
	if i := int(f.Refuse.Swap(0)) - 1; err == nil && i >= 0 && i < len(reqs) {
		refused[i] = true
		return &device.RequestError{Request: i, Piece: -1, Err: errFaulty}
	}
	return err
}

// Wait delays, and fails when it is its turn.
func (f *Faulty) Wait(slot int) (time.Duration, error) {
	time.Sleep(time.Duration(f.WaitFor.Load()))
	if take(&f.FailWait) {
		return 0, errFaulty
	}
	return f.Device.Wait(slot)
}

func take(left *atomic.Int64) bool {
	for n := left.Load(); n > 0; n = left.Load() {
		if left.CompareAndSwap(n, n-1) {
			return true
		}
	}
	return false
}
