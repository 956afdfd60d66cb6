package orchestrator

import (
	"slices"
	"testing"
	"time"
)

func TestBackoffDoubles(t *testing.T) {
	var b backoff
	now := t0
	for i, want := range []time.Duration{100, 200, 400, 800, 1600, 3200, 5000, 5000} {
		b.ended(now, time.Second, true, "crash")
		if got := b.until.Sub(now); got != want*time.Millisecond {
			t.Errorf("failure %d waits %v, want %v", i+1, got, want*time.Millisecond)
		}
		now = now.Add(time.Minute)
	}
}

func TestBackoffReset(t *testing.T) {
	var b backoff
	for range 5 {
		b.ended(t0, time.Second, true, "crash")
	}
	b.ended(t0, time.Second, false, "") // stopped as ordered, which says nothing about its health
	if b.failures != 5 {
		t.Errorf("%d failures are left after a stop, want 5", b.failures)
	}
	b.ended(t0, minLifetime, true, "crash")
	if b != (backoff{last: "crash"}) {
		t.Errorf("after a good life it is %+v, want no failures and why it ended", b)
	}
	b.ended(t0, minLifetime, false, "asked")
	if b != (backoff{}) {
		t.Errorf("after a good life and end it is %+v", b)
	}
}

func TestBackoffTooFewGroups(t *testing.T) {
	var b backoff
	for _, c := range []struct {
		groups int
		first  bool
	}{{1, true}, {1, false}, {2, true}, {1, false}, {2, false}, {4, true}} {
		if first := b.recordTooFew(c.groups, "too few"); first != c.first || b.failures != 0 {
			t.Errorf("%d groups: %v, %+v; want %v", c.groups, first, b, c.first)
		}
	}
	b.ended(t0, minLifetime, false, "")
	if !b.recordTooFew(1, "too few") {
		t.Error("after a good life it remembers how many groups were too few")
	}
}

func TestBackoffWrongAnswers(t *testing.T) {
	var b backoff
	for _, c := range []struct {
		percent float64
		first   bool
	}{{30, true}, {30, false}, {28, true}, {27, true}, {100, false}, {0, false}} {
		if first := b.recordWrong(c.percent, "wrong"); first != c.first || b.failures != 0 {
			t.Errorf("%v %%: %v, %+v; want %v", c.percent, first, b, c.first)
		}
	}
}

func TestSplitCPUs(t *testing.T) {
	for _, c := range []struct {
		allowed      []int
		reserved     int
		manager, ifs []int
	}{
		{[]int{3}, 0, []int{3}, []int{3}},
		{[]int{3}, 1, []int{3}, []int{3}},
		{[]int{0, 1}, 0, []int{0}, []int{1}},
		{[]int{0, 1}, 5, []int{0}, []int{1}},
		{[]int{2, 4, 6, 8}, 0, []int{2}, []int{4, 6, 8}},
		{[]int{2, 4, 6, 8}, 2, []int{2, 4}, []int{6, 8}},
		{[]int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, 0, []int{0, 1}, []int{2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}},
	} {
		manager, ifs := splitCPUs(c.allowed, c.reserved)
		if !slices.Equal(manager, c.manager) || !slices.Equal(ifs, c.ifs) {
			t.Errorf("%v with %d reserved: %v and %v, want %v and %v", c.allowed, c.reserved, manager, ifs, c.manager, c.ifs)
		}
	}
}

func TestIFCPUs(t *testing.T) {
	manager, ifs := IFCPUs(0)
	allowed := allowedCPUs()
	if len(ifs) == 0 || len(manager) == 0 {
		t.Fatalf("%v and %v", manager, ifs)
	}
	for _, cpu := range slices.Concat(manager, ifs) {
		if !slices.Contains(allowed, cpu) {
			t.Errorf("CPU %d is not allowed here", cpu)
		}
	}
}
