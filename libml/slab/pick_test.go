package slab

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// each makes every request cost 10 and a batch 100 at the start.
func each(n int) time.Duration { return time.Duration(100 + 10*n) }

func slots(rs []Request) []uint32 {
	s := []uint32{}
	for _, r := range rs {
		s = append(s, r.Slot)
	}
	return s
}

func TestPickDispatchesByPriorityThenDeadline(t *testing.T) {
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

func TestPickDoesNotPadAtALoss(t *testing.T) {
	padded := func(n int) time.Duration { // ladder 1, 16, 32; nearly all cost in proportion
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

func TestPickSplitsThePending(t *testing.T) {
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

func TestPickAllocatesNothing(t *testing.T) {
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
