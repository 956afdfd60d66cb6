package gateway

import (
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/gateway/history"
)

// The limits of event streams. A reader that does not keep up loses events, and notices by their
// numbers.
const (
	maxReaders   = 256
	readerQueue  = 4
	writeTimeout = 5 * time.Second
)

// events passes each update to all readers.
type events struct {
	mu      sync.Mutex
	number  uint64
	readers map[chan []byte]bool
	closed  bool
}

func newEvents() *events { return &events{readers: map[chan []byte]bool{}} }

// update is the JSON of an event.
type update struct {
	Number uint64 `json:"number"`
	*history.Update
	Wall []shown `json:"wall,omitempty"`
}

// observe records a sample of the manager and passes what is new to the readers.
func (s *server) observe(sample *control.Sample) {
	u := s.history.Add(sample)
	s.events.publish(&u, s.wall.list())
	if s.events.hasReaders() {
		s.pictures.observe(sample)
	}
}

// publish encodes an update once for all readers.
func (e *events) publish(u *history.Update, wall []shown) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.number++
	if len(e.readers) == 0 {
		return
	}
	text, err := json.Marshal(update{e.number, u, wall})
	if err != nil {
		return // it has no value that JSON lacks
	}
	text = fmt.Appendf(nil, "data: %s\n\n", text)
	for reader := range e.readers {
		select {
		case reader <- text:
		default:
		}
	}
}

// hasReaders reports whether a page is open.
func (e *events) hasReaders() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.readers) > 0
}

// close ends all readers, and those that come.
func (e *events) close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	for reader := range e.readers {
		close(reader)
	}
	clear(e.readers)
}

// subscribe adds a reader; nil if there are too many, or after close.
func (e *events) subscribe() (reader chan []byte) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed || len(e.readers) >= maxReaders {
		return nil
	}
	reader = make(chan []byte, readerQueue)
	e.readers[reader] = true
	return reader
}

func (e *events) unsubscribe(reader chan []byte) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.readers, reader)
}

// serve streams the events until the client leaves, reads too slowly, or the server ends.
func (e *events) serve(w http.ResponseWriter, r *http.Request) {
	reader := e.subscribe()
	if reader == nil {
		writeError(w, http.StatusServiceUnavailable, fmt.Errorf("%d pages read events, want this one later", maxReaders))
		return
	}
	defer e.unsubscribe(reader)
	control := http.NewResponseController(w)
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	if err := control.Flush(); err != nil {
		return
	}
	for {
		select {
		case text, open := <-reader:
			if !open {
				return
			}
			if _, err := w.Write(text); err != nil {
				return
			}
			if err := control.Flush(); err != nil {
				return
			}
		case <-r.Context().Done():
			return
		}
	}
}
