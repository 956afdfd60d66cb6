package manager

import "errors"

// mailbox takes calls for the control loop from other goroutines.
type mailbox struct {
	calls chan func()
	done  chan struct{} // closed when the control loop has ended
}

func newMailbox() mailbox {
	return mailbox{calls: make(chan func(), 64), done: make(chan struct{})}
}

// errStopped is returned by calls on a manager that has stopped.
var errStopped = errors.New("manager has stopped")

// do runs f on the control loop and waits for it.
func (b mailbox) do(f func() error) error {
	result := make(chan error, 1)
	select {
	case b.calls <- func() { result <- f() }:
	case <-b.done:
		return errStopped
	}
	select {
	case err := <-result:
		return err
	case <-b.done:
		return errStopped
	}
}

// post queues f for the control loop; false if the loop has ended.
func (b mailbox) post(f func()) bool {
	select {
	case b.calls <- f:
		return true
	case <-b.done:
		return false
	}
}

// result tells once how something ended. The zero value is not waited for.
type result struct{ end chan error }

// begin returns the channel that gets the result.
func (r *result) begin() <-chan error {
	r.end = make(chan error, 1)
	return r.end
}

// settle reports the result, if it is waited for.
func (r *result) settle(err error) {
	if r.end != nil {
		r.end <- err
		r.end = nil
	}
}
