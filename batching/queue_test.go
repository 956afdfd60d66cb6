package batching

import (
	"slices"
	"testing"
	"time"
)

// newQueue returns a queue of batches of 1, 2, 4 or 8 that take 10 ms, with waiting requests.
func newQueue(t *testing.T, waiting int) *Queue {
	t.Helper()
	q := NewQueue(newRule(t, SLAB, Config{SLO: time.Second, Ladder: []int{1, 2, 4, 8}}), 16, 2)
	for _, n := range []int{1, 2, 4, 8} {
		q.State = q.Rule.Warm(q.State, n, 10*time.Millisecond)
	}
	q.State.Limit, q.Lead = 8, 1500*time.Microsecond
	for slot := range waiting {
		q.Add(Request{Slot: uint32(slot), Deadline: int64(time.Second)})
	}
	return q
}

func TestMayBegin(t *testing.T) {
	const ms = time.Millisecond
	plain, low := Running{Padded: 8}, Running{Padded: 8, Demoted: true}
	for _, c := range []struct {
		name    string
		waiting int
		running []Running
		now     time.Duration
		demoted bool
		set     func(q *Queue)
		want    bool
	}{
		{"no requests", 0, nil, 0, false, nil, false},
		{"idle device", 1, nil, 0, false, nil, true},
		{"idle device, demoted", 1, nil, 0, true, nil, true},
		{"all places taken", 8, []Running{plain, low}, 10 * ms, false, nil, false},
		{"batch just began", 8, []Running{plain}, 0, false, nil, false},
		{"batch just began, process moves", 1, []Running{plain}, 0, false, func(q *Queue) { q.Elsewhere = true }, true},
		{"batch about to end", 1, []Running{plain}, 9 * ms, false, nil, true},
		{"batch about to end, demoted", 1, []Running{plain}, 9 * ms, true, nil, true},
		{"long lead counts as half a batch", 1, []Running{plain}, 4 * ms, false, func(q *Queue) { q.Lead = 20 * ms }, false},
		{"answers are not on the device", 1, []Running{plain}, 8 * ms, false, func(q *Queue) { q.Answering = ms }, true},
		{"answers count as a quarter", 1, []Running{plain}, 5 * ms, false, func(q *Queue) { q.Answering = time.Hour }, false},
		{"half full, few requests", 3, []Running{plain}, 9 * ms, false, func(q *Queue) { q.HalfFull = true }, false},
		{"half full, half a batch", 4, []Running{plain}, 0, false, func(q *Queue) { q.HalfFull = true }, true},
		{"next to a demoted batch", 1, []Running{low}, 0, false, nil, true},
		{"a second demoted batch", 8, []Running{low}, 10 * ms, true, nil, false},
		{"demoted, none was worth beginning", 1, nil, 0, true, func(q *Queue) { q.retryAt = int64(ms) }, false},
		{"demoted, that time has come", 1, nil, ms, true, func(q *Queue) { q.retryAt = int64(ms) }, true},
		{"demoted, another request", 1, nil, 0, true, func(q *Queue) { q.retryAt = int64(ms); q.Add(Request{}) }, true},
		{"within the guarantee again", 1, nil, 0, false, func(q *Queue) { q.retryAt = int64(ms) }, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			q := newQueue(t, c.waiting)
			if q.Running = append(q.Running, c.running...); c.set != nil {
				c.set(q)
			}
			if got := q.MayBegin(int64(c.now), c.demoted); got != c.want {
				t.Errorf("a batch may begin: %v, want %v", got, c.want)
			}
		})
	}
}

// A queue measures whether HalfFull is better, unless that is configured.
func TestQueueOverlap(t *testing.T) {
	for _, configured := range []bool{false, true} {
		q := newQueue(t, 0)
		q.HalfFull = configured
		for ended := int64(1); ended < 1e4 && q.overlap == (Overlap{}) || ended < 100; ended++ {
			q.Begin(ended-1, Choice{Padded: 8}, false)
			q.Remove(0, ended)
			q.End(Observation{Batch: 8, Padded: 8, Elapsed: 1, Ended: ended, Late: 1}, 0, false)
		}
		if measured := q.overlap != (Overlap{}); measured == configured {
			t.Errorf("configured %v, measured %v", configured, measured)
		}
	}
}

// Without guaranteed batches a demoted one that is not worth beginning waits for another request.
func TestQueueRetry(t *testing.T) {
	for _, refilled := range []int64{1<<63 - 1, 1007} {
		q := newQueue(t, 1)
		q.State.stretch, q.State.demoted, q.State.ended = 1e6, 1000, 1000
		if choice, late := q.Pick(1000, true, refilled); choice.Batch != 0 || len(late) != 0 || q.ReadyAt() != refilled {
			t.Errorf("%+v, %d late, again at %d; want no batch, and again at %d", choice, len(late), q.ReadyAt(), refilled)
		}
	}
}

func TestMaxBatch(t *testing.T) {
	for _, c := range []struct{ waiting, limit, want int }{{5, 0, 5}, {5, 8, 5}, {8, 5, 4}, {3, 4, 3}, {8, 1, 1}} {
		q := newQueue(t, c.waiting)
		q.MaxBatch = c.limit
		if got, _ := q.Pick(0, false, 0); got.Batch != c.want || got.Full != (got.Batch == q.Size()) {
			t.Errorf("%d requests with a limit of %d: %+v, want a batch of %d", c.waiting, c.limit, got, c.want)
		}
	}
}

// The rule learns each late request once, also those of batches that were picked and did not begin.
func TestLateOfBatchesThatWait(t *testing.T) {
	q := newQueue(t, 0)
	add := func(requests int, deadline time.Duration) {
		for range requests {
			q.Add(Request{Deadline: int64(deadline)})
		}
	}
	add(8, time.Hour) // the batch that waits for its turn
	pick := func(now time.Duration) (c Choice, late int) {
		c, requests := q.Pick(int64(now), false, 0)
		return c, len(requests)
	}
	for i, late := range []int{3, 0, 2} {
		now := time.Duration(i+1) * 20 * time.Millisecond
		add(late, now)
		if c, got := pick(now); c.Batch != 8 || got != late {
			t.Fatalf("pick %d: a batch of %d and %d late, want 8 and %d", i, c.Batch, got, late)
		}
	}
	c, _ := pick(70 * time.Millisecond)
	q.Begin(int64(70*time.Millisecond), c, false)
	add(1, time.Hour)
	if next, _ := pick(71 * time.Millisecond); c.Late != 5 || next.Late != 0 {
		t.Errorf("the batch that begins has %d late requests and the next one %d, want 5 and 0", c.Late, next.Late)
	}

	q.Remove(0, 80e6)
	q.End(Observation{Batch: 8, Padded: 8, Elapsed: 10 * time.Millisecond, Ended: 80e6, Late: c.Late}, 0, false)
	add(1, 85*time.Millisecond)
	q.Pending, q.State.Limit = q.Pending[len(q.Pending)-1:], 1
	if empty, late := pick(90 * time.Millisecond); empty.Batch != 0 || late != 1 || q.State.Misses != 1 {
		t.Fatalf("%+v, %d late, %d misses; want no batch, and one late request learned at once", empty, late, q.State.Misses)
	}
	add(1, time.Hour)
	if next, _ := pick(91 * time.Millisecond); next.Late != 0 {
		t.Error("late requests are learned twice")
	}
}

func TestQueueLearns(t *testing.T) {
	q := newQueue(t, 0)
	for range 100 {
		q.LearnLead(time.Second)
		q.LearnAnswering(time.Second)
	}
	for _, got := range []time.Duration{q.Lead, q.Answering} {
		if got < 990*time.Millisecond || got > time.Second {
			t.Errorf("%v after many of 1 s", got)
		}
	}
}

// A batch that begins before the requests of the one before are answered has waited for that one.
func TestQueueRemove(t *testing.T) {
	for _, c := range []struct {
		demoted bool
		want    time.Duration
	}{{false, 10}, {true, 0}} {
		q := newQueue(t, 0)
		q.Begin(100, Choice{Padded: 1}, c.demoted)
		q.Add(Request{Whole: 110, Deadline: int64(time.Hour)})
		q.Remove(0, 120)
		if got, _ := q.Pick(125, false, 0); got.Batch != 1 || got.Waited != c.want || len(q.Running) != 0 {
			t.Errorf("after a batch, demoted %v, one of %d that waited %v, want %v", c.demoted, got.Batch, got.Waited, c.want)
		}
	}
}

func TestQueueAllocations(t *testing.T) {
	q, now := newQueue(t, 0), int64(0)
	if n := testing.AllocsPerRun(100, func() {
		now += int64(time.Millisecond)
		q.Add(Request{Whole: now, Deadline: now + int64(time.Second)})
		if !q.MayBegin(now, false) {
			t.Fatal("no batch may begin")
		}
		c, _ := q.Pick(now, false, 0)
		q.Begin(now, c, false)
		q.Remove(0, now+1)
		q.End(Observation{Batch: c.Batch, Padded: c.Padded, Elapsed: 1, Ended: now + 1}, 0, false)
	}); n > 0 {
		t.Errorf("a batch allocates %v times", n)
	}
}

// A batch has requests of one size: that of the request that goes first. Each size has its own times.
func TestSizesOfRequests(t *testing.T) {
	const ms = int64(time.Millisecond)
	q := newQueue(t, 0)
	q.Places = 1
	slow := q.Rule.Start()
	for _, n := range []int{1, 2, 4, 8} {
		slow = q.Rule.Warm(slow, n, 100*time.Millisecond)
	}
	slow.Limit = 8
	q.States = []State{q.State, slow}
	deadlines := map[uint32]int64{0: 500, 1: 60, 2: 300, 3: 50, 4: 400, 5: 5}
	for slot, deadline := range deadlines {
		q.Add(Request{Slot: slot, Deadline: deadline * ms, Size: uint16(slot % 2)})
	}
	slots := func(requests []Request) (slots []uint32) {
		for _, r := range requests {
			slots = append(slots, r.Slot)
		}
		slices.Sort(slots)
		return slots
	}
	check := func(want Choice, wantLate, wantWaiting []uint32) {
		t.Helper()
		c, late := q.Pick(0, false, 0)
		if c.Batch != want.Batch || c.Size != want.Size || c.Padded != want.Padded {
			t.Errorf("a batch of %d (%d) of size %d, want %+v", c.Batch, c.Padded, c.Size, want)
		}
		if got := slots(late); !slices.Equal(got, wantLate) {
			t.Errorf("late are %v, want %v", got, wantLate)
		}
		if got := slots(q.Pending[c.Batch:]); !slices.Equal(got, wantWaiting) {
			t.Errorf("waiting are %v, want %v", got, wantWaiting)
		}
		for _, r := range q.Pending[:c.Batch] {
			if r.Size != want.Size {
				t.Errorf("request %d of size %d", r.Slot, r.Size)
			}
		}
		if c.Batch > 0 {
			q.Begin(0, c, false)
			q.Remove(0, 20*ms)
			q.End(Observation{Batch: c.Batch, Padded: c.Padded, Elapsed: 20 * time.Millisecond, Ended: 20 * ms}, 0, false)
		}
	}
	check(Choice{Padded: 1, Size: 1}, []uint32{1, 3, 5}, []uint32{0, 2, 4}) // the slow size takes 100 ms
	check(Choice{Batch: 3, Padded: 4}, nil, nil)
	q.Add(Request{Slot: 7, Deadline: 500 * ms, Size: 1})
	check(Choice{Batch: 1, Padded: 1, Size: 1}, nil, nil)
	if slow, fast := q.Rule.Typical(q.State, 1), q.Rule.Typical(q.States[0], 1); fast > 20*time.Millisecond || slow < 30*time.Millisecond {
		t.Errorf("batches take %v and %v", fast, slow)
	}
}
