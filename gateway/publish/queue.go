package publish

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/wire"
)

// The limits of a receiver's queue. An answer waits at most maxAge.
const (
	maxWaiting      = 256
	maxWaitingBytes = 4 << 20
	maxAge          = time.Minute
)

// message is an encoded answer on its way to a receiver.
type message struct {
	lane
	kind wire.Kind
	at   time.Time
	text []byte // JSON without a newline; shared and read-only
	// payload is the answer as on the wire (docs/wire.md), for ZeroMQ; shared and read-only.
	payload []byte
}

func (m *message) bytes() int { return len(m.text) + len(m.payload) }

// queue keeps the newest messages for a receiver. If there are too many, it drops the oldest. Any
// goroutine may use it.
type queue struct {
	more chan struct{} // has an element if there may be new messages

	mu       sync.Mutex // guards below
	messages []message  // the oldest first
	bytes    int

	dropped *atomic.Uint64 // may be shared with other queues
}

func newQueue() *queue { return &queue{more: make(chan struct{}, 1), dropped: new(atomic.Uint64)} }

// put adds a message. It never waits.
func (q *queue) put(m message) {
	q.mu.Lock()
	q.messages = append(q.messages, m)
	q.bytes += m.bytes()
	for len(q.messages) > maxWaiting || q.bytes > maxWaitingBytes {
		q.dropOldestLocked()
	}
	q.mu.Unlock()

	select {
	case q.more <- struct{}{}:
	default:
	}
}

// take removes the oldest message that is not too old.
func (q *queue) take() (m message, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.messages) > 0 {
		if m = q.messages[0]; time.Since(m.at) <= maxAge {
			q.removeOldestLocked()
			return m, true
		}
		q.dropOldestLocked()
	}
	return message{}, false
}

// putBack returns the last taken message, which is the oldest. It is dropped if there is no room.
func (q *queue) putBack(m message) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.messages) == maxWaiting || q.bytes+m.bytes() > maxWaitingBytes {
		q.dropped.Add(1)
		return
	}
	q.messages = append([]message{m}, q.messages...)
	q.bytes += m.bytes()
}

func (q *queue) dropOldestLocked() {
	q.removeOldestLocked()
	q.dropped.Add(1)
}

func (q *queue) removeOldestLocked() {
	q.bytes -= q.messages[0].bytes()
	q.messages[0] = message{} // for the garbage collector
	q.messages = q.messages[1:]
}

// counts returns how many messages wait and how many were dropped.
func (q *queue) counts() (waiting int, dropped uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.messages), q.dropped.Load()
}
