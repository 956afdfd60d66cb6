package pack

import (
	"cmp"
	"math"
	"slices"

	"github.com/penstock/penstock/plan"
)

// On a GPU without MIG segments share steps, memory and the clients that MPS takes: packing has three dimensions
// there, and of the points of a size the one of the highest throughput, which mostly has the most processes, need
// not be the best. So all points count that no other is as good as in every dimension.

// offer is a point that a service may run at on a kind of GPU, and the part of the GPU that a segment takes of each
// dimension; what is not shared, or not limited, it takes nothing of.
type offer struct {
	kind                   int
	point                  plan.Point
	alone                  bool // on its kind of GPU nothing but steps is shared
	steps, memory, clients float64
	// price and whole are of its size and of a whole GPU where the relaxation proves the bound; a kind of which there
	// are too few is dearer than 1.
	price, whole float64
}

// weights are how much of a segment's share each dimension counts for; what is left goes to the steps. No GPU holds
// segments whose shares add up to more than 1, however they are weighed, and so none that are priced so.
type weights struct{ memory, clients float64 }

// The weights that are tried. They end before 1, where segments without steps would be free.
var weighings = []weights{{}, {memory: 0.2}, {memory: 0.4}, {memory: 0.6}, {memory: 0.8}, {memory: 0.95},
	{clients: 0.5}, {clients: 0.95}, {memory: 0.4, clients: 0.4}}

// share is what an offer takes of a GPU as weighed. priced counts steps by the relaxation's prices, which know how
// sizes fit together, instead of by their number.
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

// covers says whether an offer is no worse than another in every way.
func (o *offer) covers(other *offer) bool {
	return o.kind == other.kind && o.point.GPCs <= other.point.GPCs && o.memory <= other.memory && o.clients <= other.clients &&
		o.point.ThroughputRPS >= other.point.ThroughputRPS
}

// offers lists for each service what it may run at, but what another offer covers. They are by throughput, the
// highest first. price is of the items.
func (in *instance) offers(price []float64) [][]offer {
	type of struct {
		model string
		bound float64
	}
	known := map[of][]offer{} // ten thousand services have few models and objectives
	all := make([][]offer, len(in.problem.Services))
	for s, service := range in.problem.Services {
		key := of{service.Model, in.problem.BoundMS(service)}
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

// feasible are the points of Problem.Feasible that have no more processes than MPS takes.
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

// shares is a problem's services with their offers, priced in every way that weighings and the relaxation's prices
// give. Each way proves a lower bound of the GPUs, and makes a plan.
type shares struct {
	*instance
	offers [][]offer
	first  relaxation
}

func (in *instance) share(first relaxation) *shares {
	return &shares{instance: in, offers: in.offers(first.price), first: first}
}

// ways calls each with every way of weighing: what its services' cheapest mixes cost in all, and the mixes, which
// are by offer. Prices that take something off again for limits (the relaxation's offset) prove nothing of this kind,
// and serve plans only: bounds says that they are left out.
func (sh *shares) ways(bounds bool, each func(w weights, priced bool, sum float64, mixes [][]int) (more bool)) {
	for _, way := range sh.list(bounds) {
		sum, mixes := sh.cheapest(way)
		if !each(way.weights, way.priced, sum, mixes) {
			return
		}
	}
}

// way is one way to weigh and price.
type way struct {
	weights
	priced bool
}

// list has the ways that say anything of the problem.
func (sh *shares) list(bounds bool) (list []way) {
	memory, clients := sh.shared()
	for _, priced := range []bool{true, false} {
		for _, w := range weighings {
			if !(bounds && priced && sh.first.offset > 0 || w.memory > 0 && !memory || w.clients > 0 && !clients) {
				list = append(list, way{w, priced})
			}
		}
	}
	return list
}

// cheapest is each service's cheapest mix, by offer, and what they cost in all.
func (sh *shares) cheapest(by way) (sum float64, mixes [][]int) {
	coverer := &coverer{}
	var price, gives []float64
	mixes = make([][]int, len(sh.offers))
	for s, offers := range sh.offers {
		price, gives = grow(price, len(offers)), grow(gives, len(offers))
		for i := range offers {
			gives[i], price[i] = offers[i].point.ThroughputRPS, offers[i].share(by.weights, by.priced)
		}
		mixes[s] = make([]int, len(offers))
		sum += coverer.cheapest(demand{rate: sh.demands[s].rate, gives: gives}, price, mixes[s])
	}
	return sum, mixes
}

// stowed is a segment in a GPU, by service; it has the point that it runs at, or the size of its kind.
type stowed struct {
	service int
	item    int
	point   plan.Point
}

// greedy makes the plan of each way: every service takes its cheapest mix, and they are packed, by best fit decreasing
// on GPUs without MIG. Services are moved off a kind that then has too few GPUs (evict). It returns the best, by kind
// and GPU, and the lower bound of all ways; ways that cannot beat the best are not packed.
func (sh *shares) greedy() (best [][][]stowed, gpus, least int) {
	list := sh.list(false)
	sums := map[way]float64{}
	for _, way := range list {
		sums[way], _ = sh.cheapest(way)
		if sh.first.offset <= 0 || !way.priced {
			least = max(least, ceilGPUs(sums[way]))
		}
	}
	// What costs most by one way is what there is too little of.
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

// fewest is below what mixes need.
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

// fit packs mixes, moving services off the kinds of which there are too few. ok is false where that does not end.
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

// parcels are the segments of mixes, by kind.
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

// evictions is how many times mixes are packed at most.
const evictions = 24

// evict moves services off a kind whose segments take so many GPUs: those first that it costs least for what they
// take of the kind, and as many as are above the limit if the rest packs as well as all. It returns false if none can
// be moved.
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
		if top > 0 && d.rate < mostSegments*top {
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
	bins, _ := k.cut.pack(counts)
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

// parcel is a segment to be packed: its steps, the part of the memory and the clients that it takes.
type parcel struct {
	stowed
	width   int
	memory  float64
	clients int
}

// stow packs parcels into GPUs of so many steps and clients (0: no limit): the largest first, in the dimension in
// which it is largest, each into the GPU that it leaves least of. GPUs stand by the steps that they have left and
// then by memory, so that each parcel looks at a few for each number of steps.
func stow(list []parcel, steps, clients int) [][]stowed {
	size := func(p *parcel) (most, sum float64) {
		width, of := float64(p.width)/float64(steps), 0.0
		if clients > 0 {
			of = float64(p.clients) / float64(clients)
		}
		return max(width, p.memory, of), width + p.memory + of
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

// stowage is the GPUs that parcels are stowed in.
type stowage struct {
	steps, clients int // of each
	loads          []load
	byRoom         [][]int // loads with so many steps left, by memory left
}

// load is what lies on a GPU, and what is left of it.
type load struct {
	memory  float64 // of 1
	clients int
	holds   []stowed
}

// add puts a parcel where it leaves least.
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

// tightest finds the GPU that a parcel leaves least of: by the steps that it has left, and its place among those; −1
// if none has room.
func (g *stowage) tightest(p *parcel) (room, at int) {
	room, at = -1, -1
	left := math.Inf(1)
	for s := p.width; s <= g.steps; s++ {
		spare := float64(s-p.width) / float64(g.steps)
		if spare >= left {
			break
		}
		first, _ := slices.BinarySearchFunc(g.byRoom[s], p.memory-tight, g.byMemory)
		for j := first; j < len(g.byRoom[s]) && j < first+glances; j++ {
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
	// tight is what rounding may add to a sum of memory.
	tight = 1e-11
	// glances is how many GPUs of the same steps are looked at for one that has clients left.
	glances = 64
)

// segmentsOf writes GPUs of a kind down as a plan's, numbered from first on.
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
