package loop

import (
	"slices"
	"time"

	"github.com/penstock/penstock/internal/streams"
	"github.com/penstock/penstock/libml/internal/tensors"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/shm"
	"github.com/penstock/penstock/wire"
)

// The limits of the states that a process keeps (docs/models.md).
const (
	maxStates      = 1 << 16
	maxStatesBytes = 64 << 20
	stateIdle      = 5 * time.Minute
)

// states keeps the state of each stream between its requests, if the card has state. At most one request of a stream is
// pending or in flight; others are held until it has been answered. The requests of a stream therefore run one
// after the other, and each gets the state of the one before.
type states struct {
	card  *models.Card
	bytes int // of a stream
	kept  *streams.Table[uint32, uint64, []byte]
	// held are the slots that wait, by stream. A stream with a request that is pending or in flight has an entry.
	held map[uint64][]uint32
}

// newStates returns nil if the card has no state. A nil states holds nothing.
func newStates(card *models.Card) *states {
	if len(card.State) == 0 {
		return nil
	}
	s := &states{card: card, bytes: card.StateBytes(), held: map[uint64][]uint32{}}
	s.kept = streams.New[uint32, uint64, []byte](min(maxStates, maxStatesBytes/max(s.bytes, 1)), stateIdle)
	return s
}

// hold reports whether a request must wait for another one of its stream. Waiting requests are in the order of their ids.
func (s *states) hold(ring *shm.Consumer, slot uint32) bool {
	if s == nil {
		return false
	}
	r := ring.Request(slot)
	waiting, busy := s.held[r.Stream]
	if !busy {
		s.held[r.Stream] = nil
		return false
	}
	at := len(waiting)
	for at > 0 && wire.SerialBefore(r.ID, ring.Request(waiting[at-1]).ID) {
		at--
	}
	s.held[r.Stream] = slices.Insert(waiting, at, slot)
	return true
}

// next returns the request that may run after another one of its stream, if one waits.
func (s *states) next(ring *shm.Consumer, after uint32) (slot uint32, ok bool) {
	if s == nil {
		return 0, false
	}
	stream := ring.Request(after).Stream
	waiting := s.held[stream]
	if len(waiting) == 0 {
		delete(s.held, stream)
		return 0, false
	}
	s.held[stream] = waiting[1:]
	return waiting[0], true
}

// load fills the states of a batch: those of its requests' streams. New streams begin with zero.
func (s *states) load(t *tensors.Tensors, ring *shm.Consumer, f *flight) {
	if s == nil {
		return
	}
	for i := range f.padded {
		var kept []byte
		if i < len(f.batch) {
			if v := s.kept.Find(f.dispatched, ring.Request(f.batch[i].Slot).Stream); v != nil {
				kept = *v
			}
		}
		for k, memory := range t.Before {
			size := s.card.State[k].Output.Bytes()
			image := memory[i*size:][:size]
			if kept == nil {
				clear(image)
				continue
			}
			kept = kept[copy(image, kept):]
		}
	}
}

// save keeps the state after request i of a batch. If the request failed, its stream begins with zero again.
func (s *states) save(t *tensors.Tensors, ring *shm.Consumer, slot uint32, i int, failed bool) {
	if s == nil {
		return
	}
	r := ring.Request(slot)
	if failed {
		s.kept.Remove(r.Stream)
		return
	}
	now := shm.Now()
	kept := s.kept.Find(now, r.Stream)
	if kept == nil {
		kept = s.kept.Add(now, r.Address, r.Stream)
		*kept = make([]byte, s.bytes)
	}
	to := *kept
	for k, memory := range t.After {
		size := s.card.State[k].Output.Bytes()
		to = to[copy(to, memory[i*size:][:size]):]
	}
}
