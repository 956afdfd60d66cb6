// Package slabsim measures batching rules in virtual time: it is the simulation behind
// `penstock-lab slab`. The rules and the dispatch are those of libml (batching); only the
// device and the clients are simulated. It is pure: the same Config gives the same Report on
// any machine.
//
// # The simulation
//
//	Poisson arrivals ──whole──> pending ──Rule.Pick──> device: (a + b·n) · noise ──> answered
//	                                        └──> late, uninferred
//
// A request is complete when it arrives. Its latency is from then to the end of its batch,
// and its deadline is the objective. The device runs one batch at a time. Its time is linear
// in the padded size, times log-normal noise of median 1. Rules start cold: there are no
// warm-up batches.
//
// # What is reported
//
// Each rule runs under two loads. The saturating load is saturatingFactor times the device's
// rate in the largest batch that takes half the objective. The other load is busyFactor (80
// %) of that rate. The numbers of a load are from the second half of the run, except t90.
// p99_ms counts every request that was inferred there, within the objective or not. Late
// answers have no latency; they are missing from goodput_rps. A report's top-level numbers
// are those of the saturating load, but p99_ms and t90_ms are the worse of the two loads.
package slabsim

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/penstock/penstock/batching"
)

const (
	// The saturating load is saturatingFactor times the device's rate.
	saturatingFactor = 2
	// The other load is busyFactor times the device's rate.
	busyFactor = 0.8
)

// Device is a device whose batch of n takes (Fixed + PerImage·n) · e^(Sigma·N), where N is
// standard normal.
type Device struct {
	Fixed, PerImage time.Duration
	Sigma           float64
}

// VGG19 resembles VGG-19 on a whole V100 as GSLICE's authors measured it (CNTK: 5.4, 8.6,
// 14.4, 23.6, 29.7 and 56.1 ms at 1, 2, 4, 8, 16 and 32; the least-squares line is 6.6 +
// 1.55·n).
var VGG19 = Device{Fixed: 6600 * time.Microsecond, PerImage: 1550 * time.Microsecond, Sigma: 0.03}

// Config is the configuration of one simulation; DefaultConfig fills it.
type Config struct {
	SLO    time.Duration
	Device Device
	// Ladder is that of the rules (batching.Config).
	Ladder []int
	// Seed of noise and arrivals: all rules have the same arrivals.
	Seed uint64
	// Duration is the virtual time of each run.
	Duration time.Duration
}

// DefaultConfig returns what `penstock-lab slab` runs for an objective: VGG19 with every
// batch size up to 64, for a virtual minute. AIMD needs about 10 s to settle.
func DefaultConfig(slo time.Duration) Config {
	return Config{SLO: slo, Device: VGG19, Ladder: UpTo(64), Seed: 1, Duration: time.Minute}
}

// UpTo returns every batch size up to n.
func UpTo(n int) []int {
	ladder := make([]int, n)
	for i := range ladder {
		ladder[i] = i + 1
	}
	return ladder
}

// Report is the output of `penstock-lab slab -o json`.
type Report struct {
	SLOMillis float64 `json:"slo_ms"`
	Result
	AIMD Result `json:"aimd"`
	// Met says that all targets are met: t90 within 250 ms, p99 within the objective, and at
	// each load goodput of at least 0.98 of AIMD's.
	Met    bool   `json:"met"`
	Device string `json:"device"`
}

// Result has the results of one rule.
type Result struct {
	T90Millis  float64 `json:"t90_ms"`
	FinalBatch float64 `json:"final_batch"`
	P99Millis  float64 `json:"p99_ms"`
	GoodputRPS float64 `json:"goodput_rps"`
	// Loads are the saturating load and the load of 80 %, in this order.
	Loads []Load `json:"loads"`
}

// Load has the results of one rule under one load.
type Load struct {
	Name    string  `json:"name"`
	RateRPS float64 `json:"rate_rps"`
	// T90Millis is when the batch limit first reached 90 % of FinalBatch and kept it over
	// the next 5 dispatches. A limit counts as FinalBatch if the batch would not have been
	// larger without it.
	T90Millis float64 `json:"t90_ms"`
	// FinalBatch is the mean batch limit of the second half of the run.
	FinalBatch float64 `json:"final_batch"`
	// MeanBatch is the mean number of requests in its batches.
	MeanBatch float64 `json:"mean_batch"`
	// P99Millis is of all inferred requests of the second half.
	P99Millis float64 `json:"p99_ms"`
	// GoodputRPS is the rate of answers within the objective, per second.
	GoodputRPS float64 `json:"goodput_rps"`
	// LatePercent of the requests were answered late, uninferred.
	LatePercent float64 `json:"late_percent"`
}

// The targets of the design: t90, and goodput relative to AIMD's.
const (
	maxT90Millis = 250
	minGoodput   = 0.98
)

// Run simulates both rules under both loads. It fails only if the rules refuse the
// configuration.
func Run(c Config) (Report, error) {
	if c.Device.Fixed < 0 || c.Device.PerImage <= 0 || c.Device.Sigma < 0 {
		return Report{}, fmt.Errorf("simulate batching: device %+v is none", c.Device)
	}
	if c.Duration <= 0 {
		return Report{}, fmt.Errorf("simulate batching: duration %v is not positive", c.Duration)
	}
	s, err := runRule(batching.SLAB, c)
	if err != nil {
		return Report{}, err
	}
	a, err := runRule(batching.AIMD, c)
	if err != nil {
		return Report{}, err
	}
	r := Report{SLOMillis: millis(c.SLO), Result: s, AIMD: a, Device: c.Device.String()}
	r.Met = s.T90Millis <= maxT90Millis && s.P99Millis <= r.SLOMillis
	for i := range s.Loads {
		r.Met = r.Met && s.Loads[i].GoodputRPS >= minGoodput*a.Loads[i].GoodputRPS
	}
	return r, nil
}

// String returns the device's formula.
func (d Device) String() string {
	return fmt.Sprintf("%v + %v a picture, sigma %g", d.Fixed, d.PerImage, d.Sigma)
}

// Time returns the time of a batch of that padded size without noise.
func (d Device) Time(padded int) time.Duration {
	return d.Fixed + time.Duration(padded)*d.PerImage
}

// Rule is the name of a batching rule with its settings in batching.Config.
type Rule struct {
	Name  string
	Fixed int
	Delay time.Duration
}

// String returns a description of the rule.
func (r Rule) String() string {
	if r.Name == batching.Fixed {
		return fmt.Sprintf("%s %d, %v", r.Name, r.Fixed, r.Delay)
	}
	return r.Name
}

// slots is the max number of waiting requests in comparisons of rules. Further ones are
// refused and are missing from the goodput.
const slots = 1024

// Compare simulates rules with the same arrivals, under a load of factor times the device's
// rate (as for saturatingFactor). The results are in the order of the rules.
func Compare(c Config, factor float64, rules ...Rule) ([]Load, error) {
	var loads []Load
	for _, r := range rules {
		rule, err := c.rule(r)
		if err != nil {
			return nil, err
		}
		loads = append(loads, runLoad(rule, c, Load{Name: r.String(), RateRPS: factor * c.capacity(rule)}, slots))
	}
	return loads, nil
}

func (c *Config) rule(r Rule) (*batching.Rule, error) {
	rule, err := batching.New(r.Name, batching.Config{
		SLO: c.SLO, Ladder: c.Ladder, Fixed: r.Fixed, Delay: r.Delay,
	})
	if err != nil {
		return nil, fmt.Errorf("simulate batching: %w", err)
	}
	return rule, nil
}

func runRule(name string, c Config) (Result, error) {
	rule, err := c.rule(Rule{Name: name})
	if err != nil {
		return Result{}, err
	}
	capacity := c.capacity(rule)
	var r Result
	for _, l := range []Load{
		{Name: "saturating", RateRPS: saturatingFactor * capacity},
		{Name: "80 %", RateRPS: busyFactor * capacity},
	} {
		r.Loads = append(r.Loads, runLoad(rule, c, l, math.MaxInt))
	}
	saturating, busy := r.Loads[0], r.Loads[1]
	r.FinalBatch, r.GoodputRPS = saturating.FinalBatch, saturating.GoodputRPS
	r.T90Millis = max(saturating.T90Millis, busy.T90Millis)
	r.P99Millis = max(saturating.P99Millis, busy.P99Millis)
	return r, nil
}

// capacity returns the device's rate in requests/s in the largest prepared batch that takes
// at most half the objective without noise, or otherwise in a batch of 1.
func (c *Config) capacity(rule *batching.Rule) float64 {
	best := 1
	for n := 2; n <= slices.Max(c.Ladder) && c.Device.Time(n) <= c.SLO/2; n++ {
		if rule.Pad(n) == n {
			best = n
		}
	}
	return float64(best) / c.Device.Time(best).Seconds()
}

// runLoad is one run: arrivals, dispatch and device, all in virtual nanoseconds. At most
// `most` requests wait; the others are refused.
func runLoad(rule *batching.Rule, c Config, l Load, most int) Load {
	arrivals := rand.New(rand.NewPCG(c.Seed, 1))
	noise := rand.New(rand.NewPCG(c.Seed, 2))
	interval := float64(time.Second) / l.RateRPS

	var (
		end       = int64(c.Duration)
		steady    = end / 2
		queue     = batching.NewQueue(rule, 1024, 1) // of one client, so Pending may grow
		exactly   = func(n int) time.Duration { return c.Device.Time(rule.Pad(n)) }
		next      = arrivals.ExpFloat64() * interval // when the next request is complete
		slot      uint32
		copied    []batching.Request // of those pending, to compute the batch without a limit
		trace     []limitAt
		latencies []int64
		sizes     []int64 // of the batches
		arrived   int
		good      int
		late      int
	)
	for now := int64(0); now < end; {
		for int64(next) <= now {
			whole := int64(next)
			if len(queue.Pending) < most {
				queue.Add(batching.Request{Slot: slot, Whole: whole, Deadline: whole + int64(c.SLO)})
			}
			slot++
			next += arrivals.ExpFloat64() * interval
			if whole >= steady {
				arrived++
			}
		}
		if len(queue.Pending) == 0 {
			now = int64(next) + 1
			continue
		}
		if !queue.MayBegin(now, false) {
			now = min(queue.ReadyAt(), int64(next)+1)
			continue
		}
		copied = append(copied[:0], queue.Pending...)
		unbound, _ := batching.Pick(copied, now, len(copied), exactly)
		picked, tooLate := queue.Pick(now, false, 0)
		if now >= steady {
			late += len(tooLate)
		}
		if picked.Batch > 0 {
			batch := queue.Pending[:picked.Batch]
			took := time.Duration(float64(c.Device.Time(picked.Padded)) * math.Exp(c.Device.Sigma*noise.NormFloat64()))
			ended := now + int64(took)
			if ended >= steady {
				sizes = append(sizes, int64(len(batch)))
				for _, r := range batch {
					latencies = append(latencies, ended-r.Whole)
					if ended <= r.Deadline {
						good++
					}
				}
			}
			queue.Begin(now, picked, false)
			now = ended
			queue.Remove(0, ended)
			queue.End(batching.Observation{
				Batch: picked.Batch, Padded: picked.Padded, Full: picked.Full, Elapsed: took, Ended: ended, Waited: picked.Waited, Late: picked.Late,
			}, 0, false)
		}
		trace = append(trace, limitAt{at: now, size: queue.Size(), free: unbound <= picked.Batch})
		if picked.Batch == 0 && len(queue.Pending) == 0 {
			now = max(now, int64(next)+1)
		}
	}
	l.FinalBatch = meanSize(trace, steady)
	l.T90Millis = t90(trace, l.FinalBatch)
	l.MeanBatch = float64(len(latencies)) / float64(max(1, len(sizes)))
	l.P99Millis = millis(time.Duration(percentile(latencies, 0.99)))
	l.GoodputRPS = float64(good) / time.Duration(end-steady).Seconds()
	l.LatePercent = 100 * float64(late) / float64(max(1, arrived))
	return l
}

// limitAt is the batch limit after a dispatch. free says that the dispatch would not have
// been larger without a limit.
type limitAt struct {
	at   int64
	size int
	free bool
}

// meanSize returns the mean limit of the dispatches from that time on.
func meanSize(trace []limitAt, from int64) float64 {
	var sum, n float64
	for _, l := range trace {
		if l.at >= from {
			sum += float64(l.size)
			n++
		}
	}
	return sum / max(1, n)
}

// t90 returns when the limit reached 90 % of final and kept it over the next dispatches, or
// the end of the run if it never did. A mean of whole limits may be between two of them;
// then the lower one is sufficient.
func t90(trace []limitAt, final float64) float64 {
	const kept = 5
	near := min(0.9*final, math.Floor(final))
	reached := 0 // how many in a row
	for i, l := range trace {
		if !l.free && float64(l.size) < near {
			reached = 0
			continue
		}
		if reached++; reached > kept {
			return millis(time.Duration(trace[i-kept].at))
		}
	}
	if len(trace) == 0 {
		return 0
	}
	return millis(time.Duration(trace[len(trace)-1].at))
}

// percentile returns the smallest value such that at least that part of all values is not
// larger.
func percentile(values []int64, part float64) int64 {
	if len(values) == 0 {
		return 0
	}
	slices.Sort(values)
	return values[max(0, int(math.Ceil(part*float64(len(values))))-1)]
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
