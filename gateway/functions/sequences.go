package functions

import (
	"sync"
	"time"

	"github.com/penstock/penstock/internal/streams"
)

// Sequence names requests of one user of the gateway that a model with state runs one after the other, each with the state
// of the one before. The zero value is a request by itself.
type Sequence struct {
	// User is the address of the user, so that no user gets the state of another one's sequence.
	User, Name string
	// Start begins the sequence again.
	Start bool
}

// sequences gives sequences the ids of streams of the gateway's client.
type sequences struct {
	mu    sync.Mutex // guards all below
	last  uint32
	known *streams.Table[string, Sequence, uint32] // by user
}

// The limits of a function's sequences, which are those of the states in its process.
const (
	maxSequences = 1 << 16
	sequenceIdle = 5 * time.Minute
)

func newSequences() *sequences {
	return &sequences{known: streams.New[string, Sequence, uint32](maxSequences, sequenceIdle)}
}

// stream returns the stream of a sequence. Requests without one, and sequences that begin, get a new stream.
func (s *sequences) stream(q Sequence) uint32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	start := q.Start
	q.Start = false
	if q.Name != "" {
		now := time.Now().UnixNano()
		id := s.known.Find(now, q)
		if id != nil && !start {
			return *id
		}
		if id == nil {
			id = s.known.Add(now, q.User, q)
		}
		defer func() { *id = s.last }()
	}
	s.last++
	return s.last
}
