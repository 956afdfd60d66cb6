package stream

// Newest is the policy of a lane whose source is live: one frame is in flight, and of those that
// came meanwhile only the newest waits. It is used by one goroutine at a time, or under a lock.
type Newest[T any] struct {
	busy    bool
	waiting bool
	next    T
}

// Offer takes the next frame of the source. If send is set, the caller sends it now. If drop is
// set, the caller releases dropped, which is skipped.
func (n *Newest[T]) Offer(frame T) (send bool, dropped T, drop bool) {
	if !n.busy {
		n.busy = true
		return true, dropped, false
	}
	dropped, drop = n.next, n.waiting
	n.next, n.waiting = frame, true
	return false, dropped, drop
}

// Done ends the flight. If send is set, the caller sends next now.
func (n *Newest[T]) Done() (next T, send bool) {
	var none T
	next, send = n.next, n.waiting
	n.busy, n.next, n.waiting = send, none, false
	return next, send
}
