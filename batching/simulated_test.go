package batching_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/penstock/penstock/batching"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/slabsim"
)

var ladder = []int{1, 2, 4, 8, 16, 32, 64}

// The targets of `bench slab`, for devices of every kind: with high and low fixed
// cost, steep and flat, with every size and with a ladder.
func TestSLABTargets(t *testing.T) {
	devices := map[string]slabsim.Device{
		"VGG-19 on a V100":    slabsim.VGG19,
		"steep":               {Fixed: 4 * time.Millisecond, PerImage: 2300 * time.Microsecond, Sigma: 0.03},
		"ResNet-50 on a V100": {Fixed: time.Millisecond, PerImage: 500 * time.Microsecond, Sigma: 0.03},
		"all in the start":    {Fixed: 10 * time.Millisecond, PerImage: 200 * time.Microsecond, Sigma: 0.03},
		"all in the pictures": {Fixed: 100 * time.Microsecond, PerImage: 2 * time.Millisecond, Sigma: 0.03},
	}
	for name, device := range devices {
		for _, slo := range []time.Duration{25, 50, 75, 100} {
			for _, steps := range [][]int{slabsim.UpTo(64), ladder} {
				c := slabsim.DefaultConfig(slo * time.Millisecond)
				c.Device, c.Ladder, c.Duration = device, steps, 20*time.Second
				t.Run(fmt.Sprintf("%s/%v/%d sizes", name, c.SLO, len(steps)), func(t *testing.T) {
					for c.Seed = 1; c.Seed <= 3; c.Seed++ {
						check(t, c)
					}
				})
			}
		}
	}
}

func check(t *testing.T, c slabsim.Config) {
	t.Helper()
	r, err := slabsim.Run(c)
	must.OK(t, err)
	if r.T90Millis > 250 {
		t.Errorf("seed %d: t90 %.0f ms, want at most 250", c.Seed, r.T90Millis)
	}
	if r.P99Millis > r.SLOMillis {
		t.Errorf("seed %d: p99 %.1f ms beyond the objective of %.0f", c.Seed, r.P99Millis, r.SLOMillis)
	}
	for i, l := range r.Loads {
		if a := r.AIMD.Loads[i]; l.GoodputRPS < 0.98*a.GoodputRPS {
			t.Errorf("seed %d, load %s: goodput %.1f/s, AIMD has %.1f", c.Seed, l.Name, l.GoodputRPS, a.GoodputRPS)
		}
	}
	if !r.Met && !t.Failed() {
		t.Errorf("seed %d: the report says that targets are not met", c.Seed)
	}
}

// baselines are the rules that SLAB is compared with.
var baselines = []slabsim.Rule{
	{Name: batching.AIMD}, {Name: batching.One},
	{Name: batching.Fixed, Fixed: 4, Delay: time.Millisecond}, {Name: batching.Fixed, Fixed: 8, Delay: time.Millisecond},
	{Name: batching.Fixed, Fixed: 8}, {Name: batching.Fixed, Fixed: 32},
}

// models have batch times that an H200 may reach.
var models = map[string]slabsim.Device{
	"light":  {Fixed: 400 * time.Microsecond, PerImage: 60 * time.Microsecond, Sigma: 0.03},
	"middle": {Fixed: 1200 * time.Microsecond, PerImage: 250 * time.Microsecond, Sigma: 0.03},
	"heavy":  {Fixed: 1500 * time.Microsecond, PerImage: 700 * time.Microsecond, Sigma: 0.03},
}

// At any load, no other rule answers over 3 % more requests within the objective. All
// use the same dispatch (docs/adr/0010-baselines.md).
func TestBaselines(t *testing.T) {
	const spread = 0.03
	for name, device := range models {
		for _, slo := range []time.Duration{10 * time.Millisecond, 25 * time.Millisecond} {
			for _, factor := range []float64{0.5, 1, 1.5, 2.5} {
				c := slabsim.Config{SLO: slo, Device: device, Ladder: []int{1, 2, 4, 8, 16, 32}, Seed: 1, Duration: 5 * time.Second}
				loads, err := slabsim.Compare(c, factor, append([]slabsim.Rule{{Name: batching.SLAB}}, baselines...)...)
				must.OK(t, err)
				for _, l := range loads[1:] {
					if (1+spread)*loads[0].GoodputRPS < l.GoodputRPS {
						t.Errorf("%s, %v, load %.1f: %s answers %.0f a second in time, SLAB %.0f", name, slo, factor, l.Name, l.GoodputRPS, loads[0].GoodputRPS)
					}
				}
			}
		}
	}
}
