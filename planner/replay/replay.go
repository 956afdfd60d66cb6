package replay

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/penstock/penstock/internal/confidence"
	"github.com/penstock/penstock/plan"
)

// Config configures a replay. The zero value is a good default.
type Config struct {
	// Seed selects the random numbers.
	Seed uint64
	// Requests is how many requests of each service are counted in one run; 0
	// means 20,000. Before these, a tenth as many warm the run up and are not
	// counted.
	Requests int
	// Each service is replayed at least MinRuns times (2 or more; 0 means 5), with
	// independent random numbers. It is then replayed until its violations are
	// known to Precision (a fraction; 0 means 0.001) or to a tenth of
	// themselves, at 95 % confidence. MaxRuns is the max number of runs (0
	// means 40).
	MinRuns, MaxRuns int
	Precision        float64
}

func (c Config) withDefaults() Config {
	c.Requests, c.MinRuns = cmp.Or(c.Requests, 20000), cmp.Or(c.MinRuns, 5)
	c.MaxRuns = cmp.Or(c.MaxRuns, max(40, c.MinRuns))
	c.Precision = cmp.Or(c.Precision, 0.001)
	return c
}

// confidenceLevel is that of all intervals in a Report.
const confidenceLevel = 0.95

// A Report is the result of a replay.
type Report struct {
	Seed       uint64  `json:"seed"`
	Confidence float64 `json:"confidence"`
	// Violations is the fraction of all requests that are not answered within
	// their objective. Each service counts in proportion to its rate.
	Violations float64 `json:"violations"`
	// Worst is the service with the largest Violations.
	Worst string `json:"worst"`
	// Utilisation is the fraction of time that the average process is busy.
	// Segments are weighted by their multiprocessors.
	Utilisation float64   `json:"utilisation"`
	Services    []Service `json:"services"`
}

// Service is the result for one service. Services are in the plan's order.
type Service struct {
	Service        string  `json:"service"`
	Model          string  `json:"model"`
	RateRPS        float64 `json:"rate_rps"`
	SLOMS          float64 `json:"slo_ms"`
	LatencyBoundMS float64 `json:"latency_bound_ms"`
	// Runs and Requests count the runs, and the measured requests.
	Runs     int `json:"runs"`
	Requests int `json:"requests"`
	// Unserved counts requests that never ran, because they could no longer meet the
	// objective. No request that runs is late.
	Unserved int `json:"unserved"`
	// Violations is the fraction of requests that were Unserved. Low and High are its interval at Report.Confidence: Student's from the runs. If no
	// run had a violation, High is 3 / Requests.
	Violations float64 `json:"violations"`
	Low        float64 `json:"violations_low"`
	High       float64 `json:"violations_high"`
	// P50MS and P99MS are those of the requests that ran; 0 if none did.
	P50MS float64 `json:"p50_ms"`
	P99MS float64 `json:"p99_ms"`
	// Load is the rate divided by the throughput of the service's segments.
	Load float64 `json:"load"`

	sms, busySMs float64 // the segments' multiprocessors, and how many are busy on average
}

// Run replays a plan for the problem. It uses the problem's profiles and GPU
// tables, and the plan's rates and objectives. It assumes that the plan is legal
// (planner/verify), and returns an error if a service has no segment.
func Run(p *plan.Problem, pl *plan.Plan, c Config) (*Report, error) {
	c = c.withDefaults()
	segments := make(map[string][]plan.Segment, len(pl.Services))
	for _, s := range pl.Segments {
		segments[s.Service] = append(segments[s.Service], s)
	}
	for _, s := range pl.Services {
		if len(segments[s.Service]) == 0 {
			return nil, fmt.Errorf("replay: service %q has no segment", s.Service)
		}
	}
	report := &Report{Seed: c.Seed, Confidence: confidenceLevel, Services: make([]Service, len(pl.Services))}
	var work errgroup.Group
	work.SetLimit(runtime.GOMAXPROCS(0))
	for i, s := range pl.Services {
		work.Go(func() error {
			report.Services[i] = replayService(p, s, segments[s.Service], c)
			return nil
		})
	}
	work.Wait()
	report.sum()
	return report, nil
}

// sum computes the figures of all services together.
func (r *Report) sum() {
	var rates, sms, busy float64
	worst := -1.0
	for _, s := range r.Services {
		rates += s.RateRPS
		r.Violations += s.RateRPS * s.Violations
		if s.Violations > worst {
			worst, r.Worst = s.Violations, s.Service
		}
		sms, busy = sms+s.sms, busy+s.busySMs
	}
	r.Violations /= max(rates, math.SmallestNonzeroFloat64)
	r.Utilisation = busy / max(sms, 1)
}

// One replays a single service on the given segments, all of which are its own, and
// at least one. Policies that learn use it.
func One(p *plan.Problem, s plan.Assigned, segments []plan.Segment, c Config) Service {
	return replayService(p, s, segments, c.withDefaults())
}

// replayService replays a service until its violations are known.
func replayService(p *plan.Problem, s plan.Assigned, segments []plan.Segment, c Config) Service {
	result := Service{Service: s.Service, Model: s.Model, RateRPS: s.RateRPS, SLOMS: s.SLOMS, LatencyBoundMS: s.LatencyBoundMS}
	segments = canonical(segments)
	ladders := make([]ladder, len(segments))
	// perProcess are the multiprocessors of a segment per process.
	perProcess := make([]float64, len(segments))
	tables := p.Tables()
	var throughput float64
	for i, g := range segments {
		size, _ := tables[g.GPUModel].Size(g.GPCs)
		result.sms += float64(size.SMs)
		perProcess[i] = float64(size.SMs) / float64(g.Processes)
		ladders[i] = steps(g, p.Profiles[g.GPUModel][g.Model])
		throughput += g.ThroughputRPS
	}
	result.Load = s.RateRPS / throughput

	name := fnv.New64a()
	name.Write([]byte(s.Service))
	stream := name.Sum64()

	var shares []float64 // of violations, one per run
	var latencies []float64
	var seconds float64
	for n := range c.MaxRuns {
		seed := c.Seed + uint64(n)*0x9e3779b97f4a7c15 // far from the seeds of other runs
		r := run{rate: s.RateRPS, slo: s.SLOMS / 1000, warm: c.Requests / 10, measured: c.Requests,
			arrivals: rand.New(rand.NewPCG(seed, stream))}
		for i, g := range segments {
			r.servers = append(r.servers, server{ladder: ladders[i], idle: g.Processes, share: g.ThroughputRPS / throughput})
		}
		r.route = newRouter(r.servers, rand.New(rand.NewPCG(^seed, stream)))
		o := r.simulate()

		result.Runs++
		result.Requests += c.Requests
		result.Unserved += o.givenUp
		shares = append(shares, float64(o.givenUp)/float64(c.Requests))
		latencies = append(latencies, o.latencies...)
		seconds += r.to - r.from
		for i, v := range r.servers {
			result.busySMs += v.busy * perProcess[i]
		}
		var half float64
		// Requests of one run are not independent (a waiting request delays
		// others); runs are.
		result.Violations, half = confidence.Mean(shares)
		if result.Runs >= c.MinRuns && half <= max(c.Precision, result.Violations/10) {
			break
		}
	}
	_, half := confidence.Mean(shares)
	result.Low, result.High = max(0, result.Violations-half), min(1, result.Violations+half)
	if result.Unserved == 0 {
		result.High = min(1, 3/float64(result.Requests))
	}
	slices.Sort(latencies)
	result.P50MS, result.P99MS = percentileMS(latencies, 50), percentileMS(latencies, 99)
	result.busySMs /= max(seconds, math.SmallestNonzeroFloat64)
	return result
}

// canonical sorts segments by what they run, so that a service's result does not
// depend on where its segments are.
func canonical(segments []plan.Segment) []plan.Segment {
	return slices.SortedStableFunc(slices.Values(segments), func(a, b plan.Segment) int {
		return cmp.Or(strings.Compare(a.GPUModel, b.GPUModel), a.GPCs-b.GPCs, a.Batch-b.Batch, a.Processes-b.Processes)
	})
}
