package batching

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// each is the time of a batch: 100 and another 10 per request.
func each(n int) time.Duration { return time.Duration(100 + 10*n) }

func slots(rs []Request) []uint32 {
	s := []uint32{}
	for _, r := range rs {
		s = append(s, r.Slot)
	}
	return s
}

func TestPickOrder(t *testing.T) {
	soon, later, far := int64(1000), int64(2000), int64(3000)
	for _, c := range []struct {
		name    string
		pending []Request
		limit   int
		batch   []uint32
		late    []uint32
	}{
		{"nothing", nil, 4, nil, nil},
		{"earliest deadline first", []Request{{Slot: 1, Deadline: far}, {Slot: 2, Deadline: soon}, {Slot: 3, Deadline: later}}, 2,
			[]uint32{2, 3}, nil},
		{"higher priority before deadline", []Request{{Slot: 1, Deadline: soon}, {Slot: 2, Deadline: far, Priority: 1}}, 1,
			[]uint32{2}, nil},
		{"ties by slot", []Request{{Slot: 9, Deadline: soon}, {Slot: 3, Deadline: soon}}, 1, []uint32{3}, nil},
		{"expired", []Request{{Slot: 1, Deadline: -1}, {Slot: 2, Deadline: soon}}, 4, []uint32{2}, []uint32{1}},
		{"expires while the batch runs", []Request{{Slot: 1, Deadline: 109}, {Slot: 2, Deadline: 110}}, 1,
			[]uint32{2}, []uint32{1}},
		{"priority does not save what is late", []Request{{Slot: 1, Deadline: 50, Priority: 9}, {Slot: 2, Deadline: soon}}, 4,
			[]uint32{2}, []uint32{1}},
		{"all late", []Request{{Slot: 1, Deadline: 5}, {Slot: 2, Deadline: 5}}, 4, nil, []uint32{1, 2}},
		{"not smaller for the one that expires", []Request{{Slot: 1, Deadline: 115}, {Slot: 2, Deadline: soon}, {Slot: 3, Deadline: soon}}, 4,
			[]uint32{2, 3}, []uint32{1}},
		{"no limit below 1", []Request{{Slot: 1, Deadline: soon}}, 0, []uint32{1}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			batch, late := Pick(c.pending, 0, c.limit, each)
			if got := slots(c.pending[:batch]); !slices.Equal(got, c.batch) {
				t.Errorf("batch %v, want %v", got, c.batch)
			}
			got := slots(c.pending[len(c.pending)-late:])
			slices.Sort(got)
			if !slices.Equal(got, c.late) {
				t.Errorf("late %v, want %v", got, c.late)
			}
		})
	}
}

// A batch is not padded if that answers fewer requests per second.
func TestPickPadding(t *testing.T) {
	padded := func(n int) time.Duration { // ladder 1, 16, 32; nearly all cost is in proportion
		switch {
		case n <= 1:
			return 20
		case n <= 16:
			return 170
		}
		return 330
	}
	for n, want := range map[int]int{16: 16, 17: 16, 30: 16, 32: 32} {
		pending := make([]Request, n)
		for i := range pending {
			pending[i] = Request{Slot: uint32(i), Deadline: 1e6}
		}
		if batch, _ := Pick(pending, 0, 64, padded); batch != want {
			t.Errorf("batch of %d from %d pending, want %d", batch, n, want)
		}
	}
}

// The batch, the waiting and the late requests are all of the pending ones.
func TestPick(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pending := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Request {
			return Request{
				Slot:     rapid.Uint32Range(0, 1000).Draw(t, "slot"),
				Priority: rapid.Uint8Range(0, 2).Draw(t, "priority"),
				Deadline: rapid.Int64Range(-100, 2000).Draw(t, "deadline"),
			}
		}), 0, 100).Draw(t, "pending")
		limit := rapid.IntRange(1, 64).Draw(t, "limit")
		was := slices.Clone(pending)
		shuffled := rapid.Permutation(was).Draw(t, "order")

		batch, late := Pick(pending, 0, limit, each)
		waiting := len(pending) - batch - late
		if batch < 0 || late < 0 || waiting < 0 || batch > limit {
			t.Fatalf("batch %d, late %d of %d, limit %d", batch, late, len(pending), limit)
		}
		if batch == 0 && waiting > 0 {
			t.Fatalf("%d wait and nothing runs", waiting)
		}
		end := int64(each(max(1, batch)))
		for _, r := range pending[:batch] {
			if r.Deadline < end {
				t.Fatalf("dispatched %+v into a batch that ends at %d", r, end)
			}
		}
		for _, r := range pending[len(pending)-late:] {
			if r.Deadline >= end {
				t.Fatalf("%+v is called late, the batch ends at %d", r, end)
			}
		}
		for _, w := range pending[batch : batch+waiting] {
			if batch > 0 && byPriority(w, pending[batch-1]) < 0 {
				t.Fatalf("%+v waits behind %+v", w, pending[batch-1])
			}
		}
		if !slices.IsSortedFunc(pending[:batch], byPriority) {
			t.Fatal("the batch is not in order")
		}
		slices.SortFunc(was, byPriority)
		all := slices.Clone(pending)
		slices.SortFunc(all, byPriority)
		if !slices.EqualFunc(was, all, func(a, b Request) bool { return byPriority(a, b) == 0 }) {
			t.Fatal("requests were lost or invented")
		}
		if b, l := Pick(shuffled, 0, limit, each); b != batch || l != late {
			t.Fatalf("in another order: batch %d, late %d; was %d, %d", b, l, batch, late)
		}
	})
}

func TestPickAllocations(t *testing.T) {
	pending := make([]Request, 256)
	for i := range pending {
		pending[i] = Request{Slot: uint32(i), Deadline: int64(i * 37 % 256 * 10)}
	}
	expected := each
	if n := testing.AllocsPerRun(100, func() {
		Pick(pending, 0, 32, expected)
	}); n != 0 {
		t.Errorf("%v allocations a dispatch", n)
	}
}

func TestProbe(t *testing.T) {
	const slo = 10 * time.Millisecond
	r := newRule(t, SLAB, Config{SLO: slo, Ladder: upTo(8)})
	every := int64(r.probeEvery())
	s := r.Next(r.Start(), Observation{Batch: 1, Padded: 1, Elapsed: time.Second, Ended: 7})
	expected := func(n int) time.Duration { return r.Expected(s, n) }
	for _, c := range []struct {
		name        string
		now         int64
		deadlines   []int64 // from now
		demoted     bool
		batch, late int
		first       uint32 // slot of the first request, if there is a batch
	}{
		{"too early", 7 + every - 1, []int64{5, 9, 7}, false, 0, 3, 0},
		{"the request with the most time left", 7 + every, []int64{5, 9, 7}, false, 1, 2, 1},
		{"no time left", 7 + every, []int64{0, -1}, false, 0, 2, 0},
		{"demoted batches are probed by themselves", 7, []int64{5, 9, 7}, true, 1, 2, 1},
		{"nothing to probe with", 7 + every, nil, false, 0, 0, 0},
	} {
		var pending []Request
		for slot, d := range c.deadlines {
			pending = append(pending, Request{Slot: uint32(slot), Deadline: c.now + d})
		}
		now := c.now
		if c.demoted {
			now += every
			for i := range pending {
				pending[i].Deadline += every
			}
		}
		batch, late := r.Pick(s, pending, now, c.demoted, expected)
		if batch != c.batch || late != c.late || batch > 0 && pending[0].Slot != c.first {
			t.Errorf("%s: batch of %d, %d late, want %d and %d", c.name, batch, late, c.batch, c.late)
		}
	}
}

func TestPickDemoted(t *testing.T) {
	r := newRule(t, SLAB, Config{SLO: time.Second, Ladder: upTo(8)})
	s := r.Start()
	s.Limit, s.stretch, s.demoted = 8, 3, 1e6
	pending := []Request{
		{Slot: 1, Deadline: 1e6 + 100}, // late at any priority: one takes 110
		{Slot: 2, Deadline: 1e6 + 320}, // late at the low priority: one takes 330
		{Slot: 3, Deadline: 1e6 + 370},
		{Slot: 4, Deadline: 1e6 + 380},
	}
	batch, late := r.Pick(s, pending, 1e6, true, each)
	if got := slots(pending); batch != 2 || late != 1 || !slices.Equal(got, []uint32{3, 4, 2, 1}) {
		t.Errorf("demoted: batch of %d and %d late of %v, want 3 and 4 in the batch and 1 late", batch, late, got)
	}
	// Two take 360 and three 390: the third waits for a guaranteed batch.
	batch, late = r.Pick(s, pending[:3], 1e6, true, each)
	if batch != 2 || late != 0 {
		t.Errorf("demoted: batch of %d and %d late, want 2 and 0", batch, late)
	}
	batch, late = r.Pick(s, pending[:3], 1e6, false, each)
	if batch != 3 || late != 0 {
		t.Errorf("guaranteed: batch of %d and %d late, want 3 and 0", batch, late)
	}
	if n := testing.AllocsPerRun(100, func() { r.Pick(s, pending, 1e6, true, each) }); n != 0 {
		t.Errorf("%v allocations per dispatch", n)
	}
}

// A trial of a larger size pads requests that would otherwise run in two smaller batches.
func TestPickTrial(t *testing.T) {
	r := newRule(t, SLAB, Config{SLO: time.Second, Ladder: []int{1, 16}})
	expected := func(n int) time.Duration { return time.Duration(r.Pad(n)) }
	pending := make([]Request, 8)
	for i := range pending {
		pending[i] = Request{Slot: uint32(i), Deadline: 1e6}
	}
	s := r.Start()
	s.Limit = 16
	if batch, _ := r.Pick(s, pending, 0, false, expected); batch != 1 {
		t.Errorf("batch of %d without a trial, want 1", batch)
	}
	s.probe = 16
	if batch, _ := r.Pick(s, pending, 0, false, expected); batch != 8 {
		t.Errorf("batch of %d on trial, want all 8", batch)
	}
}

func TestMoveFirst(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		requests := make([]Request, rapid.IntRange(1, 40).Draw(t, "requests"))
		for i := range requests {
			requests[i] = Request{Slot: uint32(i), Priority: rapid.Uint8Range(0, 2).Draw(t, "priority"), place: rapid.Uint32Range(0, 5).Draw(t, "place")}
		}
		n := rapid.IntRange(0, len(requests)).Draw(t, "n")
		want := slices.Clone(requests)
		slices.SortFunc(want, byPriority)
		moveFirst(requests, n)
		if got := slots(requests[:n]); !slices.Equal(got, slots(want[:n])) {
			t.Fatalf("first %d: %v, want %v", n, got, slots(want[:n]))
		}
		slices.SortFunc(requests, byPriority)
		if !slices.Equal(requests, want) {
			t.Fatalf("lost: %v", requests)
		}
	})
}
