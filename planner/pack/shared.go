package pack

import (
	"cmp"
	"math"
	"slices"

	"github.com/penstock/penstock/plan"
)

// On a GPU without MIG, segments share steps, memory and the clients that MPS admits, so packing
// has three dimensions. The point of a size with the highest throughput, which usually has the most
// processes, need not be the best there. All points therefore count, except those that another one
// covers in every dimension.

// offer is a point at which a service may run on a kind of GPU. steps, memory and clients are the
// parts of the GPU that a segment takes. A dimension that is not shared, or not limited, is 0.
type offer struct {
	kind                   int
	point                  plan.Point
	alone                  bool // only steps are shared on its kind of GPU
	steps, memory, clients float64
	// price and whole are the costs of its size and of a whole GPU at the prices that prove the
	// relaxation's bound. A kind with too few GPUs costs more than 1.
	price, whole float64
}

// weights say how much each dimension counts in a segment's share; the rest of the weight goes to
// the steps. For any weights, the shares of the segments on one GPU add up to at most 1. With
// prices, they add up to at most the price of a whole GPU.
type weights struct{ memory, clients float64 }

// The weights that are tried. They stay below 1, at which segments without steps would be free.
var weighings = []weights{{}, {memory: 0.2}, {memory: 0.4}, {memory: 0.6}, {memory: 0.8}, {memory: 0.95},
	{clients: 0.5}, {clients: 0.95}, {memory: 0.4, clients: 0.4}}

// share returns the weighted part of a GPU that an offer takes. priced counts steps by the
// relaxation's prices, which reflect how sizes fit together, instead of by their number.
func (o *offer) share(w weights, priced bool) float64 {
	steps := o.steps
	if priced {
		steps = o.price
	}
	if o.alone {
		return steps
	}
	whole := 1.0
	if priced {
		whole = o.whole
	}
	return whole*(w.memory*o.memory+w.clients*o.clients) + (1-w.memory-w.clients)*steps
}

// covers reports whether an offer is at least as good as another in every respect.
func (o *offer) covers(other *offer) bool {
	return o.kind == other.kind && o.point.GPCs <= other.point.GPCs && o.memory <= other.memory && o.clients <= other.clients &&
		o.point.ThroughputRPS >= other.point.ThroughputRPS
}

// offers lists the points at which each service may run, without those that another offer covers.
// The highest throughput comes first. price is that of the items.
func (in *instance) offers(price []float64) [][]offer {
	type source struct {
		model string
		bound float64
	}
	known := map[source][]offer{} // ten thousand services have few models and objectives
	all := make([][]offer, len(in.problem.Services))
	for s, service := range in.problem.Services {
		key := source{service.Model, in.problem.BoundMS(service)}
		if list, ok := known[key]; ok {
			all[s] = list
			continue
		}
		for m, stock := range in.stocks {
			points, err := feasible(in.problem, stock.GPU, service)
			if err != nil {
				continue // build has found points on another kind
			}
			all[s] = append(all[s], in.uncovered(m, points, price)...)
		}
		slices.SortStableFunc(all[s], func(a, b offer) int { return cmp.Compare(b.point.ThroughputRPS, a.point.ThroughputRPS) })
		known[key] = all[s]
	}
	return all
}

func (in *instance) uncovered(m int, points []plan.Point, price []float64) []offer {
	k, g := &in.kinds[m], in.stocks[m].GPU
	list := make([]offer, len(points))
	whole, _ := k.cut.dearest(k.of(price))
	for i, pt := range points {
		o := offer{kind: m, point: pt, steps: float64(pt.GPCs) / float64(g.GPCs), alone: k.memory == 0 && k.clients == 0}
		if k.memory > 0 {
			o.memory = pt.MemoryMiB / k.memory
		}
		if k.clients > 0 {
			o.clients = float64(pt.Processes) / float64(k.clients)
		}
		o.price, o.whole = price[k.first+slices.Index(k.gpcs, float64(pt.GPCs))], whole
		list[i] = o
	}
	var kept []offer
	for i := range list {
		if !slices.ContainsFunc(kept, func(o offer) bool { return o.covers(&list[i]) }) {
			kept = slices.DeleteFunc(kept, func(o offer) bool { return list[i].covers(&o) })
			kept = append(kept, list[i])
		}
	}
	return kept
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

// shares is a problem's services with their offers. Each combination of a weighing and a way to
// price proves a lower bound of the GPUs, and makes a plan.
type shares struct {
	*instance
	offers [][]offer
	first  relaxation
}

func (in *instance) share(first relaxation) *shares {
	return &shares{instance: in, offers: in.offers(first.price), first: first}
}

// way is one way to weigh and price.
type way struct {
	weights
	priced bool
}

// list returns the ways that apply to the problem.
func (sh *shares) list() (list []way) {
	memory, clients := sh.shared()
	for _, priced := range []bool{true, false} {
		for _, w := range weighings {
			if (w.memory == 0 || memory) && (w.clients == 0 || clients) {
				list = append(list, way{w, priced})
			}
		}
	}
	return list
}

// cheapest returns each service's cheapest mix, by offer, and their total cost.
func (sh *shares) cheapest(by way) (sum float64, mixes [][]int) {
	coverer := &coverer{}
	var price, gives []float64
	mixes = make([][]int, len(sh.offers))
	for s, offers := range sh.offers {
		price, gives = resize(price, len(offers)), resize(gives, len(offers))
		for i := range offers {
			gives[i], price[i] = offers[i].point.ThroughputRPS, offers[i].share(by.weights, by.priced)
		}
		mixes[s] = make([]int, len(offers))
		sum += coverer.cheapest(demand{rate: sh.demands[s].rate, gives: gives}, price, mixes[s])
	}
	return sum, mixes
}

// stowed is a segment on a GPU, by service. It has the point that it runs at, or the size of its
// kind.
type stowed struct {
	service int
	item    int
	point   plan.Point
}

// greedy makes the plan of each way. Every service takes its cheapest mix; best fit decreasing
// packs these on GPUs without MIG. If a kind then has too few GPUs, services move to others
// (evict). greedy returns the best plan, by kind and GPU, and the lower bound of all ways. It does
// not pack ways that cannot beat the best plan.
func (sh *shares) greedy() (best [][][]stowed, gpus, least int) {
	list := sh.list()
	sums := map[way]float64{}
	for _, way := range list {
		sums[way], _ = sh.cheapest(way)
		// Prices from which limits subtract again prove no bound here.
		if sh.first.offset <= 0 || !way.priced {
			least = max(least, ceilGPUs(sums[way]))
		}
	}
	// The way with the highest cost counts the dimension that is most scarce.
	slices.SortStableFunc(list, func(a, b way) int { return cmp.Compare(sums[b], sums[a]) })
	for _, way := range list[:min(len(list), effort(len(sh.offers), 3, len(list), 12000))] {
		if best != nil && gpus <= least {
			break
		}
		_, mixes := sh.cheapest(way)
		if best != nil && gpus <= sh.fewest(mixes) {
			continue
		}
		boards, ok := sh.fit(way.weights, way.priced, mixes)
		n := 0
		for _, b := range boards {
			n += len(b)
		}
		if ok && (best == nil || n < gpus) {
			best, gpus = boards, n
		}
	}
	return best, gpus, least
}

// fewest returns a lower bound of the GPUs that mixes need.
func (sh *shares) fewest(mixes [][]int) int {
	if len(sh.kinds) > 1 {
		return 0
	}
	var steps, memory, clients float64
	for s, mix := range mixes {
		for i, n := range mix {
			o := &sh.offers[s][i]
			steps, memory, clients = steps+float64(n)*o.steps, memory+float64(n)*o.memory, clients+float64(n)*o.clients
		}
	}
	return ceilGPUs(max(steps, memory, clients))
}

// fit packs mixes and moves services off the kinds with too few GPUs. ok is false if that does not
// end.
func (sh *shares) fit(w weights, priced bool, mixes [][]int) (boards [][][]stowed, ok bool) {
	barred := make([]uint64, len(mixes)) // by service: the kinds that it was moved off
	for range evictions {
		boards = boards[:0]
		fits := true
		for m, list := range sh.parcels(mixes) {
			packed := sh.packKind(m, list)
			boards = append(boards, packed)
			if limit := sh.kinds[m].limit; limit >= 0 && len(packed) > limit {
				fits = false
				if !sh.evict(m, len(packed), w, priced, mixes, barred) {
					return nil, false
				}
			}
		}
		if fits {
			return boards, true
		}
	}
	return nil, false
}

// parcels returns the segments of mixes, by kind.
func (sh *shares) parcels(mixes [][]int) [][]parcel {
	lists := make([][]parcel, len(sh.kinds))
	for s, mix := range mixes {
		for i, n := range mix {
			o := &sh.offers[s][i]
			for range n {
				lists[o.kind] = append(lists[o.kind], parcel{stowed: stowed{service: s, point: o.point},
					width: o.point.GPCs, memory: o.memory, clients: o.point.Processes})
			}
		}
	}
	return lists
}

// evictions is the max number of times that mixes are packed.
const evictions = 24

// evict moves services off a kind whose segments take gpus GPUs. It starts with those whose move
// costs least in proportion to what they take of the kind. It moves as many as exceed the limit,
// assuming that the rest packs as well as all do. It returns false if none can move.
func (sh *shares) evict(m, gpus int, w weights, priced bool, mixes [][]int, barred []uint64) bool {
	type mover struct {
		service   int
		takes     float64
		dearer    float64
		otherwise []int
	}
	var movers []mover
	coverer := &coverer{}
	total := 0.0
	for s, mix := range mixes {
		var takes, cost float64
		for i, n := range mix {
			share := float64(n) * sh.offers[s][i].share(w, priced)
			cost += share
			if sh.offers[s][i].kind == m {
				takes += share
			}
		}
		if total += takes; takes == 0 {
			continue
		}
		d := demand{rate: sh.demands[s].rate, gives: make([]float64, len(mix))}
		price := make([]float64, len(mix))
		top := 0.0
		for i := range sh.offers[s] {
			o := &sh.offers[s][i]
			price[i] = o.share(w, priced)
			if o.kind != m && barred[s]>>o.kind&1 == 0 {
				d.gives[i] = o.point.ThroughputRPS
				top = max(top, d.gives[i])
			}
		}
		if top > 0 && d.rate < maxSegments*top {
			other := make([]int, len(mix))
			movers = append(movers, mover{s, takes, coverer.cheapest(d, price, other) - cost, other})
		}
	}
	slices.SortStableFunc(movers, func(a, b mover) int { return cmp.Compare(a.dearer*b.takes, b.dearer*a.takes) })
	above := total * float64(gpus-sh.kinds[m].limit) / float64(gpus)
	for _, move := range movers {
		if above <= 0 {
			break
		}
		above -= move.takes
		mixes[move.service] = move.otherwise
		barred[move.service] |= 1 << m
	}
	return len(movers) > 0
}

// packKind packs a kind's parcels.
func (sh *shares) packKind(m int, list []parcel) [][]stowed {
	k := &sh.kinds[m]
	if sh.stocks[m].GPU.Percent {
		return stow(list, sh.stocks[m].GPU.GPCs, k.clients)
	}
	counts := make([]int, len(k.gpcs))
	bySize := make([][]stowed, len(k.gpcs))
	for _, p := range list {
		i := slices.Index(k.gpcs, float64(p.width))
		counts[i]++
		bySize[i] = append(bySize[i], p.stowed)
	}
	bins := k.cut.pack(counts)
	var boards [][]stowed
	for _, b := range bins {
		for range b.times {
			var board []stowed
			for i, n := range b.counts {
				board = append(board, bySize[i][:n]...)
				bySize[i] = bySize[i][n:]
			}
			boards = append(boards, board)
		}
	}
	return boards
}

// parcel is a segment to pack: its steps, its part of the memory, and its clients.
type parcel struct {
	stowed
	width   int
	memory  float64
	clients int
}

// stow packs parcels into GPUs with so many steps and clients (0: no limit). The largest parcel
// comes first, measured in its largest dimension. Each parcel goes into the GPU that it leaves
// least of. GPUs are sorted by remaining steps and then by remaining memory, so that each parcel
// considers a few GPUs per number of steps.
func stow(list []parcel, steps, clients int) [][]stowed {
	size := func(p *parcel) (most, sum float64) {
		width, total := float64(p.width)/float64(steps), 0.0
		if clients > 0 {
			total = float64(p.clients) / float64(clients)
		}
		return max(width, p.memory, total), width + p.memory + total
	}
	slices.SortStableFunc(list, func(a, b parcel) int {
		am, as := size(&a)
		bm, bs := size(&b)
		return cmp.Or(cmp.Compare(bm, am), cmp.Compare(bs, as))
	})
	on := stowage{steps: steps, clients: clients, byRoom: make([][]int, steps+1)}
	for i := range list {
		on.add(&list[i])
	}
	boards := make([][]stowed, len(on.loads))
	for i := range on.loads {
		boards[i] = on.loads[i].holds
	}
	return boards
}

// stowage is the GPUs into which parcels are packed.
type stowage struct {
	steps, clients int // of each
	loads          []load
	byRoom         [][]int // loads with so many steps left, by memory left
}

// load is the content of a GPU, and what is left of it.
type load struct {
	memory  float64 // left, of 1
	clients int
	holds   []stowed
}

// add puts a parcel into the GPU that it leaves least of.
func (g *stowage) add(p *parcel) {
	on, room := len(g.loads), g.steps
	if s, at := g.tightest(p); at >= 0 {
		on, room = g.byRoom[s][at], s
		g.byRoom[s] = slices.Delete(g.byRoom[s], at, at+1)
	} else {
		g.loads = append(g.loads, load{memory: 1, clients: g.clients})
	}
	l := &g.loads[on]
	l.memory, l.clients, l.holds = l.memory-p.memory, l.clients-p.clients, append(l.holds, p.stowed)
	to := room - p.width
	j, _ := slices.BinarySearchFunc(g.byRoom[to], l.memory, g.byMemory)
	g.byRoom[to] = slices.Insert(g.byRoom[to], j, on)
}

func (g *stowage) byMemory(i int, memory float64) int { return cmp.Compare(g.loads[i].memory, memory) }

// tightest finds the GPU that a parcel leaves least of. It returns the GPU's remaining steps and
// its index among those with as many; −1 if no GPU has room.
func (g *stowage) tightest(p *parcel) (room, at int) {
	room, at = -1, -1
	left := math.Inf(1)
	for s := p.width; s <= g.steps; s++ {
		spare := float64(s-p.width) / float64(g.steps)
		if spare >= left {
			break
		}
		first, _ := slices.BinarySearchFunc(g.byRoom[s], p.memory-tight, g.byMemory)
		for j := first; j < len(g.byRoom[s]) && j < first+beamChecks; j++ {
			l := &g.loads[g.byRoom[s][j]]
			if g.clients > 0 && l.clients < p.clients {
				continue
			}
			if rest := spare + l.memory - p.memory; rest < left {
				room, at, left = s, j, rest
			}
			break
		}
	}
	return room, at
}

const (
	// tight is the max rounding error of a sum of memory.
	tight = 1e-11
	// beamChecks is how many GPUs with the same steps are tried to find one that has clients left.
	beamChecks = 64
)

// segmentsOf converts GPUs of a kind to a plan's segments, numbered from first on.
func (in *instance) segmentsOf(m, first int, boards [][]stowed) []plan.Segment {
	var segments []plan.Segment
	k, g := &in.kinds[m], in.stocks[m].GPU
	for i, board := range boards {
		counts := make(pattern, len(k.gpcs))
		bySize := make([][]stowed, len(k.gpcs))
		for _, s := range board {
			size := slices.Index(k.gpcs, float64(s.point.GPCs))
			counts[size]++
			bySize[size] = append(bySize[size], s)
		}
		for _, to := range k.cut.slots(counts) {
			s := bySize[to.size][0]
			bySize[to.size] = bySize[to.size][1:]
			segments = append(segments, plan.SegmentOf(first+i, g, to.slot, in.problem.Services[s.service], s.point))
		}
	}
	return segments
}
