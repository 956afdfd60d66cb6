package pack

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/penstock/penstock/plan"
)

// New returns the policy "penstock".
func New() plan.Policy { return policy{} }

type policy struct{}

func (policy) Name() string { return "penstock" }

// Plan plans. Errors are those of plan.Policy. In the plan, Optimal means that GPUs is LowerBound,
// which the package doc proves. A note describes what is proved about the GPCs.
func (pl policy) Plan(p *plan.Problem) (*plan.Plan, error) {
	if err := p.Check(); err != nil {
		return nil, err
	}
	in, err := build(p)
	if err != nil {
		return nil, err
	}
	got := in.settle()
	if !got.ok() {
		return nil, in.tooSmall(!got.none)
	}
	segments, lower, best := got.segments, got.minGPUs, got.answer
	out := plan.New(p, pl.Name(), segments)
	out.LowerBound = lower
	out.Optimal = out.GPUs == lower
	switch {
	case out.Optimal && len(in.kinds) == 1 && best.minGPCs > 0 && float64(out.GPCs) <= best.minGPCs+0.5:
		out.Notes = append(out.Notes, fmt.Sprintf("proved: no plan has fewer than %d GPUs, and none with that many uses fewer %s than %d", out.GPUs, in.word(), out.GPCs))
	case out.Optimal && len(in.kinds) == 1 && best.minGPCs > 0:
		out.Notes = append(out.Notes, fmt.Sprintf("proved: no plan has fewer than %d GPUs; not proved: its %s are the fewest (at least %.0f are needed, it has %d)",
			out.GPUs, in.word(), best.minGPCs, out.GPCs))
	case out.Optimal:
		out.Notes = append(out.Notes, fmt.Sprintf("proved: no plan has fewer than %d GPUs", out.GPUs))
	default:
		out.Notes = append(out.Notes, fmt.Sprintf("proved: no plan has fewer than %d GPUs; not proved: no plan has fewer than %d", lower, out.GPUs))
	}
	return out, nil
}

// maxSegments is more than any service has. A rate that needs more is treated as a typing error.
const maxSegments = 1_000_000

// instance is a problem as a task: services are demands in the same order, items are the sizes of
// each kind.
type instance struct {
	task
	problem *plan.Problem
	stocks  []plan.Stock   // of the kinds
	sizes   []plan.Size    // of the items
	points  [][]plan.Point // by demand and item: the operating point of a segment
}

// build makes the task of a problem. A segment of a size runs at the point of the highest
// throughput within its service's bound.
func build(p *plan.Problem) (*instance, error) {
	in := &instance{problem: p}
	usable := make([]bool, len(p.Services))
	errs := make([]error, len(p.Services))
	var points [][]map[int]plan.Point // by kind, service and size
	for _, stock := range merged(p.Stocks()) {
		its := make([]map[int]plan.Point, len(p.Services))
		memory := false
		for s, service := range p.Services {
			points, err := feasible(p, stock.GPU, service)
			if err != nil {
				errs[s] = cmp.Or(errs[s], err)
				continue
			}
			usable[s] = true
			its[s] = best(points)
			memory = memory || slices.ContainsFunc(points, func(pt plan.Point) bool { return pt.MemoryMiB > 0 })
		}
		if sizes := usedSizes(stock.GPU, its); len(sizes) > 0 {
			in.addKind(stock, sizes, memory)
			points = append(points, its)
		}
	}
	if s := slices.Index(usable, false); s >= 0 {
		return nil, errs[s]
	}
	for m, k := range in.kinds {
		for i := range k.gpcs {
			in.gpcs = append(in.gpcs, in.cost(m, in.sizes[k.first+i]))
		}
	}
	for s := range p.Services {
		if err := in.addDemand(s, points); err != nil {
			return nil, err
		}
	}
	return in, nil
}

// usedSizes returns the sizes of a GPU for which some service has a point; points are by service
// and size.
func usedSizes(g plan.GPU, points []map[int]plan.Point) (sizes []plan.Size) {
	for _, size := range g.Sizes {
		if slices.ContainsFunc(points, func(byGPCs map[int]plan.Point) bool { _, ok := byGPCs[size.GPCs]; return ok }) {
			sizes = append(sizes, size)
		}
	}
	return sizes
}

// addKind adds a model of GPU and the sizes of its segments. memory means that some points need
// memory.
func (in *instance) addKind(stock plan.Stock, sizes []plan.Size, memory bool) {
	k := kind{first: in.items, limit: stock.Count}
	var widths []int
	for _, size := range sizes {
		widths = append(widths, size.Slots)
		k.gpcs = append(k.gpcs, float64(size.GPCs))
	}
	if stock.GPU.Percent {
		k.cut = newStepped(stock.GPU.Slots, widths)
		k.clients = stock.GPU.Clients
		if memory {
			k.memory = float64(stock.GPU.MemoryMiB)
		}
	} else {
		k.cut = newPartitioned(stock.GPU, sizes)
	}
	in.items += len(sizes)
	in.sizes = append(in.sizes, sizes...)
	in.kinds = append(in.kinds, k)
	in.stocks = append(in.stocks, stock)
}

// addDemand adds a service, given the points by kind, service and size.
func (in *instance) addDemand(s int, points [][]map[int]plan.Point) error {
	service := in.problem.Services[s]
	its := make([]plan.Point, in.items)
	d := demand{rate: service.RateRPS, gives: make([]float64, in.items), memory: make([]float64, in.items), clients: make([]int, in.items)}
	for m, k := range in.kinds {
		for item := k.first; item < k.first+len(k.gpcs); item++ {
			pt := points[m][s][in.sizes[item].GPCs]
			its[item] = pt
			d.gives[item] = pt.ThroughputRPS
			d.memory[item] = pt.MemoryMiB
			d.clients[item] = pt.Processes
		}
	}
	if top := slices.Max(d.gives); service.RateRPS > maxSegments*top {
		return fmt.Errorf("service %q: rate %.6g requests/s: the best segment within %.4g ms per batch serves %.6g, and a plan has at most %d segments per service",
			service.Name, service.RateRPS, in.problem.BoundMS(service), top, maxSegments)
	}
	in.points = append(in.points, its)
	in.demands = append(in.demands, d)
	return nil
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

// cost is the weight of a size in the second criterion: its GPCs. In a mixed fleet, GPCs differ
// between models, so the cost is the size's share of its GPU. A fleet is listed in order of
// preference, so a share of each next model counts twice as much.
func (in *instance) cost(m int, size plan.Size) float64 {
	if len(in.stocks) == 1 {
		return float64(size.GPCs)
	}
	return math.Ldexp(float64(size.GPCs)/float64(in.stocks[m].GPU.GPCs), min(m, 16))
}

// best selects the point of each size.
func best(points []plan.Point) map[int]plan.Point {
	bySize := map[int]plan.Point{}
	for _, pt := range points {
		old, ok := bySize[pt.GPCs]
		if !ok || better(pt, old) {
			bySize[pt.GPCs] = pt
		}
	}
	return bySize
}

// better prefers the higher throughput, then the lower latency, then less memory and fewer
// processes.
func better(a, b plan.Point) bool {
	switch {
	case a.ThroughputRPS != b.ThroughputRPS:
		return a.ThroughputRPS > b.ThroughputRPS
	case a.LatencyMS != b.LatencyMS:
		return a.LatencyMS < b.LatencyMS
	case a.MemoryMiB != b.MemoryMiB:
		return a.MemoryMiB < b.MemoryMiB
	}
	return a.Processes < b.Processes
}

// word returns the unit of sizes on the only kind.
func (in *instance) word() string {
	if in.stocks[0].GPU.Percent {
		return "steps"
	}
	return "GPCs"
}

// segments converts an answer to a plan's segments.
func (in *instance) segments(a answer) []plan.Segment {
	var segments []plan.Segment
	gpu := 0
	for m, boards := range a.boards {
		for _, board := range boards {
			for _, s := range board {
				segments = append(segments, plan.SegmentOf(gpu, in.stocks[m].GPU, s.slot, in.problem.Services[s.demand], in.points[s.demand][s.item]))
			}
			gpu++
		}
	}
	return segments
}

// The max effort to find out what fits into a fleet that is too small, for up to a hundred
// services. It is less for more services.
const (
	fitTries   = 48
	fitHalving = 8
)

// tooSmall reports what fits. It serves as many services as possible from the front of the list,
// then each further one that still fits. At last it serves as much as possible of a few that do
// not. unproved means that no plan was found but that one may exist.
func (in *instance) tooSmall(unproved bool) error {
	f := fitting{instance: in, rates: make([]float64, len(in.demands)), tries: effort(len(in.demands), 0, fitTries, fitTries*100)}
	front := f.front()
	for s := front + 1; s < len(in.demands) && s < front+f.tries; s++ {
		f.rates[s] = in.demands[s].rate
		if !f.fits() {
			f.rates[s] = 0
		}
	}
	for s := front; s < len(in.demands) && f.tries > 0; s++ {
		if f.rates[s] == 0 {
			f.part(s)
		}
	}
	e := &plan.TooSmall{Fleet: in.problem.Stocks(), Unproved: unproved}
	for s, service := range in.problem.Services {
		e.Services = append(e.Services, plan.Served{Service: service.Name, RateRPS: service.RateRPS, PlacedRPS: f.rates[s]})
	}
	return e
}

// fitting is a search for what fits into a fleet.
type fitting struct {
	*instance
	rates []float64 // served rates of the services
	tries int       // tries left
}

// fits reports whether there is a plan for the rates.
func (f *fitting) fits() bool {
	part := *f.problem
	part.Services = nil
	for s, service := range f.problem.Services {
		if f.rates[s] > 0 {
			service.RateRPS = f.rates[s]
			part.Services = append(part.Services, service)
		}
	}
	if len(part.Services) == 0 {
		return true
	}
	points, err := build(&part)
	return err == nil && points.found()
}

// front serves as many services as fit from the front of the list, and returns their number.
func (f *fitting) front() int {
	serve := func(n int) {
		for s, d := range f.demands {
			f.rates[s] = 0
			if s < n {
				f.rates[s] = d.rate
			}
		}
	}
	low, high := 0, len(f.demands)
	for low < high {
		middle := (low + high + 1) / 2
		serve(middle)
		if f.fits() {
			low = middle
		} else {
			high = middle - 1
		}
	}
	serve(low)
	return low
}

// part serves as much of a service as fits.
func (f *fitting) part(s int) {
	least, most := 0.0, 1.0
	for range fitHalving {
		f.tries--
		middle := (least + most) / 2
		f.rates[s] = f.demands[s].rate * middle
		if f.fits() {
			least = middle
		} else {
			most = middle
		}
	}
	f.rates[s] = f.demands[s].rate * least
}
