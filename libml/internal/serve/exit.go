package serve

import (
	"sync/atomic"

	"github.com/penstock/penstock/shm"
)

// exit requests the end of a process and has the reasons. Any goroutine may use it.
type exit struct {
	draining   atomic.Bool
	ring       atomic.Pointer[shm.Consumer] // of a process that serves
	deviceLost atomic.Pointer[error]
	failed     atomic.Pointer[error] // why the process must not serve any more
	peerGone   atomic.Pointer[error] // which peer is gone
	abandoned  bool                  // the framework is still at work; only the process's thread uses it
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

// fail ends the process from a goroutine other than the loop's. The batches in flight end first.
func (e *exit) fail(err error) {
	e.failed.CompareAndSwap(nil, &err)
	e.request()
}

// loseDevice ends the process from a goroutine other than the loop's, because the device failed.
func (e *exit) loseDevice(err error) {
	e.deviceLost.CompareAndSwap(nil, &err)
	e.request()
}

// losePeer ends the process because the manager or the orchestrator has exited.
func (e *exit) losePeer(err error) {
	e.peerGone.CompareAndSwap(nil, &err)
	e.request()
}

// lostDevice returns the reason given to loseDevice, or nil.
func (e *exit) lostDevice() error { return load(&e.deviceLost) }

// failure returns the reason given to fail, or nil.
func (e *exit) failure() error { return load(&e.failed) }

// lostPeer returns the reason given to losePeer, or nil.
func (e *exit) lostPeer() error { return load(&e.peerGone) }

func load(p *atomic.Pointer[error]) error {
	if err := p.Load(); err != nil {
		return *err
	}
	return nil
}
