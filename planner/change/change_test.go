package change

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/plan"
	"github.com/penstock/penstock/planner/pack"
	"github.com/penstock/penstock/planner/verify"
)

// published returns ParvaGPU's profiles and a scenario of its Table IV.
func published(t testing.TB, scenario string) *plan.Problem {
	t.Helper()
	profiles, err := plan.ReadProfiles(os.DirFS("../../plan/testdata/parvagpu/prof_data"))
	must.OK(t, err)
	file, err := os.Open("../../plan/testdata/parvagpu/scenarios_s1_s3.csv")
	must.OK(t, err)
	defer file.Close()
	services, err := plan.ReadServices(file, file.Name(), scenario)
	must.OK(t, err)
	gpu, err := plan.Lookup("a100-80")
	must.OK(t, err)
	return &plan.Problem{GPU: gpu, Services: services, Profiles: profiles}
}

func planned(t testing.TB, p *plan.Problem) *plan.Plan {
	t.Helper()
	pl, err := pack.New().Plan(p)
	must.OK(t, err)
	return pl
}

// with returns the problem with one service changed.
func with(p *plan.Problem, name string, change func(*plan.Service)) *plan.Problem {
	changed := *p
	changed.Services = slices.Clone(p.Services)
	change(&changed.Services[slices.IndexFunc(changed.Services, func(s plan.Service) bool { return s.Name == name })])
	return &changed
}

// without returns the problem without one service.
func without(p *plan.Problem, name string) *plan.Problem {
	changed := *p
	changed.Services = slices.DeleteFunc(slices.Clone(p.Services), func(s plan.Service) bool { return s.Name == name })
	return &changed
}

func changed(t testing.TB, old *plan.Plan, p *plan.Problem) *Change {
	t.Helper()
	c, err := From(old, p)
	must.OK(t, err)
	hold(t, old, p, c)
	return c
}

// fate returns the effect of a change on a service.
func (c *Change) fate(name string) Service {
	return c.Services[slices.IndexFunc(c.Services, func(s Service) bool { return s.Service == name })]
}

// fataler is *testing.T and *rapid.T.
type fataler interface {
	Helper()
	Fatalf(string, ...any)
}

// hold checks everything that holds for every change.
func hold(t fataler, old *plan.Plan, p *plan.Problem, c *Change) {
	t.Helper()
	if err := verify.Plan(p, c.Plan); err != nil {
		t.Fatalf("the new plan: %v", err)
	}
	of := func(pl *plan.Plan, service string) (list []plan.Segment) {
		for _, g := range pl.Segments {
			if g.Service == service {
				list = append(list, g)
			}
		}
		return list
	}
	should := map[string]float64{}
	gone := map[string]bool{}
	alone, bounded := 0, true
	for _, s := range c.Services {
		switch s.Fate {
		case Stays:
			if is, was := of(c.Plan, s.Service), of(old, s.Service); !reflect.DeepEqual(is, was) || s.Kept != len(was) {
				t.Fatalf("%s stays, and moves from %+v to %+v", s.Service, was, is)
			}
			should[s.Service] = s.RateRPS
		case Changes, Moves:
			if s.Fate == Moves && len(p.Fleet) == 0 {
				t.Fatalf("%s moves, though there are GPUs without end", s.Service)
			}
			should[s.Service] = min(s.RateRPS, s.OldRateRPS)
		case Removed:
			gone[s.Service] = true
		}
		if n := len(of(c.Plan, s.Service)); s.Fate != Removed && s.Kept+s.Retuned+s.Created != n {
			t.Fatalf("%+v: it has %d segments", s, n)
		}
		if s.Fate == Changes || s.Fate == New {
			only := *p
			only.Services = []plan.Service{p.Services[slices.IndexFunc(p.Services, func(q plan.Service) bool { return q.Name == s.Service })]}
			only.Fleet = nil
			by, err := pack.New().Plan(&only)
			if err != nil { // the policy does not support this GPU
				bounded = false
				continue
			}
			alone += by.GPUs
		}
	}
	if bounded && len(p.Fleet) == 0 && c.Plan.GPUs > old.GPUs+alone {
		t.Fatalf("%d GPUs: the old plan has %d and what changes needs %d by itself", c.Plan.GPUs, old.GPUs, alone)
	}

	// Check each step.
	now := slices.Clone(old.Segments)
	short := map[string]bool{}
	for i, s := range c.Steps {
		g := s.Segment
		at := slices.IndexFunc(now, func(n plan.Segment) bool { return samePlace(n, g) })
		if (s.Op == Create) != (at < 0) {
			t.Fatalf("step %d, %s: there is %d", i, s, at)
		}
		switch s.Op {
		case Create:
			now = append(now, g)
		case Retune:
			if !samePlace(g, *s.Was) || !sameWork(now[at], *s.Was) || sameWork(g, *s.Was) {
				t.Fatalf("step %d, %s: there is %+v", i, s, now[at])
			}
			now[at] = g
		case Destroy:
			now = slices.Delete(now, at, at+1)
		}
		if s.ShortRPS > 0 {
			short[g.Service] = true
		}
		between := *c.Plan
		between.Segments, between.GPUs, between.IdleGPUs = slices.Clone(now), 0, nil
		gpus := map[int]bool{}
		has := map[string]float64{}
		for _, n := range now {
			gpus[n.GPU] = true
			has[n.Service] += n.ThroughputRPS
		}
		between.GPUs = len(gpus)
		if between.GPUs > c.GPUsDuring {
			t.Fatalf("step %d, %s: %d GPUs, not %d", i, s, between.GPUs, c.GPUsDuring)
		}
		if err := verify.Layout(dense(&between)); err != nil {
			t.Fatalf("step %d, %s: %v", i, s, err)
		}
		for name, want := range should {
			if has[name] < want*(1-1e-9) && !short[name] {
				t.Fatalf("step %d, %s: %s has %v, want %v", i, s, name, has[name], want)
			}
		}
	}
	slices.SortFunc(now, compareSegments)
	if len(now) != len(c.Plan.Segments) {
		t.Fatalf("%d segments after all steps, want %d", len(now), len(c.Plan.Segments))
	}
	for i, n := range now {
		if want := c.Plan.Segments[i]; n.Service != want.Service || !samePlace(n, want) || !sameWork(n, want) {
			t.Fatalf("after all steps there is %+v, want %+v", n, want)
		}
	}
}

// dense numbers GPUs without gaps, so that an intermediate state can be laid
// out.
func dense(pl *plan.Plan) *plan.Plan {
	var numbers []int
	pl.GPCs = 0
	for _, g := range pl.Segments {
		numbers = append(numbers, g.GPU)
		pl.GPCs += g.GPCs
	}
	slices.Sort(numbers)
	numbers = slices.Compact(numbers)
	for i := range pl.Segments {
		pl.Segments[i].GPU, _ = slices.BinarySearch(numbers, pl.Segments[i].GPU)
	}
	return pl
}

func TestUnchangedServices(t *testing.T) {
	p := published(t, "S3")
	old := planned(t, p)
	c := changed(t, old, p)
	if len(c.Steps) > 0 || !reflect.DeepEqual(c.Plan.Segments, old.Segments) || !reflect.DeepEqual(c.Plan.Services, old.Services) {
		t.Errorf("%d steps", len(c.Steps))
	}
	if c.Plan.InternalSlack != old.InternalSlack || c.Plan.ExternalFragmentation != old.ExternalFragmentation || c.GPUsDuring != old.GPUs {
		t.Errorf("%+v", c)
	}
}

// Only segments that the old plan no longer needs may go.
func TestEasierObjective(t *testing.T) {
	p := published(t, "S3")
	old := planned(t, p)
	for _, s := range p.Services {
		c := changed(t, old, with(p, s.Name, func(s *plan.Service) { s.SLOMS *= 1.01 }))
		if f := c.fate(s.Name); f.Created+f.Retuned > 0 {
			t.Errorf("%s: %v", s.Name, c.Steps)
		}
	}
}

func TestSmallRateChange(t *testing.T) {
	p := published(t, "S3")
	old := planned(t, p)
	for _, s := range old.Services {
		for _, rate := range []float64{s.RateRPS * 0.99, s.AssignedRPS} {
			c := changed(t, old, with(p, s.Service, func(s *plan.Service) { s.RateRPS = rate }))
			if f := c.fate(s.Service); f.Created+f.Retuned > 0 {
				t.Errorf("%s at %v: %+v", s.Service, rate, f)
			}
		}
	}
}

func TestHigherRate(t *testing.T) {
	p := published(t, "S1")
	old := planned(t, p)
	c := changed(t, old, with(p, "resnet50", func(s *plan.Service) { s.RateRPS *= 3 }))
	f := c.fate("resnet50")
	if f.Fate != Changes || f.Destroyed > 0 || f.Created == 0 || len(c.Spares) > 0 {
		t.Errorf("%+v\n%v", f, c.Steps)
	}
}

func TestHarderObjective(t *testing.T) {
	p := published(t, "S1")
	old := planned(t, p)
	c := changed(t, old, with(p, "inceptionv3", func(s *plan.Service) { s.SLOMS /= 2 }))
	if f := c.fate("inceptionv3"); f.Retuned != 1 || f.Created+f.Destroyed > 0 {
		t.Errorf("%+v\n%v", f, c.Steps)
	}
	if len(c.Steps) != 1 || c.Steps[0].Op != Retune || !strings.Contains(c.Steps[0].String(), "was batch") {
		t.Errorf("%v", c.Steps)
	}
}

func TestGPUNumbers(t *testing.T) {
	p := published(t, "S1")
	gpu, bert := p.GPU, p.Services[0]
	other := p.Services[1]
	points, err := p.Feasible(gpu, bert)
	must.OK(t, err)
	quick, err := p.Feasible(gpu, other)
	must.OK(t, err)
	last := func(points []plan.Point, rate float64) plan.Point {
		return points[slices.IndexFunc(points, func(pt plan.Point) bool { return pt.ThroughputRPS >= rate })]
	}
	two := *p
	two.Services = []plan.Service{bert, other}
	old := plan.New(&two, "penstock", []plan.Segment{
		plan.SegmentOf(0, gpu, 0, bert, last(points, bert.RateRPS)),
		plan.SegmentOf(1, gpu, 0, other, last(quick, other.RateRPS)),
	})
	c := changed(t, old, without(&two, bert.Name))
	if c.Plan.GPUs != 1 || !slices.Equal(c.Plan.IdleGPUs, []int{0}) || c.Plan.Segments[0].GPU != 1 {
		t.Fatalf("%+v", c.Plan)
	}
	again := two
	again.Services = []plan.Service{other, {Name: "second", Model: other.Model, RateRPS: 12 * last(quick, other.RateRPS).ThroughputRPS, SLOMS: other.SLOMS}}
	c = changed(t, c.Plan, &again)
	if c.Plan.GPUs < 2 || len(c.Plan.IdleGPUs) > 0 {
		t.Errorf("%d GPUs, %v idle", c.Plan.GPUs, c.Plan.IdleGPUs)
	}
}

// Proofs about an unchanged plan stay.
func TestNoChange(t *testing.T) {
	for _, scenario := range []string{"S1", "S2", "S3"} {
		p := published(t, scenario)
		old, err := pack.New().Plan(p)
		must.OK(t, err)
		if c := changed(t, old, p); !reflect.DeepEqual(c.Plan, old) || !old.Optimal {
			t.Errorf("%s: the plan is\n%+v\nafter a change of nothing, was\n%+v", scenario, c.Plan, old)
		}
		// Most services go: the remaining ones do not move closer together.
		few := *p
		few.Services = []plan.Service{p.Services[0], p.Services[len(p.Services)-1]}
		c := changed(t, old, &few)
		if c.Plan.LowerBound != 1 || c.Plan.Optimal != (c.Plan.GPUs == 1) {
			t.Errorf("%s: %d GPUs, at least %d, optimal %v", scenario, c.Plan.GPUs, c.Plan.LowerBound, c.Plan.Optimal)
		}
		if c.Plan.GPUs > 1 && !slices.Contains(c.Plan.Notes, fmt.Sprintf("a new plan without --from has 1 GPUs, not %d, but moves services that stay here", c.Plan.GPUs)) {
			t.Errorf("%s: %q", scenario, c.Plan.Notes)
		}
	}
}

// A new plan fits into these fleets; one next to the segments that stay does
// not.
func TestMakeRoom(t *testing.T) {
	type s = plan.Service
	full := func(name, model string, rate, slo float64) s {
		return s{Name: name, Model: model, RateRPS: rate, SLOMS: slo}
	}
	for _, c := range []struct {
		services []s
		which    string
		rate     float64
		gpus     int
	}{
		{[]s{full("s0", "vgg19", 813.9, 250), full("s1", "vgg19", 190.3, 400), full("s2", "densenet201", 472, 800), full("s3", "resnet152", 525.2, 800),
			full("s4", "densenet169", 697.7, 250), full("s5", "resnet152", 512.4, 400), full("s6", "resnet152", 614.8, 250), full("s7", "resnet50", 213, 250)}, "s5", 768.6, 3},
		{[]s{full("s0", "resnet101", 628.8, 250), full("s1", "bert", 682.3, 400), full("s2", "densenet201", 475.2, 400), full("s3", "densenet121", 169.6, 400),
			full("s4", "bert", 91.7, 250), full("s5", "densenet201", 529.6, 250)}, "s0", 817.4, 2},
		{[]s{full("s0", "resnet101", 287.1, 250), full("s1", "densenet169", 184.8, 250), full("s2", "densenet121", 160.2, 250), full("s3", "resnet152", 878.7, 400),
			full("s4", "vgg19", 391.5, 800), full("s5", "resnet101", 241.5, 400), full("s6", "resnet101", 356.9, 400)}, "s6", 535.3, 2},
	} {
		p := published(t, "S1")
		p.Services = c.services
		old, err := pack.New().Plan(p)
		must.OK(t, err)
		p.Fleet = []plan.Stock{{GPU: p.GPU, Count: c.gpus}}
		change := changed(t, old, with(p, c.which, func(s *plan.Service) { s.RateRPS = c.rate }))
		moved := 0
		for _, s := range change.Services {
			if s.Fate == Moves {
				moved++
			}
		}
		if moved == 0 || moved >= len(c.services) {
			t.Errorf("%d of %d move: %v", moved, len(c.services), change.Steps)
		}
	}
}

// crowded returns a full GPU on which service a must replace four small
// segments by a large one in their place, while b stays.
func crowded(t testing.TB) (old *plan.Plan, p *plan.Problem) {
	t.Helper()
	gpu, err := plan.Lookup("a100-80")
	must.OK(t, err)
	slow := plan.Point{GPCs: 1, Batch: 8, Processes: 1, ThroughputRPS: 100, LatencyMS: 80}
	quick := plan.Point{GPCs: 4, Batch: 8, Processes: 1, ThroughputRPS: 400, LatencyMS: 20}
	other := plan.Point{GPCs: 3, Batch: 8, Processes: 1, ThroughputRPS: 160, LatencyMS: 50}
	points := []plan.Point{slow, other, quick}
	p = &plan.Problem{GPU: gpu, Profiles: map[string]map[string]plan.Profile{gpu.Name: {"m": {Model: "m", GPU: gpu.Name, Points: points}}},
		Services: []plan.Service{{Name: "a", Model: "m", RateRPS: 390, SLOMS: 200}, {Name: "b", Model: "m", RateRPS: 150, SLOMS: 200}}}
	var segments []plan.Segment
	for slot := range 4 {
		segments = append(segments, plan.SegmentOf(0, gpu, slot, p.Services[0], slow))
	}
	segments = append(segments, plan.SegmentOf(0, gpu, 4, p.Services[1], other))
	return plan.New(p, "penstock", segments), with(p, "a", func(s *plan.Service) { s.SLOMS = 50 })
}

func TestShadowFirst(t *testing.T) {
	old, p := crowded(t)
	c := changed(t, old, p)
	if c.Plan.GPUs != 1 || c.GPUsDuring != 2 || len(c.Spares) != 4 || !c.Spares[0].ExtraGPU || c.Spares[0].GPU != 1 {
		t.Errorf("%d GPUs, %d during, %+v", c.Plan.GPUs, c.GPUsDuring, c.Spares)
	}
	var ops []string
	for _, s := range c.Steps {
		op := string(s.Op)
		if s.Shadow {
			op += " shadow"
		}
		ops = append(ops, op)
	}
	want := []string{
		"create shadow", "destroy", "create shadow", "destroy", "create shadow", "destroy", "create shadow", "destroy", "create",
		"destroy shadow", "destroy shadow", "destroy shadow", "destroy shadow",
	}
	if !slices.Equal(ops, want) {
		t.Errorf("%v", c.Steps)
	}
}

func TestShortRPS(t *testing.T) {
	old, p := crowded(t)
	p.Fleet = []plan.Stock{{GPU: p.GPU, Count: 1}}
	c := changed(t, old, p)
	var short []float64
	for _, s := range c.Steps {
		if s.Op == Destroy {
			short = append(short, s.ShortRPS)
		}
	}
	if !slices.Equal(short, []float64{90, 190, 290, 390}) || c.GPUsDuring != 1 || len(c.Spares) > 0 {
		t.Errorf("short of %v\n%v", short, c.Steps)
	}
}

func TestFleetFull(t *testing.T) {
	p := published(t, "S1")
	old := planned(t, p)
	p.Fleet = []plan.Stock{{GPU: p.GPU, Count: old.GPUs}}
	_, err := From(old, with(p, "vgg19", func(s *plan.Service) { s.RateRPS *= 10 }))
	var small *plan.TooSmall
	if !errors.As(err, &small) {
		t.Fatal(err)
	}
	for _, s := range small.Services {
		if (s.Service == "vgg19") != (s.PlacedRPS < s.RateRPS) || s.PlacedRPS == 0 {
			t.Errorf("%+v", s)
		}
	}
}

func TestOldPlanErrors(t *testing.T) {
	p := published(t, "S1")
	spoil := func(how func(*plan.Plan)) *plan.Plan {
		pl := planned(t, p)
		how(pl)
		return pl
	}
	for name, c := range map[string]struct {
		old  *plan.Plan
		want string
	}{
		"another GPU": {spoil(func(pl *plan.Plan) {
			for i := range pl.Segments {
				pl.Segments[i].GPUModel = "h100-80"
			}
		}), "is on a h100-80: want GPUs of [a100-80]"},
		"one process a segment":   {spoil(func(pl *plan.Plan) { pl.Policy = "parvagpu-single" }), `it is of policy "parvagpu-single", whose rules`},
		"bounds that were learnt": {spoil(func(pl *plan.Plan) { pl.Policy = "penstock-sim" }), "make a new plan without --from"},
		"overlap": {spoil(func(pl *plan.Plan) {
			pl.Segments[1].GPU, pl.Segments[1].Slot = pl.Segments[0].GPU, pl.Segments[0].Slot
		}), "covers slot"},
		"a rate that it does not meet": {spoil(func(pl *plan.Plan) { pl.Services[0].RateRPS *= 100 }), "wants"},
		"a point that is not measured": {spoil(func(pl *plan.Plan) { pl.Segments[0].Batch = 77 }), "no such point"},
	} {
		if _, err := From(c.old, p); !errors.Is(err, ErrOldPlan) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestNewServiceInfeasible(t *testing.T) {
	p := published(t, "S1")
	old := planned(t, p)
	var infeasible *plan.Infeasible
	if _, err := From(old, with(p, "bert", func(s *plan.Service) { s.SLOMS = 1 })); !errors.As(err, &infeasible) {
		t.Error(err)
	}
	var none *plan.NoProfile
	if _, err := From(old, with(p, "bert", func(s *plan.Service) { s.Model = "gpt" })); !errors.As(err, &none) {
		t.Error(err)
	}
}

// The invariants of every change hold for random changes.
func TestChanges(t *testing.T) {
	published := published(t, "S3")
	rapid.Check(t, func(t *rapid.T) {
		p := *published
		draw := func(name string, s plan.Service) plan.Service {
			s.RateRPS *= rapid.Float64Range(0.1, 4).Draw(t, name+" rate")
			s.SLOMS *= rapid.Float64Range(0.6, 2).Draw(t, name+" SLO")
			return s
		}
		p.Services = nil
		for _, s := range published.Services {
			if rapid.Bool().Draw(t, s.Name) {
				p.Services = append(p.Services, draw("old "+s.Name, s))
			}
		}
		if len(p.Services) == 0 {
			t.Skip("no services")
		}
		old, err := pack.New().Plan(&p)
		if err != nil {
			t.Skip(err)
		}
		now := p
		now.Services = nil
		for _, s := range published.Services {
			at := slices.IndexFunc(p.Services, func(o plan.Service) bool { return o.Name == s.Name })
			switch rapid.SampledFrom([]string{"stay", "stay", "stay", "change", "remove", "add"}).Draw(t, "fate of "+s.Name) {
			case "stay":
				if at >= 0 {
					now.Services = append(now.Services, p.Services[at])
				}
			case "change":
				if at >= 0 {
					now.Services = append(now.Services, draw("new "+s.Name, s))
				}
			case "add":
				if at < 0 {
					now.Services = append(now.Services, draw("new "+s.Name, s))
				}
			}
		}
		if len(now.Services) == 0 {
			t.Skip("no services")
		}
		if rapid.Bool().Draw(t, "tight") {
			now.Fleet = []plan.Stock{{GPU: p.GPU, Count: old.GPUs}}
		}
		c, err := From(old, &now)
		var small *plan.TooSmall
		var infeasible *plan.Infeasible
		if errors.As(err, &small) && len(now.Fleet) > 0 || errors.As(err, &infeasible) {
			return
		}
		must.OK(t, err)
		hold(t, old, &now, c)
		again, err := From(old, &now)
		if err != nil || !reflect.DeepEqual(c, again) {
			t.Fatalf("not the same again: %v", err)
		}
	})
}

// MPS admits 48 processes on a V100: a change opens a second GPU for more.
func TestMPSClients(t *testing.T) {
	gpu, err := plan.Lookup("v100")
	must.OK(t, err)
	point := plan.Point{GPCs: 4, Batch: 1, Processes: 5, ThroughputRPS: 100, LatencyMS: 1}
	p := &plan.Problem{GPU: gpu, Services: []plan.Service{{Name: "a", Model: "m", RateRPS: 100, SLOMS: 10}},
		Profiles: map[string]map[string]plan.Profile{gpu.Name: {"m": {Model: "m", GPU: gpu.Name, Points: []plan.Point{point}}}}}
	old := plan.New(p, "penstock", []plan.Segment{plan.SegmentOf(0, gpu, 0, p.Services[0], point)})
	c := changed(t, old, with(p, "a", func(s *plan.Service) { s.RateRPS = 1000 }))
	if c.Plan.GPUs != 2 {
		t.Errorf("10 × 5 processes on %d GPUs", c.Plan.GPUs)
	}
}

// GPUs without MIG share their memory. A change must not create a segment or
// start a shadow for which a GPU has no memory.
func TestChangesWithoutMIG(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		gpu := plan.PercentGPU("v100", 80, 16384, 8)
		var points []plan.Point
		for _, steps := range []int{1, 2, 4, 7, 10} {
			for _, batch := range []int{1, 8} {
				took := 4 + 30*float64(batch)/float64(steps)
				points = append(points, plan.Point{GPCs: steps, Batch: batch, Processes: 1, LatencyMS: took,
					ThroughputRPS: 1000 * float64(batch) / took, MemoryMiB: 2500 + 100*float64(batch)})
			}
		}
		p := &plan.Problem{GPU: gpu, Profiles: map[string]map[string]plan.Profile{"v100": {"m": {Model: "m", GPU: "v100", Points: points}}}}
		draw := func(name string) plan.Service {
			return plan.Service{Name: name, Model: "m", RateRPS: rapid.Float64Range(1, 400).Draw(t, name+" rate"), SLOMS: rapid.Float64Range(100, 800).Draw(t, name+" SLO")}
		}
		for _, name := range []string{"a", "b", "c", "d"} {
			p.Services = append(p.Services, draw(name))
		}
		// A change of an empty plan makes the first plan.
		first, err := From(&plan.Plan{Version: plan.Version, Policy: "penstock", GPUModel: gpu.Name}, p)
		must.OK(t, err)
		now := *p
		now.Services = slices.Clone(p.Services)
		for range rapid.IntRange(1, 3).Draw(t, "changes") {
			i := rapid.IntRange(0, 3).Draw(t, "which")
			now.Services[i] = draw(now.Services[i].Name)
		}
		c, err := From(first.Plan, &now)
		must.OK(t, err)
		hold(t, first.Plan, &now, c)
		for i := range c.Steps {
			memory := map[int]float64{}
			exists := slices.Clone(first.Plan.Segments)
			for _, s := range c.Steps[:i+1] {
				exists = slices.DeleteFunc(exists, func(g plan.Segment) bool { return samePlace(g, s.Segment) })
				if s.Op != Destroy {
					exists = append(exists, s.Segment)
				}
			}
			if s := c.Steps[i]; s.Op == Retune {
				exists = append(exists, *s.Was) // next to its new state
			}
			for _, g := range exists {
				memory[g.GPU] += 2500 + 100*float64(g.Batch)
				if memory[g.GPU] > float64(gpu.MemoryMiB) {
					t.Fatalf("step %d, %s: gpu %d holds %v MiB", i, c.Steps[i], g.GPU, memory[g.GPU])
				}
			}
		}
	})
}
