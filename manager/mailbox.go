package manager

import (
	"sync"

	"github.com/penstock/penstock/manager/fleet"
)

// mailbox takes calls for the control loop from other goroutines. It is a fleet.Loop.
type mailbox struct {
	calls   chan func()
	done    chan struct{} // closed when the control loop has ended
	threads sync.WaitGroup
}

func newMailbox() *mailbox {
	return &mailbox{calls: make(chan func(), 64), done: make(chan struct{})}
}

// do runs f on the control loop and waits for it.
func (b *mailbox) do(f func() error) error {
	result := make(chan error, 1)
	if !b.Post(func() { result <- f() }) {
		return fleet.ErrStopped
	}
	select {
	case err := <-result:
		return err
	case <-b.done:
		return fleet.ErrStopped
	}
}

// Post queues f for the control loop; false if the loop has ended.
func (b *mailbox) Post(f func()) bool {
	select {
	case b.calls <- f:
		return true
	case <-b.done:
		return false
	}
}

// Go runs f on another goroutine, which Run waits for.
func (b *mailbox) Go(f func()) { b.threads.Go(f) }

// end lets all calls fail from now on, and waits for the goroutines.
func (b *mailbox) end() {
	close(b.done)
	b.threads.Wait()
}
