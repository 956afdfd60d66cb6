package loop

import (
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/streams"
	"github.com/penstock/penstock/internal/testing/functiontest"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/shm"
	"github.com/penstock/penstock/wire"
)

// counter is a model with a state of two parts: each run adds the picture's first byte to both. An image's first output is
// the first part.
type counter struct {
	*functiontest.Fake
	loop  *Loop
	fails error
	ran   []int
}

func (c *counter) InferBatch(slot, n int) error {
	c.ran = append(c.ran, n)
	t := c.loop.Tensors[slot]
	for i := range n {
		add := t.Input.Bytes()[i*c.loop.Card.Input.TensorBytes()]
		for k, before := range t.Before {
			size := c.loop.Card.State[k].Output.Bytes()
			for at := i * size; at < (i+1)*size; at++ {
				t.After[k][at] = before[at] + add
			}
		}
		output := t.Outputs[0].Bytes()[i*c.loop.Card.Outputs[0].Bytes():]
		copy(output, models.F32.Append(nil, float64(t.After[0][i*c.loop.Card.State[0].Output.Bytes()])))
	}
	return c.fails
}

func statefulCard() *models.Card {
	card := functiontest.Card()
	card.State = []models.State{
		{Input: "h", Output: models.Tensor{Name: "hn", Type: models.U8, Shape: []int64{3}}},
		{Input: "c", Output: models.Tensor{Name: "cn", Type: models.F32, Shape: nil}},
	}
	return card
}

// publish publishes a request of a stream that adds a number to the stream's counters.
func (h *harness) publish(slot uint32, stream uint64, id uint32, add byte) {
	picture := h.Picture(0)
	picture[0] = add
	h.Publish(slot, picture, func(r *shm.Request, _ []shm.Fragment) { r.ID, r.Stream, r.Address = id, stream, 1 })
}

// counts runs batches until none is pending, and returns the counters after n requests, by slot; -1 for one that failed.
func (h *harness) counts(l *Loop, n int) map[uint32]int {
	for more := true; more; more = len(l.Queue.Pending) > 0 {
		if err := l.turn(); err != nil && h.framework.(*counter).fails == nil {
			h.TB.Fatal(err)
		}
	}
	counts := map[uint32]int{}
	for _, slot := range h.Replies(n) {
		counts[slot] = -1
		if h.Status(slot) == wire.StatusOK {
			var c wire.Content
			must.OK(h.TB, c.Decode(wire.KindTensors, h.Payload(slot)))
			counts[slot] = int(c.Tensors[0].Values().([]float32)[0])
		}
	}
	return counts
}

func TestStates(t *testing.T) {
	h, f := newHarness(t, statefulCard()), functiontest.NewFake()
	l := h.loop(f)
	model := &counter{Fake: f, loop: l}
	h.framework = model
	l.Queue.State.Limit = 8
	check := func(name string, want map[uint32]int, ran ...int) {
		t.Helper()
		if got := h.counts(l, len(want)); !maps.Equal(got, want) || !slices.Equal(model.ran, ran) {
			t.Errorf("%s: counted %v in batches of %v, want %v in %v", name, got, model.ran, want, ran)
		}
		model.ran = nil
		if len(l.states.held) != 0 {
			t.Errorf("%s: held %v", name, l.states.held)
		}
	}

	// Streams share batches, and no batch has two requests of one stream.
	h.publish(1, 10, 100, 1)
	h.publish(2, 20, 200, 5)
	h.publish(3, 10, 102, 3)
	h.publish(4, 10, 101, 2) // sent before the one in slot 3
	h.publish(5, 30, 300, 7)
	check("three streams", map[uint32]int{1: 1, 2: 5, 5: 7, 4: 3, 3: 6}, 4, 1, 1)

	h.publish(1, 20, 201, 1)
	h.publish(2, 10, 103, 1)
	check("the next requests", map[uint32]int{1: 6, 2: 7}, 2)

	// A padded image and a new stream begin with zero.
	h.publish(1, 40, 400, 9)
	check("a new stream", map[uint32]int{1: 9}, 1)

	model.fails = errors.New("no")
	h.publish(1, 10, 104, 1)
	check("a failure", map[uint32]int{1: -1}, 1)
	model.fails = nil
	h.publish(1, 10, 105, 1)
	h.publish(2, 20, 202, 1)
	check("after the failure", map[uint32]int{1: 1, 2: 7}, 2)

	// A request that is late does not change the state, and does not hold others.
	late := h.Picture(0)
	h.Publish(3, late, func(r *shm.Request, _ []shm.Fragment) { r.ID, r.Stream, r.Deadline = 203, 20, r.Complete-1 })
	h.publish(4, 20, 204, 1)
	check("a late request", map[uint32]int{3: -1, 4: 8}, 1)
}

// More streams than there is room for take each other's place, and no memory.
func TestManyStreams(t *testing.T) {
	h, f := newHarness(t, statefulCard()), functiontest.NewFake()
	l := h.loop(f)
	h.framework = &counter{Fake: f, loop: l}
	l.states.kept = streams.New[uint32, uint64, []byte](3, time.Minute)
	for stream := range uint64(20) {
		h.publish(1, 100+stream, uint32(stream), 1)
		if got := h.counts(l, 1); got[1] != 1 {
			t.Fatalf("stream %d begins with %v", stream, got)
		}
	}
	if l.states.kept.Len() != 3 {
		t.Errorf("%d streams, want 3", l.states.kept.Len())
	}
	for stream, want := range map[uint64]int{119: 2, 118: 2, 117: 2} {
		h.publish(1, stream, 50, 1)
		if got := h.counts(l, 1); got[1] != want {
			t.Errorf("stream %d counts %v, want %d", stream, got, want)
		}
	}
}

// Another request of a stream that has a state allocates nothing.
func TestStateAllocations(t *testing.T) {
	s := newStates(statefulCard())
	*s.kept.Add(0, 1, 2) = make([]byte, s.bytes)
	if n := testing.AllocsPerRun(100, func() { s.kept.Find(1, 2) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
