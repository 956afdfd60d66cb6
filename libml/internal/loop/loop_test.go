package loop

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/penstock/penstock/batching"
	"github.com/penstock/penstock/internal/testing/functiontest"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/libml/framework"
	"github.com/penstock/penstock/shm"
	"github.com/penstock/penstock/wire"
)

// A batch is as large as the rule and the waiting requests allow, padded to a configured size.
func TestBatchSize(t *testing.T) {
	h, f := newHarness(t, functiontest.Card()), functiontest.NewFake()
	l := h.loop(f)
	l.Queue.Expected = func(int) time.Duration { return time.Microsecond } // the same for every size
	for _, c := range []struct {
		name   string
		limit  float64
		wait   uint32
		batch  int
		padded int
	}{
		{"one", 1, 5, 1, 1},
		{"the largest size within the limit", 3.9, 5, 2, 2},
		{"all that wait", 8, 5, 5, 8},
		{"at most the ladder's last", 64, 20, 8, 8},
	} {
		t.Run(c.name, func(t *testing.T) {
			l.Queue.State = l.Queue.Rule.Start()
			l.Queue.State.Limit = c.limit
			f.Serve()
			for slot := range c.wait {
				h.Publish(slot, h.Picture(byte(slot)), nil)
			}
			if err := l.turn(); err != nil {
				t.Fatal(err)
			}
			if want := []int{c.padded}; !slices.Equal(f.Ran, want) {
				t.Errorf("ran batches of %v, want %v", f.Ran, want)
			}
			for _, slot := range h.Replies(c.batch) {
				r := h.Channel.Result(slot)
				h.Answered(slot, h.Picture(byte(slot)))
				if int(r.Batch) != c.batch || r.ModelVersion != 7 {
					t.Errorf("slot %d has batch %d of version %d, want %d of 7", slot, r.Batch, r.ModelVersion, c.batch)
				}
				whole := h.Table.Request(slot).Complete
				if !(whole <= r.Dispatched && r.Dispatched <= r.Gathered && r.Gathered <= r.Inferred && r.Inferred <= l.Ring.LastBatchEnd()) {
					t.Errorf("whole %d, %+v, batch end %d are not in order", whole, r, l.Ring.LastBatchEnd())
				}
			}
			h.Silent()
			// The other requests follow, each once.
			for len(l.Queue.Pending) > 0 {
				if err := l.turn(); err != nil {
					t.Fatal(err)
				}
			}
			for _, slot := range h.Replies(int(c.wait) - c.batch) {
				h.Answered(slot, h.Picture(byte(slot)))
			}
			h.Silent()
		})
	}
}

// Old contents of the tensor must not remain in this batch.
func TestPadding(t *testing.T) {
	h, f := newHarness(t, functiontest.Card()), functiontest.NewFake()
	l := h.loop(f)
	l.Queue.Expected = func(int) time.Duration { return time.Microsecond }
	l.Queue.State.Limit = 4
	for i := range h.Tensors.Bytes() {
		h.Tensors.Bytes()[i] = 0xee
	}
	for slot := range uint32(3) {
		h.Publish(slot, h.Picture(byte(slot)), nil)
	}
	if err := l.turn(); err != nil {
		t.Fatal(err)
	}
	h.Replies(3)
	size := h.Card.Input.TensorBytes()
	if image := f.InputOf(4)[3*size:]; slices.Max(image) != 0 {
		t.Error("the image that pads the batch is not blank")
	}
	if beyond := h.Tensors.Bytes()[4*size : 8*size]; slices.Min(beyond) != 0xee {
		t.Error("images beyond the padded batch were written")
	}
}

// Requests that cannot meet their deadline are answered late and do not run.
func TestLateRequests(t *testing.T) {
	h, f := newHarness(t, functiontest.Card()), functiontest.NewFake()
	l := h.loop(f)
	l.Queue.State.Limit = 8
	past := func(r *shm.Request, _ []shm.Fragment) { r.Deadline = r.Complete - 1 }
	h.Publish(1, h.Picture(1), past)
	h.Publish(2, h.Picture(2), nil)
	h.Publish(3, h.Picture(3), past)
	if err := l.turn(); err != nil {
		t.Fatal(err)
	}
	for _, slot := range h.Replies(3) {
		if slot == 2 {
			h.Answered(slot, h.Picture(2))
			continue
		}
		r := h.Channel.Result(slot)
		if want := (shm.Result{Status: uint8(wire.StatusLate), ModelVersion: 7}); r != want {
			t.Errorf("slot %d is %+v, want %+v", slot, r, want)
		}
	}
	if want := []int{1}; !slices.Equal(f.Ran, want) {
		t.Errorf("ran batches of %v, want %v", f.Ran, want)
	}

	// All requests are late: nothing runs, and the rule learns of it.
	before := l.Queue.State
	h.Publish(4, h.Picture(4), past)
	if err := l.turn(); err != nil {
		t.Fatal(err)
	}
	if got := h.Status(h.Replies(1)[0]); got != wire.StatusLate {
		t.Errorf("status %v, want late", got)
	}
	if len(f.Ran) != 1 {
		t.Errorf("ran batches of %v, want no more", f.Ran)
	}
	if want := l.Queue.Rule.Next(before, batching.Observation{Late: 1}); l.Queue.State != want {
		t.Errorf("state is %+v, want %+v", l.Queue.State, want)
	}
}

// Requests of a higher priority run first, then those with an earlier deadline.
func TestPriority(t *testing.T) {
	h, f := newHarness(t, functiontest.Card()), functiontest.NewFake()
	l := h.loop(f)
	priorities := map[uint32]uint8{1: 0, 2: 9, 3: 0, 4: 3}
	for slot := uint32(1); slot <= 4; slot++ {
		h.Publish(slot, h.Picture(byte(slot)), func(r *shm.Request, _ []shm.Fragment) {
			r.Priority = priorities[slot]
			r.Deadline -= int64(slot) * int64(time.Minute) // among equals, the more urgent one
		})
	}
	for range 4 {
		l.Queue.State = l.Queue.Rule.Start() // one at a time
		if err := l.turn(); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := h.Replies(4), []uint32{2, 4, 3, 1}; !slices.Equal(got, want) {
		t.Errorf("answered %v, want %v", got, want)
	}
}

// A batch that fails costs only its own requests.
func TestBatchFails(t *testing.T) {
	h, f := newHarness(t, functiontest.Card()), functiontest.NewFake()
	l := h.loop(f)
	l.Queue.Expected = func(int) time.Duration { return time.Microsecond }
	f.Failing = func(string) error { return functiontest.ErrFake }
	l.Queue.State.Limit = 2
	for slot := range uint32(4) {
		h.Publish(slot, h.Picture(byte(slot)), nil)
	}
	if err := l.turn(); !errors.Is(err, functiontest.ErrFake) {
		t.Fatalf("the turn gives %v, want %v", err, functiontest.ErrFake)
	}
	for _, slot := range h.Replies(2) {
		r := h.Channel.Result(slot)
		if wire.Status(r.Status) != wire.StatusFailed || r.Batch != 2 || r.Inferred == 0 || r.Length != 0 {
			t.Errorf("slot %d is %+v, want failed in a batch of 2", slot, r)
		}
	}
	h.Silent()
	f.Failing = nil
	for len(l.Queue.Pending) > 0 {
		if err := l.turn(); err != nil {
			t.Fatal(err)
		}
	}
	for _, slot := range h.Replies(2) {
		h.Answered(slot, h.Picture(byte(slot)))
	}
}

// failingImage is a framework that fails one image of each batch.
type failingImage struct {
	framework.Framework
	image int
}

func (f failingImage) InferBatch(slot, n int) error {
	return errors.Join(f.Framework.InferBatch(slot, n), &framework.ImagesError{Images: []int{f.image}, Err: functiontest.ErrFake})
}

// An image that fails costs only its own request.
func TestImageFails(t *testing.T) {
	h, f := newHarness(t, functiontest.Card()), functiontest.NewFake()
	l := h.loop(f)
	h.framework = failingImage{f, 1}
	l.Queue.Expected = func(int) time.Duration { return time.Microsecond }
	l.Queue.State.Limit = 4
	for slot := range uint32(3) {
		h.Publish(slot, h.Picture(byte(slot)), nil)
	}
	if err := l.turn(); !errors.Is(err, functiontest.ErrFake) {
		t.Errorf("the turn gives %v, want %v", err, functiontest.ErrFake)
	}
	for i, slot := range h.Replies(3) {
		if i != 1 {
			h.Answered(slot, h.Picture(byte(slot)))
		} else if r := h.Channel.Result(slot); wire.Status(r.Status) != wire.StatusFailed || r.Length != 0 {
			t.Errorf("slot %d is %+v, want failed", slot, r)
		}
	}
}

// The process does not trust the manager either, and a model may fail on one
// picture.
func TestInvalidRequests(t *testing.T) {
	for _, c := range []struct {
		name    string
		picture byte
		spoil   func(*shm.Request, []shm.Fragment)
	}{
		{"a fragment outside the slab", 2, func(_ *shm.Request, p []shm.Fragment) { p[0].Offset = 1 << 40 }},
		{"a slab that is not there", 2, func(_ *shm.Request, p []shm.Fragment) { p[1].Slab = 3 }},
		{"a gap", 2, func(_ *shm.Request, p []shm.Fragment) { p[0].Length-- }},
		{"no fragments", 2, func(r *shm.Request, _ []shm.Fragment) { r.Fragments = 0 }},
		{"more fragments than there can be", 2, func(r *shm.Request, p []shm.Fragment) { r.Fragments, p[1].Length = 1<<32-1, 0 }},
		{"another size", 2, func(r *shm.Request, _ []shm.Fragment) { r.Bytes = 1 << 30 }},
		{"outputs that are no numbers", functiontest.Poison, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			h, f := newHarness(t, functiontest.Card()), functiontest.NewFake()
			l := h.loop(f)
			l.Queue.Expected = func(int) time.Duration { return time.Microsecond }
			l.Queue.State.Limit = 4
			h.Publish(1, h.Picture(1), nil)
			h.Publish(2, h.Picture(c.picture), c.spoil)
			h.Publish(3, h.Picture(3), nil)
			if err := l.turn(); err == nil {
				t.Error("the turn does not say what was wrong")
			}
			for _, slot := range h.Replies(3) {
				if slot != 2 {
					h.Answered(slot, h.Picture(byte(slot)))
					continue
				}
				if r := h.Channel.Result(slot); wire.Status(r.Status) != wire.StatusFailed || r.Length != 0 {
					t.Errorf("slot 2 is %+v, want failed", r)
				}
			}
		})
	}
}

// The ring was idle only if work was there for a process that could not yet
// take it.
func TestHandoverIdle(t *testing.T) {
	second := int64(time.Second)
	for _, c := range []struct {
		name string
		// All times are before now: the end of the old process's last batch (0:
		// there was none), when the request was complete, and when the ring was
		// acquired.
		last, whole, acquired int64
		least                 int64 // -1: nothing stood still
	}{
		{"work waited through it", 5 * second, 9 * second, 2 * second, 5 * second},
		{"work came into it", 9 * second, 5 * second, 2 * second, 5 * second},
		{"work came after it", 9 * second, 2 * second, 5 * second, -1},
		{"no process served before", 0, 9 * second, 5 * second, -1},
	} {
		t.Run(c.name, func(t *testing.T) {
			h, f := newHarness(t, functiontest.Card()), functiontest.NewFake()
			l := h.loop(f)
			now := shm.Now()
			if c.last != 0 {
				l.Ring.BatchEnded(now - c.last)
			}
			l.acquired = now - c.acquired
			h.Publish(1, h.Picture(1), func(r *shm.Request, _ []shm.Fragment) { r.Complete = now - c.whole })
			for _, slot := range l.taken[:l.Ring.Take(l.taken)] {
				l.addPending(slot)
			}
			l.pick()
			l.figures.addHandover(l.idle(l.acquired))
			r := l.figures.published.Load()
			if r == nil || r.count != 1 {
				t.Fatalf("report is %+v, want one hand-over", r)
			}
			most := c.least
			if most >= 0 {
				most += shm.Now() - now
			}
			if r.idleNanos < c.least || r.idleNanos > most {
				t.Errorf("idle %d ns, want %d to %d", r.idleNanos, c.least, most)
			}
		})
	}
}

// If the manager reads no results, requests without room for theirs fail.
func TestNoRoom(t *testing.T) {
	h := newHarness(t, functiontest.Card())
	h.Channel.Close()
	h.Geometry.PoolBytes = 5 * 64 // an answer takes one line, its buffer four
	table, err := shm.NewTable("test", h.Geometry)
	must.OK(t, err)
	t.Cleanup(func() { table.Close() })
	h.Table = table
	h.Channel, err = shm.NewChannel("test", h.Geometry)
	must.OK(t, err)
	t.Cleanup(func() { h.Channel.Close() })
	l := h.loop(functiontest.NewFake())
	l.Queue.State.Limit = 8
	for slot := range uint32(3) {
		h.Publish(slot, h.Picture(byte(slot)), nil)
	}
	for len(l.Queue.Pending) > 0 || l.figures.ran.Load() == 0 {
		l.turn() // returns why the third fails
	}
	slots := make([]uint32, 4)
	n, err := h.Channel.Receive(slots, shm.Now())
	must.OK(t, err)
	if !slices.Equal(slots[:n], []uint32{0, 1, 2}) || h.Status(2) != wire.StatusFailed {
		t.Fatalf("answered %v, the last one as %v; want 3, and failed", slots[:n], h.Status(2))
	}
	h.Answered(0, h.Picture(0))
	h.Answered(1, h.Picture(1))
}

func TestBatchAllocations(t *testing.T) {
	h, f := newHarness(t, functiontest.Card()), functiontest.NewFake()
	l := h.loop(f)
	picture := h.Picture(1)
	late := func(r *shm.Request, _ []shm.Fragment) { r.Deadline = 1 }
	slots := make([]uint32, h.Geometry.Slots)
	turn := func() {
		for slot := range uint32(5) {
			h.Publish(slot, picture, nil)
		}
		h.Publish(5, picture, late)
		for got := 0; got < 6; {
			if err := l.turn(); err != nil {
				t.Fatal(err)
			}
			n, err := h.Channel.Receive(slots, shm.Now()+int64(functiontest.Patience))
			if err != nil {
				t.Fatal(err)
			}
			got += n
		}
	}
	if n := functiontest.Allocations(100, turn); n != 0 {
		t.Errorf("%v allocations in five requests and a late one, want none", n)
	}
	if len(f.Ran) < 100 {
		t.Fatalf("only %d batches ran", len(f.Ran))
	}
	h.Answered(0, picture)
}
