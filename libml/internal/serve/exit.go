package serve

import (
	"sync/atomic"

	"github.com/penstock/penstock/shm"
)

// exit requests the end of a process and has the reasons. Any goroutine may use it.
type exit struct {
	draining   atomic.Bool
	ring       atomic.Pointer[shm.Consumer] // of a process that serves
	deviceLost reason
	failed     reason // why the process must not serve any more
	peerGone   reason // which peer is gone: the manager or the orchestrator
	abandoned  bool   // the framework is still at work; only the process's thread uses it
}

// reason is an error that ends a process. The first one counts.
type reason struct{ first atomic.Pointer[error] }

// get returns the error; nil if there is none.
func (r *reason) get() error {
	if err := r.first.Load(); err != nil {
		return *err
	}
	return nil
}

// request ends the process at the next batch boundary: the loop releases the ring.
func (e *exit) request() {
	e.draining.Store(true)
	if ring := e.ring.Load(); ring != nil {
		ring.Interrupt()
	}
}

// requested reports whether the loop must end at the next batch boundary.
func (e *exit) requested() bool { return e.draining.Load() }

// end ends the process for a reason, from a goroutine other than the loop's. The batches in flight end first.
func (e *exit) end(r *reason, err error) {
	r.first.CompareAndSwap(nil, &err)
	e.request()
}
