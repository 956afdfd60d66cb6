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
		manager, ifs := splitCPUs(c.allowed, c.reserved, Near{})
		if !slices.Equal(manager, c.manager) || !slices.Equal(ifs, c.ifs) {
			t.Errorf("%v with %d reserved: %v and %v, want %v and %v", c.allowed, c.reserved, manager, ifs, c.manager, c.ifs)
		}
	}
}

func TestSplitCPUsNear(t *testing.T) {
	all := []int{0, 1, 2, 3, 4, 5, 6, 7}
	for name, c := range map[string]struct {
		near         Near
		manager, ifs []int
	}{
		"card elsewhere": {Near{NIC: []int{4, 5, 6, 7}, GPU: []int{0, 1, 2, 3}}, []int{4, 5}, []int{0, 1, 2, 3}},
		"one node":       {Near{NIC: []int{4, 5, 6, 7}, GPU: []int{4, 5, 6, 7}}, []int{4, 5}, []int{6, 7}},
		"no GPU":         {Near{NIC: []int{4, 5, 6, 7}}, []int{4, 5}, []int{0, 1, 2, 3, 6, 7}},
		"not allowed":    {Near{NIC: []int{8, 9}, GPU: []int{8, 9}}, []int{0, 1}, []int{2, 3, 4, 5, 6, 7}},
		"small node":     {Near{NIC: []int{7}, GPU: []int{7}}, []int{0, 7}, []int{1, 2, 3, 4, 5, 6}},
	} {
		if manager, ifs := splitCPUs(all, 2, c.near); !slices.Equal(manager, c.manager) || !slices.Equal(ifs, c.ifs) {
			t.Errorf("%s: %v and %v, want %v and %v", name, manager, ifs, c.manager, c.ifs)
		}
	}
}

func TestChooseCPUs(t *testing.T) {
	all := []int{0, 1, 2, 3, 4, 5, 6, 7}
	gpu := []int{0, 4, 1, 5} // CPUs of two cores
	for name, c := range map[string]struct {
		allowed, taken []int
		near           Near
		want           []int
		shared         bool
	}{
		"alone":              {all, nil, Near{}, all, false},
		"one CPU":            {[]int{3}, nil, Near{}, []int{3}, false},
		"some taken":         {all, []int{0, 1}, Near{}, []int{2, 3, 4, 5, 6, 7}, false},
		"one free":           {all, []int{0, 1, 2, 3, 4, 5, 6}, Near{}, all, true},
		"only CPU is taken":  {[]int{3}, []int{3}, Near{}, []int{3}, true},
		"a GPU":              {all, nil, Near{GPU: gpu, Part: 1}, []int{0, 1, 4, 5}, false},
		"one of two GPUs":    {all, nil, Near{GPU: gpu, Part: 0.5}, []int{0, 4}, false},
		"the other GPU":      {all, []int{0, 4}, Near{GPU: gpu, Part: 0.5}, []int{1, 5}, false},
		"one of eight GPUs":  {all, nil, Near{GPU: gpu, Part: 0.125}, []int{0, 4}, false},
		"GPU's CPUs taken":   {all, gpu, Near{GPU: gpu, Part: 1}, []int{2, 3, 6, 7}, false},
		"card near the GPU":  {all, nil, Near{GPU: gpu, Part: 0.5, NIC: gpu}, []int{0, 4}, false},
		"card on other node": {all, nil, Near{GPU: gpu, Part: 0.5, NIC: []int{2, 6, 3, 7}}, []int{0, 2, 4}, false},
	} {
		if cpus, shared := ChooseCPUs(c.allowed, c.taken, 0, c.near); !slices.Equal(cpus, c.want) || shared != c.shared {
			t.Errorf("%s: %v, shared %v, want %v, %v", name, cpus, shared, c.want, c.shared)
		}
	}
}

func TestIFCPUs(t *testing.T) {
	manager, ifs := IFCPUs(0, Near{})
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
