package pack

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/penstock/penstock/plan"
)

// New returns the policy "penstock".
func New() plan.Policy { return policy{} }

type policy struct{}

func (policy) Name() string { return "penstock" }

// Plan plans. Errors are those of plan.Policy. In the plan, Optimal means that GPUs is LowerBound,
// which the package doc proves.
func (pl policy) Plan(p *plan.Problem) (*plan.Plan, error) {
	if err := p.Check(); err != nil {
		return nil, err
	}
	t, err := build(p)
	if err != nil {
		return nil, err
	}
	segments, lower := t.solve(false)
	if segments == nil {
		return nil, t.tooSmall(lower)
	}
	out := plan.New(p, pl.Name(), segments)
	out.LowerBound = max(1, lower)
	out.Optimal = out.GPUs == out.LowerBound
	return out, nil
}

// task is a problem whose services have offers.
type task struct {
	problem *plan.Problem
	kinds   []kind
	// rules is the number of rules of all kinds.
	rules    int
	services []service
}

// kind is a model of GPU in a problem.
type kind struct {
	plan.Stock
	// first is the index of its first rule in the vectors of all rules.
	first int
	rules []rule
	// preference is the weight of a whole GPU in the second criterion.
	preference float64
}

func (k *kind) of(loads []float64) []float64 { return loads[k.first : k.first+len(k.rules)] }

// A service has the points at which a segment may run.
type service struct {
	rate   float64
	offers []offer
}

// An offer is a point on a kind of GPU, and how much it loads each rule of that kind.
type offer struct {
	kind  int
	point plan.Point
	loads []float64
	// weight is its part of the second criterion.
	weight float64
}

// maxSegments is more than any service has. A rate that needs more is treated as a typing error.
const maxSegments = 1_000_000

// build makes the task of a problem.
func build(p *plan.Problem) (*task, error) {
	t := &task{problem: p}
	preference := 1.0
	for _, stock := range merged(p.Stocks()) {
		k := kind{Stock: stock, first: t.rules, rules: rulesOf(stock.GPU), preference: preference}
		t.rules += len(k.rules)
		t.kinds = append(t.kinds, k)
		preference *= 2
	}
	type source struct {
		model string
		bound float64
	}
	known := map[source][]offer{} // a thousand services have few models and objectives
	for _, s := range p.Services {
		from := source{s.Model, p.BoundMS(s)}
		if _, ok := known[from]; !ok {
			offers, err := t.offers(s)
			if err != nil {
				return nil, err
			}
			known[from] = offers
		}
		offers := known[from]
		top := 0.0
		for _, o := range offers {
			top = max(top, o.point.ThroughputRPS)
		}
		if s.RateRPS > maxSegments*top {
			return nil, fmt.Errorf("service %q: rate %.6g requests/s: the best segment within %.4g ms per batch serves %.6g, and a plan has at most %d segments per service",
				s.Name, s.RateRPS, from.bound, top, maxSegments)
		}
		t.services = append(t.services, service{s.RateRPS, offers})
	}
	return t, nil
}

// merged returns one stock per model, in the order of first occurrence.
func merged(stocks []plan.Stock) []plan.Stock {
	var all []plan.Stock
	for _, stock := range stocks {
		at := slices.IndexFunc(all, func(s plan.Stock) bool { return s.GPU.Name == stock.GPU.Name })
		switch {
		case at < 0:
			all = append(all, stock)
		case stock.Count < 0 || all[at].Count < 0:
			all[at].Count = -1
		default:
			all[at].Count += stock.Count
		}
	}
	return all
}

// offers lists the points at which a service may run, without those that are no better than another
// one. The highest throughput comes first.
func (t *task) offers(s plan.Service) (all []offer, err error) {
	for m := range t.kinds {
		k := &t.kinds[m]
		points, why := feasible(t.problem, k.GPU, s)
		if why != nil {
			err = cmp.Or(err, why)
			continue
		}
		slices.SortStableFunc(points, func(a, b plan.Point) int {
			return cmp.Or(cmp.Compare(b.ThroughputRPS, a.ThroughputRPS), a.GPCs-b.GPCs, cmp.Compare(a.LatencyMS, b.LatencyMS),
				cmp.Compare(a.MemoryMiB, b.MemoryMiB), a.Processes-b.Processes)
		})
		first := len(all)
		for _, pt := range points {
			o := offer{kind: m, point: pt, loads: make([]float64, len(k.rules)),
				weight: k.preference * float64(pt.GPCs) / float64(k.GPU.GPCs)}
			for i, r := range k.rules {
				o.loads[i] = r(pt)
			}
			better := func(other offer) bool { return below(other.loads, o.loads) }
			if !slices.ContainsFunc(all[first:], better) {
				all = append(all, o)
			}
		}
	}
	if len(all) > 0 {
		err = nil
	}
	return all, err
}

// below reports whether a is at most b everywhere.
func below(a, b []float64) bool {
	for i := range a {
		if a[i] > b[i] {
			return false
		}
	}
	return true
}

// feasible returns the points of Problem.Feasible that have no more processes than MPS admits.
func feasible(p *plan.Problem, g plan.GPU, s plan.Service) ([]plan.Point, error) {
	points, err := p.Feasible(g, s)
	if err != nil || !g.Percent || g.Clients == 0 {
		return points, err
	}
	few := func(pt plan.Point) bool { return pt.Processes <= g.Clients }
	if points = slices.DeleteFunc(points, func(pt plan.Point) bool { return !few(pt) }); len(points) == 0 {
		return nil, p.Unmet(g, s, few)
	}
	return points, nil
}
