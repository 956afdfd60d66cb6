package lanes

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/libml/lane"
	"github.com/penstock/penstock/libml/residency"
)

// Run checks the invariants after each event, so a run without an error is the test.
func TestInvariants(t *testing.T) {
	seeds := uint64(300)
	if testing.Short() {
		seeds = 30
	}
	names := lane.Names()
	var sum Result
	for seed := uint64(1); seed <= seeds; seed++ {
		c := RandomMix(10000 + seed)
		c.Policy = names[seed%uint64(len(names))]
		c.Duration = 4 * time.Second
		for i := range c.Models { // so that more models are removed while requests wait
			c.Models[i].Until /= 2
		}
		if seed%4 == 0 {
			c.Capacity.MemoryBytes = max(c.Capacity.FixedBytes, c.Capacity.MemoryBytes/3) // so that models are refused
		}
		if seed%3 == 0 {
			c.Order = LRU
		}
		r, err := Run(c)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if r.Requests != r.InTime+r.Late+r.Failed {
			t.Errorf("seed %d: %d requests, but %d in time, %d late, %d failed", seed, r.Requests, r.InTime, r.Late, r.Failed)
		}
		sum.Requests += r.Requests
		sum.Late += r.Late
		sum.Failed += r.Failed
		sum.Loads += r.Loads
		sum.Evictions += r.Evictions
		sum.Refused += r.Refused
	}
	t.Logf("%+v", sum)
	if min(sum.Requests, sum.Late, sum.Failed, sum.Loads, sum.Evictions, sum.Refused) == 0 {
		t.Errorf("the mixes lack something: %+v", sum)
	}
}

func FuzzRun(f *testing.F) {
	f.Add(uint64(1), uint8(4), int64(0), uint8(0))
	f.Add(uint64(2), uint8(0), int64(-1<<28), uint8(50))
	f.Fuzz(func(t *testing.T, seed uint64, policy uint8, memory int64, late uint8) {
		c := RandomMix(seed)
		c.Policy = lane.Names()[int(policy)%len(lane.Names())]
		c.Duration, c.Settle = 1500*time.Millisecond, 0
		c.Capacity.MemoryBytes = max(c.Capacity.FixedBytes, c.Capacity.MemoryBytes+memory%gib)
		c.LateLoads = float64(late) / 255
		if _, err := Run(c); err != nil {
			t.Fatal(err)
		}
	})
}

func TestRunRepeats(t *testing.T) {
	c := RandomMix(7)
	first, err := Run(c)
	must.OK(t, err)
	if second, _ := Run(c); !reflect.DeepEqual(first, second) {
		t.Errorf("two runs of one seed differ: %+v, %+v", first, second)
	}
}

// Without enough memory for the largest model there is no answer of it, and the others go on.
func TestRefused(t *testing.T) {
	c := FortyTwo(300<<20, 0.5, 1)
	c.Duration = 2 * time.Second
	c.Settle = 0
	r, err := Run(c)
	must.OK(t, err)
	if r.Refused == 0 || r.InTime == 0 {
		t.Errorf("%d models refused, %d requests in time: want some of each", r.Refused, r.InTime)
	}
}

func TestUnknownPolicy(t *testing.T) {
	c := RandomMix(1)
	c.Policy = "lifo"
	if _, err := Run(c); err == nil || !strings.Contains(err.Error(), "lifo") {
		t.Errorf("error %v", err)
	}
}

// An order of victims that is wrong must show in the figures.
func TestEvictionMatters(t *testing.T) {
	inTime := func(order func(a, b *residency.Model) int) float64 {
		c := FortyTwo(2*gib, 0.25, 1)
		c.Order, c.Duration, c.Settle = order, 10*time.Second, 5*time.Second
		r, err := Run(c)
		must.OK(t, err)
		return r.InTimePercent()
	}
	worth, worst := inTime(nil), inTime(func(a, b *residency.Model) int { return -residency.ByWorth(a, b) })
	t.Logf("by worth %.2f %%, reversed %.2f %%", worth, worst)
	if worth < worst+1 {
		t.Errorf("evicting the best models first keeps %.2f %% in time, the worst first %.2f %%", worst, worth)
	}
}

// The figures of docs/adr/0025-lanes-and-residency.md that have a goal.
func TestJobs(t *testing.T) {
	r, err := CompareJobs(1.5, 3)
	must.OK(t, err)
	if r.Ratio < 3 {
		t.Errorf("fifo's mean completion is %.2f times srtf's, want at least 3", r.Ratio)
	}
}

func TestFairSpread(t *testing.T) {
	spread, err := FairSpread(1)
	must.OK(t, err)
	if spread > 1.05 {
		t.Errorf("one of three equal jobs was served %.3f times as much as another", spread)
	}
}

func TestGoodput(t *testing.T) {
	r, err := CompareGoodput("some", 11, 22, false)
	must.OK(t, err)
	for policy, ratio := range r.Ratios {
		if ratio < 1 {
			t.Errorf("edf has %.3f of the goodput of %s", ratio, policy)
		}
	}
	t.Logf("%+v", r)
}
