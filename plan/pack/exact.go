package pack

import (
	"encoding/binary"
	"math"
	"slices"

	"github.com/penstock/penstock/plan"
)

// exhaustive tries every choice of offers and every way to lay them out, for small problems. It
// goes service by service, one segment at a time, into each GPU that differs from the others. It
// ends a branch if one of the lower bounds proves that the remaining demand does not fit the rest
// of the GPUs. It also ends a branch that it has visited before.
type exhaustive struct {
	*shares
	maxBins  int // GPUs in total
	patterns [][]pattern
	order    []int // services, the most expensive first
	terms    []term
	rest     []float64 // by term: what is left of the GPUs
	bins     []filled
	opened   []int // by kind
	seen     map[string]struct{}
	budget   int // steps left; below 0, the search ended early
}

// term is one of the lower bounds. shares is what a segment takes, by service and offer. least is
// the min that a service takes, and ratio the min that one request takes. after is the sum of least
// from each position in the order.
type term struct {
	shares [][]float64
	least  []float64
	ratio  []float64
	after  []float64
}

// filled is a GPU and its segments.
type filled struct {
	kind, steps, clients int
	memory               float64
	counts               [8]uint8 // by size, of a GPU with MIG
	holds                []stowed
}

func (f *filled) like(o *filled) bool {
	return f.kind == o.kind && f.steps == o.steps && f.clients == o.clients && f.memory == o.memory && f.counts == o.counts
}

const (
	// exactServices is the max number of services of a problem that is searched.
	exactServices = 12
	// exactSteps is the max number of segments that a search may place and remove again.
	exactSteps = 150_000
)

// search looks for a plan on at most gpus GPUs. none means that there is provably no such plan. If
// it returns neither a plan nor none, it ran out of steps.
func (sh *shares) search(gpus, steps int) (segments []plan.Segment, none bool) {
	limits := 0
	for _, k := range sh.kinds {
		if k.limit < 0 {
			limits = gpus
			break
		}
		limits += k.limit
	}
	e := &exhaustive{shares: sh, maxBins: min(gpus, limits), opened: make([]int, len(sh.kinds)), seen: map[string]struct{}{}, budget: steps}
	if len(sh.offers) > exactServices {
		return nil, false
	}
	for m := range sh.kinds {
		var patterns []pattern
		if c, ok := sh.kinds[m].cut.(*partitioned); ok {
			patterns = c.patterns
		}
		e.patterns = append(e.patterns, patterns)
	}
	e.prepare()
	if !e.place(0) {
		return nil, e.budget >= 0
	}
	return e.written(), false
}

func (e *exhaustive) prepare() {
	n := len(e.offers)
	e.order = make([]int, n)
	for s := range e.order {
		e.order[s] = s
	}
	e.ways(true, func(w weights, priced bool, _ float64, mixes [][]int) bool {
		t := term{shares: make([][]float64, n), least: make([]float64, n), ratio: make([]float64, n)}
		coverer := &coverer{}
		for s, offers := range e.offers {
			d := demand{rate: e.demands[s].rate}
			t.ratio[s] = math.Inf(1)
			for i := range offers {
				share, gives := offers[i].share(w, priced), offers[i].point.ThroughputRPS
				d.gives = append(d.gives, gives)
				t.shares[s] = append(t.shares[s], share)
				t.ratio[s] = min(t.ratio[s], share/gives)
			}
			t.least[s] = coverer.cheapest(d, t.shares[s], mixes[s])
		}
		e.terms = append(e.terms, t)
		e.rest = append(e.rest, float64(e.maxBins)+1e-6)
		return true
	})
	dearest := func(s int) (most float64) {
		for _, t := range e.terms {
			most = max(most, t.least[s])
		}
		return most
	}
	slices.SortStableFunc(e.order, func(a, b int) int {
		switch da, db := dearest(a), dearest(b); {
		case da > db:
			return -1
		case da < db:
			return 1
		}
		return 0
	})
	for i := range e.terms {
		t := &e.terms[i]
		t.after = make([]float64, n+1)
		for at := n - 1; at >= 0; at-- {
			t.after[at] = t.after[at+1] + t.least[e.order[at]]
		}
	}
}

// place serves the services from a position in the order on.
func (e *exhaustive) place(at int) bool {
	if at == len(e.order) {
		return true
	}
	for i, t := range e.terms {
		if t.after[at] > e.rest[i] {
			return false
		}
	}
	key := e.key(at)
	if _, ok := e.seen[key]; ok {
		return false
	}
	s := e.order[at]
	if e.serve(at, 0, e.demands[s].rate*(1-closeEnough), 0) {
		return true
	}
	if e.budget >= 0 {
		e.seen[key] = struct{}{}
	}
	return false
}

// serve serves the rest of a service's rate. It uses the service's offers from index from, and GPUs
// from index bin for the first of these. Offers are in order of throughput, the highest first. No
// mix therefore occurs twice, and none contains a segment that could be left out.
func (e *exhaustive) serve(at, from int, rest float64, bin int) bool {
	if rest <= 0 {
		return e.place(at + 1)
	}
	s := e.order[at]
	for i, t := range e.terms {
		if t.after[at+1]+rest*t.ratio[s] > e.rest[i] {
			return false
		}
	}
	for i := from; i < len(e.offers[s]); i++ {
		first := 0
		if i == from {
			first = bin
		}
		if e.putOpened(at, i, first, rest) || e.putNew(at, i, rest) {
			return true
		}
		if e.budget < 0 {
			return false
		}
	}
	return false
}

// putOpened puts a segment of an offer into one of the GPUs from first on. It tries only one of
// several equal GPUs.
func (e *exhaustive) putOpened(at, i, first int, rest float64) bool {
	o := &e.offers[e.order[at]][i]
	for b := first; b < len(e.bins); b++ {
		f := &e.bins[b]
		if f.kind != o.kind || slices.ContainsFunc(e.bins[first:b], func(other filled) bool { return other.like(f) }) || !e.fits(f, o) {
			continue
		}
		if e.budget--; e.budget < 0 {
			return false
		}
		if e.put(at, i, b, rest) {
			return true
		}
	}
	return false
}

// putNew puts a segment of an offer into a new GPU, if there is one.
func (e *exhaustive) putNew(at, i int, rest float64) bool {
	m := e.offers[e.order[at]][i].kind
	if limit := e.kinds[m].limit; len(e.bins) >= e.maxBins || limit >= 0 && e.opened[m] >= limit {
		return false
	}
	if e.budget--; e.budget < 0 {
		return false
	}
	e.bins = append(e.bins, filled{kind: m})
	e.opened[m]++
	if e.put(at, i, len(e.bins)-1, rest) {
		return true
	}
	e.bins = e.bins[:len(e.bins)-1]
	e.opened[m]--
	return false
}

// put places a segment of an offer and continues. If that leads to no plan, it removes the segment
// again.
func (e *exhaustive) put(at, i, b int, rest float64) bool {
	s := e.order[at]
	o := &e.offers[s][i]
	before := e.bins[b]
	f := &e.bins[b]
	f.steps += o.point.GPCs
	f.memory += o.memory
	if e.kinds[o.kind].clients > 0 {
		f.clients += o.point.Processes
	}
	if size := e.size(o); size >= 0 {
		f.counts[size]++
	}
	f.holds = append(slices.Clip(f.holds), stowed{service: s, point: o.point})
	for j, t := range e.terms {
		e.rest[j] -= t.shares[s][i]
	}
	if e.serve(at, i, rest-o.point.ThroughputRPS, b) {
		return true
	}
	for j, t := range e.terms {
		e.rest[j] += t.shares[s][i]
	}
	e.bins[b] = before
	return false
}

// size returns the index of an offer's size in its kind's patterns; −1 on a GPU without MIG.
func (e *exhaustive) size(o *offer) int {
	if e.patterns[o.kind] == nil {
		return -1
	}
	return slices.Index(e.kinds[o.kind].gpcs, float64(o.point.GPCs))
}

func (e *exhaustive) fits(f *filled, o *offer) bool {
	if size := e.size(o); size >= 0 {
		return slices.ContainsFunc(e.patterns[o.kind], func(p pattern) bool {
			for k, n := range p {
				have := int(f.counts[k])
				if k == size {
					have++
				}
				if have > n {
					return false
				}
			}
			return true
		})
	}
	k := &e.kinds[o.kind]
	return f.steps+o.point.GPCs <= e.stocks[o.kind].GPU.GPCs && f.memory+o.memory <= 1+tight &&
		(k.clients == 0 || f.clients+o.point.Processes <= k.clients)
}

// key is equal for states with the same continuations: the order of the GPUs does not matter.
func (e *exhaustive) key(at int) string {
	parts := make([]string, len(e.bins))
	for i := range e.bins {
		f := &e.bins[i]
		part := binary.LittleEndian.AppendUint32(nil, uint32(f.kind))
		part = binary.LittleEndian.AppendUint32(part, uint32(f.steps))
		part = binary.LittleEndian.AppendUint32(part, uint32(f.clients))
		part = binary.LittleEndian.AppendUint64(part, math.Float64bits(f.memory))
		parts[i] = string(append(part, f.counts[:]...))
	}
	slices.Sort(parts)
	key := binary.LittleEndian.AppendUint32(nil, uint32(at))
	for _, part := range parts {
		key = append(key, part...)
	}
	return string(key)
}

// written returns the result as a plan's segments.
func (e *exhaustive) written() []plan.Segment {
	var segments []plan.Segment
	for gpu, f := range e.bins {
		segments = append(segments, e.segmentsOf(f.kind, gpu, [][]stowed{f.holds})...)
	}
	return segments
}
