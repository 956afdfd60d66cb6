package devicetest

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/libml/device"
)

// errFaulty is what a Faulty device fails with.
var errFaulty = errors.New("device fails on purpose")

// Faulty wraps a device. It refuses, delays and fails when a test says so. The
// fields may be changed at any time.
type Faulty struct {
	device.Device
	// Refuse is 1 plus the index of the request that the next Gather refuses; 0
	// is none.
	Refuse atomic.Int64
	// FailGather and FailWait are how many of the next calls fail.
	FailGather, FailWait atomic.Int64
	// WaitFor is the additional time of each Wait, in nanoseconds.
	WaitFor atomic.Int64
}

// Gather fails or refuses a request if a test has set that.
func (f *Faulty) Gather(slot int, dst device.Buffer, reqs []device.Request, refused []bool) error {
	if take(&f.FailGather) {
		return errFaulty
	}
	err := f.Device.Gather(slot, dst, reqs, refused)
	if i := int(f.Refuse.Swap(0)) - 1; err == nil && i >= 0 && i < len(reqs) {
		refused[i] = true
		return &device.RequestError{Request: i, Fragment: -1, Err: errFaulty}
	}
	return err
}

// Wait delays, and fails if a test has set that.
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
