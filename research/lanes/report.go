package lanes

import (
	"runtime"
	"slices"
	"sync"

	"github.com/penstock/penstock/libml/lane"
)

// Report is the output of `penstock-lab lanes -o json`. All of it is simulated.
type Report struct {
	// Jobs has 100 finite jobs, by the spread of their lengths.
	Jobs []JobsReport `json:"jobs"`
	// FairSpread is the max that one of three equal jobs was served, divided by the min.
	FairSpread float64 `json:"fair_spread"`
	// Goodput compares policies over random mixes.
	Goodput []GoodputReport `json:"goodput"`
	// Residency compares ways of loading and evicting, with 42 models.
	Residency []ResidencyReport `json:"residency"`
}

// GoodputReport compares edf with the other policies over mixes. A ratio is edf's number of
// requests in time, divided by that of another policy.
type GoodputReport struct {
	Group string `json:"group"`
	Mixes int    `json:"mixes"`
	// Ratios are to the sum over all mixes, by policy.
	Ratios map[string]float64 `json:"ratios"`
	// WorstRatio is to the best policy of a mix. Below of the mixes have one below 0.99.
	WorstRatio float64 `json:"worst_ratio"`
	Below      int     `json:"below_99_percent"`
	// Short has the seeds of these mixes, the worst first.
	Short []uint64 `json:"short"`
}

// beaten is the ratio below which edf counts as beaten: less is the noise of batch times.
const beaten = 0.99

// CompareGoodput runs the random mixes of these seeds with each policy. onlyResident hides
// loads from the other policies, see Config.
func CompareGoodput(group string, first, last uint64, onlyResident bool) (GoodputReport, error) {
	r := GoodputReport{Group: group, Mixes: int(last - first + 1), Ratios: map[string]float64{}, WorstRatio: 1}
	names := lane.Names()
	results := make([]Result, r.Mixes*len(names))
	err := parallel(len(results), func(i int) (err error) {
		c := RandomMix(first + uint64(i/len(names)))
		c.Policy = names[i%len(names)]
		c.OnlyResident = onlyResident && c.Policy != lane.EDF
		results[i], err = Run(c)
		return err
	})
	if err != nil {
		return r, err
	}

	sums := map[string]int{}
	worst := map[uint64]float64{}
	for mix := range r.Mixes {
		best, edf := 0, 0
		for k, name := range names {
			n := results[mix*len(names)+k].InTime
			sums[name] += n
			if name == lane.EDF {
				edf = n
			} else {
				best = max(best, n)
			}
		}
		if ratio := float64(edf) / float64(max(1, best)); ratio < beaten {
			worst[first+uint64(mix)] = ratio
			r.Short = append(r.Short, first+uint64(mix))
			r.WorstRatio = min(r.WorstRatio, ratio)
		}
	}
	r.Below = len(r.Short)
	slices.SortFunc(r.Short, func(a, b uint64) int {
		if worst[a] < worst[b] {
			return -1
		}
		return 1
	})
	for name, sum := range sums {
		r.Ratios[name] = float64(sums[lane.EDF]) / float64(max(1, sum))
	}
	return r, nil
}

// ResidencyReport is how 42 models went on a worker, over several seeds.
type ResidencyReport struct {
	Name      string  `json:"name"`
	MemoryMiB int64   `json:"memory_mib"`
	Busy      float64 `json:"lanes_busy"`
	// InTimePercent is the mean over the seeds, WorstPercent that of the worst seed.
	InTimePercent float64 `json:"in_time_percent"`
	WorstPercent  float64 `json:"worst_in_time_percent"`
	LoadsPerS     float64 `json:"loads_per_s"`
	Loading       float64 `json:"loading"`
	ColdMillis    float64 `json:"cold_ms"`
	// Thrashing is the part of the time that reports it, EndMiB the memory that would end it.
	Thrashing float64 `json:"thrashing"`
	EndMiB    int64   `json:"thrashing_ends_mib"`
}

// way is one way to run the 42 models.
type way struct {
	name        string
	memoryBytes int64
	busy        float64
	change      func(c *Config)
}

// CompareResidency runs the 42 models with several seeds.
func CompareResidency(seeds int) ([]ResidencyReport, error) {
	const memory = 2 * gib
	lru := func(c *Config) { c.Order = LRU }
	ways := []way{
		{"2 GiB, lanes half busy", memory, 0.5, nil},
		{"  evict: lru", memory, 0.5, lru},
		{"  one load at a time", memory, 0.5, func(c *Config) { c.Ahead = 0 }},
		{"  loads begin at the last packet", memory, 0.5, func(c *Config) { c.LoadLast = true }},
		{"2 GiB, lanes a quarter busy", memory, 0.25, nil},
		{"  evict: lru", memory, 0.25, lru},
		{"  one lane for the same requests", memory, 0.25, func(c *Config) { c.Capacity.Lanes = 1 }},
		{"1.5 GiB, lanes half busy", 3 * gib / 2, 0.5, nil},
		{"3 GiB, lanes half busy", 3 * gib, 0.5, nil},
		{"all resident", 7 * gib, 0.5, nil},
	}
	var reports []ResidencyReport
	for _, w := range ways {
		r, err := w.run(seeds)
		if err != nil {
			return nil, err
		}
		reports = append(reports, r)
	}
	// Run the memory that would end thrashing as well, to show that it does.
	if end := reports[0].EndMiB; end > 0 {
		r, err := way{"the memory that ends thrashing", end << 20, ways[0].busy, nil}.run(seeds)
		if err != nil {
			return nil, err
		}
		reports = slices.Insert(reports, 1, r)
	}
	return reports, nil
}

func (w way) run(seeds int) (ResidencyReport, error) {
	results := make([]Result, seeds)
	err := parallel(seeds, func(i int) (err error) {
		c := FortyTwo(w.memoryBytes, w.busy, uint64(i+1))
		if w.change != nil {
			w.change(&c)
		}
		results[i], err = Run(c)
		return err
	})
	seconds := FortyTwo(0, 1, 1).Duration.Seconds()
	r := ResidencyReport{Name: w.name, MemoryMiB: w.memoryBytes >> 20, WorstPercent: 100}
	for _, one := range results {
		n := float64(seeds)
		r.Busy += one.Busy / n
		r.InTimePercent += one.InTimePercent() / n
		r.WorstPercent = min(r.WorstPercent, one.InTimePercent())
		r.LoadsPerS += float64(one.Loads) / seconds / n
		r.Loading += one.Loading / n
		r.ColdMillis += one.ColdMillis / n
		r.Thrashing += one.Thrashing / n
		r.EndMiB = max(r.EndMiB, (one.MemoryBytes+1<<20-1)>>20)
	}
	return r, err
}

// Measure makes the whole report. The policies were tuned with the seeds up to lastTuned.
func Measure(first, last, lastTuned uint64, seeds int) (Report, error) {
	var r Report
	for _, sigma := range []float64{1, 1.5, 2} {
		jobs, err := CompareJobs(sigma, seeds)
		if err != nil {
			return r, err
		}
		r.Jobs = append(r.Jobs, jobs)
	}
	var err error
	if r.FairSpread, err = FairSpread(1); err != nil {
		return r, err
	}
	held := max(first, lastTuned+1)
	for _, g := range []struct {
		name         string
		first, last  uint64
		onlyResident bool
	}{
		{"tuned", first, min(last, lastTuned), false},
		{"held out", held, last, false},
		{"held out, others see no loads", held, last, true},
	} {
		if g.first > g.last {
			continue
		}
		goodput, err := CompareGoodput(g.name, g.first, g.last, g.onlyResident)
		if err != nil {
			return r, err
		}
		r.Goodput = append(r.Goodput, goodput)
	}
	r.Residency, err = CompareResidency(seeds)
	return r, err
}

// parallel calls a function for 0 to n-1, as many at once as there are CPUs. It returns the
// first error.
func parallel(n int, do func(i int) error) error {
	errs := make([]error, n)
	tokens := make(chan struct{}, runtime.GOMAXPROCS(0))
	var group sync.WaitGroup
	for i := range n {
		group.Go(func() {
			tokens <- struct{}{}
			defer func() { <-tokens }()
			errs[i] = do(i)
		})
	}
	group.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
