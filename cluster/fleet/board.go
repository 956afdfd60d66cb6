package fleet

import (
	"cmp"
	"maps"
	"slices"

	"github.com/penstock/penstock/cluster/api/v1alpha1"
	"github.com/penstock/penstock/plan"
	"github.com/penstock/penstock/planner/pack"
)

// A board is the running plan, by what may become of it.
type board struct {
	// used are the GPUs of old segments, by their numbers in plans. GPUs that a change takes in addition follow.
	used []*GPU
	// running are the segments on used GPUs that planner/change may keep.
	running []running
	// first are segments on good GPUs that must go before anything is created. They drain, do not answer, overlap another one, or
	// are not of the plan's making.
	first []running
	// last are segments on leaving and lost GPUs.
	last []running
	// fixed is the throughput of segments on GPUs of unknown state, fixedGPCs their size, by function and namespace.
	fixed     map[string]float64
	fixedGPCs map[string]int
	// services are the functions as they run.
	services map[string]plan.Service
}

// A running segment is one of a GPUPlan.
type running struct {
	v1alpha1.Segment
	gpu *GPU
	ref reference
	// as is the segment as one of a plan.
	as plan.Segment
}

func (r *running) function() string { return r.Namespace + "/" + r.Function }

// never is a latency in milliseconds that no objective of a Function allows. ever is an objective that allows it.
const (
	never = 1e12
	ever  = 1e15
)

// newBoard sorts the segments of the running plan.
func newBoard(n *planner) *board {
	b := &board{fixed: map[string]float64{}, fixedGPCs: map[string]int{}, services: map[string]plan.Service{}}
	gpus := map[string]*GPU{}
	for i := range n.GPUs {
		gpus[n.GPUs[i].Name()] = &n.GPUs[i]
	}
	plans := slices.SortedFunc(slices.Values(n.Plans), func(a, b *v1alpha1.GPUPlan) int {
		return cmp.Or(cmp.Compare(a.Spec.Number, b.Spec.Number), cmp.Compare(a.Name, b.Name))
	})
	models := b.models(n, plans, gpus)
	for _, p := range plans {
		g := gpus[p.Name]
		if g == nil {
			continue
		}
		kept := len(b.running)
		for _, s := range p.Spec.Segments {
			r := running{Segment: s, gpu: g, ref: referTo(p)}
			_, wanted := n.byName[r.function()]
			switch {
			case g.Health >= Leaving || g.Health == Unknown && !wanted:
				b.last = append(b.last, r)
			case g.Health == Unknown:
				b.fixed[r.function()] += s.Throughput.AsApproximateFloat64()
				b.fixedGPCs[s.Namespace] += sevenths(g.Table, int(s.GPCs))
			case s.Draining || n.Dead[s.Name] || g.device(int(s.GPCs), int(s.Slot)) != s.Device || s.Model != models[r.function()] ||
				slices.ContainsFunc(b.running[kept:], func(old running) bool { return Overlap(&g.Table, &old.Segment, &s) }):
				b.first = append(b.first, r)
			default:
				if last := len(b.used) - 1; last < 0 || b.used[last] != g {
					b.used = append(b.used, g)
				}
				b.running = append(b.running, r)
			}
		}
	}
	b.serve(n)
	return b
}

// Overlap reports whether two segments of a GPU cover the same slots. Those of a GPU without MIG share it.
func Overlap(table *plan.GPU, a, b *v1alpha1.Segment) bool {
	of, ok := table.Size(int(a.GPCs))
	with, known := table.Size(int(b.GPCs))
	return ok && known && !table.Percent && int(a.Slot) < int(b.Slot)+with.Slots && int(b.Slot) < int(a.Slot)+of.Slots
}

// models returns the model that each function runs. While a change is from one model to another, it is the wanted one.
func (b *board) models(n *planner, plans []*v1alpha1.GPUPlan, gpus map[string]*GPU) map[string]string {
	models := map[string]string{}
	for _, p := range plans {
		for _, s := range p.Spec.Segments {
			r := running{Segment: s}
			if gpus[p.Name] != nil && gpus[p.Name].Health == Good && (models[r.function()] == "" || s.Model == n.byName[r.function()].Model) {
				models[r.function()] = s.Model
			}
		}
	}
	return models
}

// A reference names a GPUPlan, which may not exist yet.
type reference struct {
	name string
	v1alpha1.Place
}

func referTo(p *v1alpha1.GPUPlan) reference { return reference{p.Name, p.Spec.Place} }

// serve makes the running segments those of a plan. A point that a profile no longer has is added to it, as one that no
// objective allows: a change then replaces it.
func (b *board) serve(n *planner) {
	numbers := map[*GPU]int{}
	for i, g := range b.used {
		numbers[g] = i
	}
	n.profiles = map[string]map[string]plan.Profile{}
	maps.Copy(n.profiles, n.State.Profiles)
	smallest := map[string]float64{}
	for i := range b.running {
		r := &b.running[i]
		pt, ok := point(n.profiles, r)
		if !ok {
			pt = plan.Point{GPCs: int(r.GPCs), Batch: int(r.Batch), Processes: int(r.Processes), ThroughputRPS: r.Throughput.AsApproximateFloat64(), LatencyMS: never}
			if r.SharePercent != nil {
				pt.SharePercent = r.SharePercent.AsApproximateFloat64()
			}
			addPoint(n.profiles, r.gpu.Table.Name, r.Model, pt)
		}
		s := plan.Service{Name: r.function(), Model: r.Model, SLOMS: milliseconds(r.SLO.Duration)}
		r.as = plan.SegmentOf(numbers[r.gpu], r.gpu.Table, int(r.Slot), s, pt)
		was := b.services[s.Name]
		s.RateRPS = was.RateRPS + pt.ThroughputRPS
		if s.SLOMS = max(s.SLOMS, was.SLOMS); pt.LatencyMS >= plan.HalfSLO(s) {
			s.SLOMS = ever
		}
		b.services[s.Name] = s
		if least, known := smallest[s.Name]; !known || pt.ThroughputRPS < least {
			smallest[s.Name] = pt.ThroughputRPS
		}
	}
	for name, s := range b.services {
		reach := s.RateRPS
		if planned := b.rest(name, n.byName[name].Planned); planned > 0 && planned < reach {
			s.RateRPS = planned
		}
		if n.Abandoned && reach-smallest[name] >= s.RateRPS {
			// A rate that is different lets planner/change end segments in excess.
			s.RateRPS *= 1 - 1e-9
		}
		b.services[name] = s
	}
}

// point returns the point of the profile at which a segment runs.
func point(profiles map[string]map[string]plan.Profile, r *running) (plan.Point, bool) {
	for _, pt := range profiles[r.gpu.Table.Name][r.Model].Points {
		if pt.GPCs == int(r.GPCs) && pt.Batch == int(r.Batch) && pt.Processes == int(r.Processes) {
			return pt, true
		}
	}
	return plan.Point{}, false
}

// addPoint adds a point to a profile without changing what others see of it.
func addPoint(profiles map[string]map[string]plan.Profile, table, model string, pt plan.Point) {
	of := map[string]plan.Profile{}
	maps.Copy(of, profiles[table])
	p := of[model]
	p.Model, p.GPU = model, table
	p.Points = append(slices.Clone(p.Points), pt)
	slices.SortFunc(p.Points, func(a, b plan.Point) int {
		return cmp.Or(a.GPCs-b.GPCs, a.Batch-b.Batch, a.Processes-b.Processes)
	})
	of[model] = p
	profiles[table] = of
}

// rest returns the part of a function's rate that segments on GPUs of unknown state do not serve.
func (b *board) rest(function string, rate float64) float64 { return max(0, rate-b.fixed[function]) }

// old returns the running plan.
func (b *board) old(p *plan.Problem) *plan.Plan {
	as := *p
	as.Services = nil
	for _, name := range slices.Sorted(maps.Keys(b.services)) {
		as.Services = append(as.Services, b.services[name])
	}
	segments := make([]plan.Segment, len(b.running))
	for i, r := range b.running {
		segments[i] = r.as
	}
	return plan.New(&as, pack.New().Name(), segments)
}

// sevenths returns a segment's size in GPCs. A GPU without MIG counts as seven.
func sevenths(table plan.GPU, gpcs int) int {
	if !table.Percent {
		return gpcs
	}
	return (7*gpcs + table.GPCs - 1) / table.GPCs
}
