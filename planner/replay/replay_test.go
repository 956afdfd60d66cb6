package replay

import (
	"math"
	"math/rand/v2"
	"reflect"
	"runtime"
	"slices"
	"testing"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/plan"
	"pgregory.net/rapid"
)

// shop returns a service of one model on one a100-80.
func shop(t testing.TB, rate, sloMS float64, points []plan.Point, segments ...plan.Segment) (*plan.Problem, *plan.Plan) {
	t.Helper()
	gpu, err := plan.Lookup("a100-80")
	must.OK(t, err)
	p := &plan.Problem{GPU: gpu, Services: []plan.Service{{Name: "s", Model: "m", RateRPS: rate, SLOMS: sloMS}},
		Profiles: map[string]map[string]plan.Profile{"a100-80": {"m": {Model: "m", GPU: "a100-80", Points: points}}}}
	return p, plan.New(p, "test", segments)
}

// point returns an operating point with consistent throughput and latency.
func point(gpcs, batch, processes int, latencyMS float64) plan.Point {
	return plan.Point{GPCs: gpcs, Batch: batch, Processes: processes, LatencyMS: latencyMS,
		ThroughputRPS: 1000 * float64(batch*processes) / latencyMS}
}

func segment(gpu, slot int, pt plan.Point) plan.Segment {
	return plan.Segment{GPU: gpu, GPUModel: "a100-80", Slot: slot, GPCs: pt.GPCs, Service: "s", Model: "m",
		Batch: pt.Batch, Processes: pt.Processes, ThroughputRPS: pt.ThroughputRPS, LatencyMS: pt.LatencyMS}
}

func replayed(t testing.TB, p *plan.Problem, pl *plan.Plan, c Config) *Report {
	t.Helper()
	r, err := Run(p, pl, c)
	must.OK(t, err)
	return r
}

// One process that serves one request at a time is the queue M/D/1. An arrival
// waits with probability ρ (PASTA). The fraction that waits more than one
// service time is 1 − (1−ρ)(e^ρ) (Erlang 1909).
func TestQueueMD1(t *testing.T) {
	const rho, service, never = 0.6, 0.010, 1e9
	r := run{rate: rho / service, slo: never, warm: 10_000, measured: 400_000, arrivals: rand.New(rand.NewPCG(1, 0)),
		servers: []server{{ladder: ladder{[]int{1}, []float64{service}}, idle: 1, share: 1}}}
	r.route = newRouter(r.servers, rand.New(rand.NewPCG(1, 1)))
	o := r.simulate()
	for limit, want := range map[float64]float64{
		service + 1e-9: rho,
		2 * service:    1 - (1-rho)*math.Exp(rho),
	} {
		longer := 0
		for _, took := range o.latencies {
			if took > limit {
				longer++
			}
		}
		if part := float64(longer) / float64(len(o.latencies)); math.Abs(part-want) > 0.005 {
			t.Errorf("%.4f take longer than %v s, M/D/1 says %.4f", part, limit, want)
		}
	}
	if u := r.servers[0].busy / (r.to - r.from); math.Abs(u-rho) > 0.005 {
		t.Errorf("busy %.4f of the time, want %v", u, rho)
	}
}

// A loss system M/D/c/c: a request that finds all processes busy and has no
// time to wait is given up. Erlang's B counts these requests (it holds for any
// distribution of service).
func TestErlangB(t *testing.T) {
	const processes, offered = 4, 3.0
	pt := point(1, 1, processes, 10)
	p, pl := shop(t, offered*100, 10, []plan.Point{pt}, segment(0, 0, pt))
	s := replayed(t, p, pl, Config{MinRuns: 20}).Services[0]
	b := 1.0
	for n := 1; n <= processes; n++ {
		b = offered * b / (float64(n) + offered*b)
	}
	if math.Abs(s.Violations-b) > 0.005 {
		t.Errorf("%.4f given up, Erlang B says %.4f", s.Violations, b)
	}
}

func TestIdleService(t *testing.T) {
	points := []plan.Point{point(1, 1, 2, 4), point(1, 8, 2, 20), point(1, 16, 2, 30)}
	p, pl := shop(t, 0.01, 100, points, segment(0, 0, points[1]))
	r := replayed(t, p, pl, Config{Requests: 500})
	if s := r.Services[0]; math.Abs(s.P50MS-4) > 1e-6 || math.Abs(s.P99MS-4) > 1e-6 || s.Violations != 0 || s.High != 3.0/2500 {
		t.Errorf("%+v", s)
	}
}

func TestOverload(t *testing.T) {
	points := []plan.Point{point(1, 1, 2, 4), point(1, 8, 2, 20)}
	p, pl := shop(t, 1600, 100, points, segment(0, 0, points[1]))
	r := replayed(t, p, pl, Config{})
	if s := r.Services[0]; math.Abs(s.Violations-0.5) > 0.01 || s.P99MS > 100+1e-6 {
		t.Errorf("twice the throughput: %+v", s)
	}
	if r.Utilisation < 0.999 {
		t.Errorf("utilisation %v", r.Utilisation)
	}
}

func TestRouting(t *testing.T) {
	servers := []server{{share: 0.2}, {share: 0.8}}
	r := newRouter(servers, rand.New(rand.NewPCG(1, 2)))
	var requests [2]int
	for range 1000 {
		requests[r.next(servers)]++
	}
	if math.Abs(float64(requests[0]-200)) > 1 {
		t.Errorf("the servers got %v requests, want 200 and 800", requests)
	}
}

// A latency in whole milliseconds counts as the value that it was rounded from.
// A policy's own latency stretches the profile's.
func TestLadder(t *testing.T) {
	rounded := plan.Point{GPCs: 1, Batch: 2, Processes: 1, ThroughputRPS: 429.018, LatencyMS: 5}
	other := plan.Point{GPCs: 1, Batch: 4, Processes: 1, ThroughputRPS: 400, LatencyMS: 12}
	profile := plan.Profile{Points: []plan.Point{rounded, other}}
	s := segment(0, 0, other)
	l := steps(s, profile)
	if want := []float64{2 / 429.018, 0.012}; !slices.Equal(l.seconds, want) || !slices.Equal(l.sizes, []int{2, 4}) {
		t.Errorf("%+v, want %v seconds", l, want)
	}
	if l.takes(1) != l.takes(2) || l.takes(3) != l.takes(4) {
		t.Error("a batch takes as long as the next measured size up")
	}
	s.LatencyMS *= 1.5
	if l := steps(s, profile); math.Abs(l.seconds[0]-3/429.018) > 1e-9 || math.Abs(l.seconds[1]-0.018) > 1e-9 {
		t.Errorf("stretched: %+v", l)
	}
	s.Processes = 7
	if l := steps(s, profile); !slices.Equal(l.sizes, []int{4}) || l.seconds[0] != 0.018 {
		t.Errorf("never measured: %+v", l)
	}
}

func TestReportReproducible(t *testing.T) {
	pt := point(1, 4, 2, 10)
	p, pl := shop(t, 700, 30, []plan.Point{pt}, segment(0, 0, pt))
	alone := replayed(t, p, pl, Config{Seed: 7})
	for _, name := range []string{"a", "z"} {
		s := p.Services[0]
		s.Name = name
		p.Services = append(p.Services, s)
		g := segment(len(p.Services), 0, pt)
		g.Service = name
		pl.Segments = append(pl.Segments, g)
	}
	pl = plan.New(p, "test", pl.Segments)
	many := replayed(t, p, pl, Config{Seed: 7})
	if !reflect.DeepEqual(alone.Services[0], many.Services[0]) {
		t.Errorf("alone %+v\nwith others %+v", alone.Services[0], many.Services[0])
	}
	if many.Services[1].Violations == many.Services[2].Violations && many.Services[1].P99MS == many.Services[2].P99MS {
		t.Error("two services share their chance")
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	if again := replayed(t, p, pl, Config{Seed: 7}); !reflect.DeepEqual(many, again) {
		t.Error("one CPU gives another report")
	}
}

func TestSegmentPlace(t *testing.T) {
	small, large := point(1, 8, 1, 40), point(3, 8, 1, 10)
	points := []plan.Point{small, large}
	p, pl := shop(t, 950, 60, points, segment(0, 0, small), segment(0, 4, large))
	_, other := shop(t, 950, 60, points, segment(0, 4, large), segment(1, 0, small))
	a, b := replayed(t, p, pl, Config{}), replayed(t, p, other, Config{})
	if !reflect.DeepEqual(a.Services, b.Services) || a.Services[0].Violations == 0 {
		t.Errorf("%+v\n%+v", a.Services, b.Services)
	}
	if a.Utilisation != b.Utilisation {
		t.Errorf("utilisation %v and %v", a.Utilisation, b.Utilisation)
	}
}

// The interval contains the true value about as often as it claims. The test
// uses the loss system M/D/1/1, which loses ρ / (1 + ρ), in independent reports.
func TestConfidence(t *testing.T) {
	const rho, lost = 0.8, 0.8 / 1.8
	pt := point(1, 1, 1, 10)
	p, pl := shop(t, rho*100, 10, []plan.Point{pt}, segment(0, 0, pt))
	held := 0
	const reports = 200
	for seed := range uint64(reports) {
		s := replayed(t, p, pl, Config{Seed: 1 + seed<<20, Requests: 2000, MaxRuns: 5}).Services[0]
		if s.Low <= lost && lost <= s.High {
			held++
		}
	}
	if held < reports*90/100 {
		t.Errorf("%d of %d intervals held the truth", held, reports)
	}
}

func TestNoSegment(t *testing.T) {
	pt := point(1, 1, 1, 10)
	p, pl := shop(t, 1, 100, []plan.Point{pt}, segment(0, 0, pt))
	pl.Segments = nil
	if _, err := Run(p, pl, Config{}); err == nil || err.Error() != `replay: service "s" has no segment` {
		t.Error(err)
	}
}

// Every request is answered, given up or late, and requests are served in order
// of arrival. A segment never runs more batches at once than it has processes.
func TestRunCounts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var l ladder
		at := 0.0
		for size := 1; size <= rapid.SampledFrom([]int{1, 2, 8, 32}).Draw(t, "batch"); size *= 2 {
			at += rapid.Float64Range(0.001, 0.1).Draw(t, "step")
			l.sizes, l.seconds = append(l.sizes, size), append(l.seconds, at)
		}
		n := rapid.IntRange(1, 4).Draw(t, "segments")
		processes := rapid.IntRange(1, 5).Draw(t, "processes")
		capacity := float64(n*processes*l.sizes[len(l.sizes)-1]) / at
		r := run{rate: capacity * rapid.Float64Range(0.05, 3).Draw(t, "load"), slo: at * rapid.Float64Range(0.5, 5).Draw(t, "slo"),
			warm: rapid.IntRange(0, 50).Draw(t, "warm"), measured: rapid.IntRange(1, 500).Draw(t, "measured")}
		seed := rapid.Uint64().Draw(t, "seed")
		r.arrivals = rand.New(rand.NewPCG(seed, 0))
		for range n {
			r.servers = append(r.servers, server{ladder: l, idle: processes, share: 1 / float64(n)})
		}
		r.route = newRouter(r.servers, rand.New(rand.NewPCG(seed, 1)))
		o := r.simulate()
		if ran := len(o.latencies); ran+o.givenUp != r.measured {
			t.Fatalf("%d ran, %d given up, of %d", ran, o.givenUp, r.measured)
		}
		for _, v := range r.servers {
			if v.idle != processes || len(r.ending) > 0 || v.queue.len() > 0 {
				t.Fatalf("left over: %+v", v)
			}
			if v.busy > float64(processes)*(r.to-r.from)+1e-9 {
				t.Fatalf("busy %v of %v process-seconds", v.busy, float64(processes)*(r.to-r.from))
			}
		}
		for _, took := range o.latencies {
			if took < l.seconds[0]-1e-9 {
				t.Fatalf("took %v, the least is %v", took, l.seconds[0])
			}
			if took > r.slo+1e-9 {
				t.Fatalf("took %v, the objective is %v", took, r.slo)
			}
		}
	})
}

// pick agrees with batching.Pick's search over all sizes.
func TestPick(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var l ladder
		var at float64
		size := 0
		for range rapid.IntRange(1, 6).Draw(t, "steps") {
			size += rapid.IntRange(1, 8).Draw(t, "size")
			at += rapid.Float64Range(0.1, 5).Draw(t, "step")
			l.sizes, l.seconds = append(l.sizes, size), append(l.seconds, at)
		}
		v := server{ladder: l}
		came := 0.0
		for range rapid.IntRange(1, 60).Draw(t, "waiting") {
			came += rapid.Float64Range(0, 1).Draw(t, "gap")
			v.queue.push(came)
		}
		slo := rapid.Float64Range(0, 30).Draw(t, "slo")
		tooLate := func(takes float64) (n int) {
			for _, c := range v.queue.front() {
				if c < came+takes-slo {
					n++
				}
			}
			return n
		}
		batch, late, cost := 0, v.queue.len(), 0.0
		for n := 1; n <= min(v.limit(), v.queue.len()); n++ {
			takes := l.takes(n)
			if n > v.queue.len()-tooLate(takes) {
				break
			}
			if batch == 0 || 1000*float64(n)*cost >= 999*float64(batch)*takes {
				batch, late, cost = n, tooLate(takes), takes
			}
		}
		if n, l := v.pick(came, slo); n != batch || l != late {
			t.Fatalf("pick says %d and %d late, the search %d and %d", n, l, batch, late)
		}
	})
}
