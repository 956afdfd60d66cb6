package change

import (
	"cmp"
	"errors"
	"maps"
	"math"
	"slices"

	"github.com/penstock/penstock/plan"
	"github.com/penstock/penstock/planner/pack"
)

// A world is the state of all GPUs while services are placed.
type world struct {
	problem *plan.Problem
	tables  map[string]plan.GPU
	// oldSegments has, by GPU, the old plan's segments of services that are still wanted.
	oldSegments map[int][]plan.Segment
	// lies has, by GPU, the services' current segments: the old ones until a
	// service is placed, then its new ones.
	lies map[int][]plan.Segment
	// freed has the old segments of services that make room, until these are
	// placed.
	freed map[string][]plan.Segment
	// models has the model of every GPU that has a number, in use or not.
	models map[int]string
}

// begin copies the old plan, without the services that are not wanted. Segments of
// jobs that make room are not in lies until these jobs are placed.
func (w *world) begin(old *plan.Plan, wanted map[string]plan.Service, jobs []job) {
	w.oldSegments, w.lies, w.models = map[int][]plan.Segment{}, map[int][]plan.Segment{}, map[int]string{}
	w.freed = map[string][]plan.Segment{}
	for _, j := range jobs {
		if j.makesRoom {
			w.freed[j.service.Name] = []plan.Segment{}
		}
	}
	for _, g := range old.Segments {
		w.models[g.GPU] = g.GPUModel
		if _, exists := wanted[g.Service]; exists {
			w.oldSegments[g.GPU] = append(w.oldSegments[g.GPU], g)
			if list, makesRoom := w.freed[g.Service]; makesRoom {
				w.freed[g.Service] = append(list, g)
				continue
			}
			w.lies[g.GPU] = append(w.lies[g.GPU], g)
		}
	}
	for _, n := range old.IdleGPUs {
		w.models[n] = "" // unknown, and not used, if there are several models
		if len(w.tables) == 1 {
			w.models[n] = w.problem.Stocks()[0].GPU.Name
		}
	}
}

// memory returns a segment's memory by its profile, 0 if unknown.
func (w *world) memory(g plan.Segment) float64 {
	for _, pt := range w.problem.Profiles[g.GPUModel][g.Model].Points {
		if pt.GPCs == g.GPCs && pt.Batch == g.Batch && pt.Processes == g.Processes {
			return pt.MemoryMiB
		}
	}
	return 0
}

// slots returns how many slots a segment covers.
func (w *world) slots(g plan.Segment) int {
	size, _ := w.tables[g.GPUModel].Size(g.GPCs)
	return size.Slots
}

// A job is a service to place. less means that it needs no more than before.
// makesRoom means that it would stay if there were room for the others.
type job struct {
	service         plan.Service
	less, makesRoom bool
}

// placeAround places jobs around the services that stay. If the fleet has no room
// for that, it also places some services that stay, after the others. It takes as
// few as necessary, those with the fewest GPCs first. Each goes back to its old
// place as far as possible. If placing one after the other fails even then, the
// result is a new plan.
func (w *world) placeAround(old *plan.Plan, wanted map[string]plan.Service, jobs []job, stay []plan.Service) error {
	w.begin(old, wanted, jobs)
	first := w.placeAll(jobs)
	if _, small := errors.AsType[*plan.TooSmall](first); !small {
		return first
	}
	fresh, err := pack.New().Plan(w.problem)
	if err != nil {
		return first // no plan at all fits
	}
	gpcs := map[string]int{}
	for _, g := range old.Segments {
		gpcs[g.Service] += g.GPCs
	}
	slices.SortStableFunc(stay, func(a, b plan.Service) int {
		return cmp.Or(gpcs[a.Name]-gpcs[b.Name], cmp.Compare(a.Name, b.Name))
	})
	for n := 0; n < len(stay); {
		// One at a time; if there are very many, some more.
		for range min(1+n/freedAtOnce, len(stay)-n) {
			jobs = append(jobs, job{service: stay[n], makesRoom: true})
			n++
		}
		w.begin(old, wanted, jobs)
		err := w.placeAll(jobs)
		if _, small := errors.AsType[*plan.TooSmall](err); !small {
			return err
		}
	}
	w.begin(old, wanted, nil)
	w.adopt(fresh)
	return nil
}

// adopt replaces all segments by those of a new plan. Each GPU of the new plan
// becomes the existing GPU that already has the most of its segments, or else any.
func (w *world) adopt(fresh *plan.Plan) {
	type key struct {
		model, service string
		slot, gpcs     int
	}
	keyOf := func(g plan.Segment) key { return key{g.GPUModel, g.Service, g.Slot, g.GPCs} }
	has := map[key][]int{} // GPUs with such a segment
	for _, n := range slices.Sorted(maps.Keys(w.oldSegments)) {
		for _, g := range w.oldSegments[n] {
			has[keyOf(g)] = append(has[keyOf(g)], n)
		}
	}
	type pair struct{ fresh, number int }
	same := map[pair]int{}
	models := map[int]string{}
	for _, g := range fresh.Segments {
		models[g.GPU] = g.GPUModel
		for _, n := range has[keyOf(g)] {
			same[pair{g.GPU, n}]++
		}
	}
	pairs := slices.SortedFunc(maps.Keys(same), func(a, b pair) int {
		return cmp.Or(same[b]-same[a], a.fresh-b.fresh, a.number-b.number)
	})
	number, taken := map[int]int{}, map[int]bool{}
	give := func(gpu, n int) { number[gpu], taken[n] = n, true }
	for _, p := range pairs {
		if _, given := number[p.fresh]; !given && !taken[p.number] {
			give(p.fresh, p.number)
		}
	}
	for _, gpu := range slices.Sorted(maps.Keys(models)) {
		if _, given := number[gpu]; given {
			continue
		}
		known := slices.Sorted(maps.Keys(w.models))
		at := slices.IndexFunc(known, func(n int) bool { return w.models[n] == models[gpu] && !taken[n] })
		n := 0
		switch {
		case at >= 0:
			n = known[at]
		case len(known) > 0:
			n = known[len(known)-1] + 1
		}
		w.models[n] = models[gpu]
		give(gpu, n)
	}
	w.lies = map[int][]plan.Segment{}
	for _, g := range fresh.Segments {
		g.GPU = number[g.GPU]
		w.lies[g.GPU] = append(w.lies[g.GPU], g)
	}
}

// freedAtOnce is how many services make room one at a time before several do at
// once.
const freedAtOnce = 16

// restore gives a service that made room those of its old segments back whose
// slots are still free and which the GPU still holds.
func (w *world) restore(service string) {
	for _, g := range w.freed[service] {
		taken := make([]bool, w.tables[g.GPUModel].Slots)
		for _, o := range w.lies[g.GPU] {
			cover(taken, o.Slot, w.slots(o))
		}
		if !slices.Contains(taken[g.Slot:g.Slot+w.slots(g)], true) && w.holds(g) {
			w.lies[g.GPU] = append(w.lies[g.GPU], g)
		}
	}
	delete(w.freed, service)
}

// holds reports whether a GPU whose memory and MPS are shared has room for one
// more segment.
func (w *world) holds(g plan.Segment) bool {
	table := w.tables[g.GPUModel]
	memory, processes := w.memory(g), g.Processes
	for _, o := range w.lies[g.GPU] {
		memory += w.memory(o)
		processes += o.Processes
	}
	return !table.Percent ||
		(table.MemoryMiB == 0 || memory <= float64(table.MemoryMiB)) && (table.Clients == 0 || processes <= table.Clients)
}

// placeAll places services: first those that leave room, then by need, and at last
// those that make room.
func (w *world) placeAll(jobs []job) error {
	need := make(map[string]float64, len(jobs))
	for _, j := range jobs {
		n, err := w.need(j.service)
		if err != nil {
			return err
		}
		need[j.service.Name] = n
	}
	group := func(j job) int {
		switch {
		case j.makesRoom:
			return 2
		case j.less:
			return 0
		}
		return 1
	}
	slices.SortStableFunc(jobs, func(a, b job) int {
		return cmp.Or(group(a)-group(b), cmp.Compare(need[b.service.Name], need[a.service.Name]), cmp.Compare(a.service.Name, b.service.Name))
	})
	for i, j := range jobs {
		w.restore(j.service.Name)
		if best := w.place(j.service); best < j.service.RateRPS*(1-tolerance) {
			return w.tooSmall(jobs[i:], best)
		}
	}
	return nil
}

// need returns roughly how many GPCs a service needs. It fails if no model of GPU
// can serve the service.
func (w *world) need(s plan.Service) (float64, error) {
	var first error
	least := 0.0
	for _, stock := range w.problem.Stocks() {
		points, err := w.problem.Feasible(stock.GPU, s)
		if err != nil {
			first = cmp.Or(first, err)
			continue
		}
		for _, pt := range points {
			if gpcs := s.RateRPS / pt.ThroughputRPS * float64(pt.GPCs); least == 0 || gpcs < least {
				least = gpcs
			}
		}
	}
	if least == 0 {
		return 0, first
	}
	return least, nil
}

// tooSmall reports what fits: jobs[0] in part, the others not at all.
func (w *world) tooSmall(jobs []job, best float64) error {
	e := &plan.TooSmall{Fleet: w.problem.Stocks()}
	for _, s := range w.problem.Services {
		served := plan.Served{Service: s.Name, RateRPS: s.RateRPS, PlacedRPS: s.RateRPS}
		switch i := slices.IndexFunc(jobs, func(j job) bool { return j.service.Name == s.Name }); {
		case i == 0:
			served.PlacedRPS = best
		case i > 0:
			served.PlacedRPS = 0
		}
		e.Services = append(e.Services, served)
	}
	return e
}

// tolerance is the relative error that a sum of throughputs may have.
const tolerance = 1e-12

// cost is the cost of a way to place a service. The first part that differs
// decides. Parts add up over segments and GPUs, so that a way with a more
// expensive part never becomes the cheaper total.
type cost [7]int

// The parts of a cost. If a service needs more than its own segments serve, moves
// are the own segments that could stay and do not. Sizes then come before
// retunes. If its segments suffice, moves are the segments to create, and retunes
// come before sizes: this does not touch a service whose objective becomes
// easier.
type parts struct{ gpus, moves, blocked, retuned, gpcs, created, waste int }

func (p parts) cost(suffices bool) cost {
	if suffices {
		return cost{p.gpus, p.created, p.blocked, p.retuned, p.gpcs, p.created, p.waste}
	}
	return cost{p.gpus, p.moves, p.blocked, p.gpcs, p.retuned, p.created, p.waste}
}

func (c cost) plus(o cost) cost {
	for i := range c {
		c[i] += o[i]
	}
	return c
}

func (c cost) compare(o cost) int { return slices.Compare(c[:], o[:]) }

// A label is a way to place part of a service: its cost, its throughput, and the
// labels that it consists of.
type label struct {
	cost       cost
	throughput float64
	memory     float64 // on this GPU, if GPU.Percent; processes, too
	processes  int
	// Either a segment after another label of the same GPU, or two labels of
	// different GPUs.
	segment  *plan.Segment
	from, on *label
}

// segments collects the segments of a label.
func (l *label) segments(dst []plan.Segment) []plan.Segment {
	if l == nil {
		return dst
	}
	dst = l.on.segments(l.from.segments(dst))
	if l.segment != nil {
		dst = append(dst, *l.segment)
	}
	return dst
}

// labelLimit is the max number of labels in one stage.
const labelLimit = 4096

// searched is how many new GPUs are filled by search. If a service needs many
// more, the others all get the option with the highest throughput.
const searched = 16

// front sorts labels by cost and keeps those with more throughput than all cheaper
// ones. If memory and MPS are shared, it also keeps those that take less of them.
// It stops at the first label with enough throughput.
func front(labels []*label, enough float64, shared bool) []*label {
	slices.SortStableFunc(labels, func(a, b *label) int {
		return cmp.Or(a.cost.compare(b.cost), cmp.Compare(b.throughput, a.throughput))
	})
	var kept []*label
	for _, l := range labels {
		dominated := slices.ContainsFunc(kept, func(k *label) bool {
			return k.throughput >= l.throughput && k.memory <= l.memory && k.processes <= l.processes
		})
		if !shared {
			dominated = len(kept) > 0 && kept[len(kept)-1].throughput >= l.throughput
		}
		if dominated || len(kept) >= labelLimit && l.throughput < enough {
			continue
		}
		kept = append(kept, l)
		if !shared && l.throughput >= enough {
			break
		}
	}
	return kept
}

// placement is the search for one service.
type placement struct {
	*world
	service plan.Service
	// rate with its tolerance, which labels must reach.
	enough   float64
	suffices bool
	// best are the points for new segments, by model of GPU, ascending by size.
	// feasible are all points within the bound.
	best, feasible map[string][]plan.Point
}

// place places a service's segments and returns their throughput. It changes
// nothing if that is less than the service's rate.
func (w *world) place(s plan.Service) float64 {
	p := &placement{world: w, service: s, enough: s.RateRPS * (1 - tolerance),
		best: map[string][]plan.Point{}, feasible: map[string][]plan.Point{}}
	stocks := w.problem.Stocks()
	for _, stock := range stocks {
		p.feasible[stock.GPU.Name], _ = w.problem.Feasible(stock.GPU, s)
		p.best[stock.GPU.Name] = largest(p.feasible[stock.GPU.Name])
	}
	numbers := slices.Sorted(maps.Keys(w.models))
	p.suffices = p.reach(numbers) >= p.enough

	labels := []*label{{}}
	for _, n := range numbers {
		if w.isOpen(n, s) {
			labels = p.join(labels, p.options(n, w.tables[w.models[n]], w.lies[n], w.oldSegments[n]))
		}
	}
	there := map[string]int{}
	for _, model := range w.models {
		there[model]++
	}
	// New GPUs get their numbers when it is known that they are used.
	next := 0
	if len(numbers) > 0 {
		next = numbers[len(numbers)-1] + 1
	}
	for _, stock := range stocks {
		free := stock.Count - there[stock.GPU.Name]
		if stock.Count < 0 {
			free = math.MaxInt
		}
		labels, next = p.open(labels, stock.GPU, free, next)
	}
	last := labels[len(labels)-1]
	if last.throughput < p.enough {
		return last.throughput
	}
	// The cheapest sufficient label is the last of a front.
	for _, n := range numbers {
		w.lies[n] = slices.DeleteFunc(w.lies[n], func(g plan.Segment) bool { return g.Service == s.Name })
	}
	placed := last.segments(nil)
	w.number(placed, numbers)
	for _, g := range placed {
		w.lies[g.GPU] = append(w.lies[g.GPU], g)
	}
	return last.throughput
}

// reach returns the max throughput of the service's own segments in their places.
func (p *placement) reach(numbers []int) (sum float64) {
	for _, n := range numbers {
		for _, g := range p.lies[n] {
			if g.Service == p.service.Name {
				kept, retuned := p.stay(g)
				sum += max(throughput(kept), throughput(retuned))
			}
		}
	}
	return sum
}

// open adds up to free empty GPUs of a model to labels, numbered from next on. It
// also returns the next number.
func (p *placement) open(labels []*label, gpu plan.GPU, free, next int) ([]*label, int) {
	empty := p.options(0, gpu, nil, nil)
	first := 1
	if most := empty[len(empty)-1]; most.throughput > 0 {
		// If there are very many, all but a few are alike.
		bulk := min(free, int((p.enough-labels[len(labels)-1].throughput)/most.throughput)-searched)
		for ; first <= bulk; first++ {
			o := renumbered([]*label{most}, next)[0]
			next++
			for i, l := range labels {
				labels[i] = &label{cost: l.cost.plus(o.cost), throughput: l.throughput + o.throughput, from: l, on: o}
			}
		}
	}
	for i := first; len(empty) > 1 && i <= free; i++ {
		if last := labels[len(labels)-1]; last.throughput >= p.enough && last.cost[0] < i {
			break // each further GPU costs more than this
		}
		labels = p.join(labels, renumbered(empty, next))
		next++
	}
	return labels, next
}

// isOpen reports whether a GPU has a slot that no other service uses.
func (w *world) isOpen(n int, s plan.Service) bool {
	free := w.tables[w.models[n]].Slots
	for _, g := range w.lies[n] {
		if g.Service != s.Name {
			free -= w.slots(g)
		}
	}
	return free > 0
}

// all returns the segments of all services, in order of place.
func (w *world) all() []plan.Segment {
	var all []plan.Segment
	for _, n := range slices.Sorted(maps.Keys(w.lies)) {
		all = append(all, w.lies[n]...)
	}
	return all
}

// number gives new GPUs the numbers after the known ones, without gaps.
func (w *world) number(placed []plan.Segment, known []int) {
	next := 0
	if len(known) > 0 {
		next = known[len(known)-1] + 1
	}
	given := map[int]int{}
	slices.SortFunc(placed, compareSegments)
	for i := range placed {
		g := &placed[i]
		if _, ok := w.models[g.GPU]; ok && g.GPU < next {
			continue
		}
		n, ok := given[g.GPU]
		if !ok {
			n = next + len(given)
			given[g.GPU] = n
			w.models[n] = g.GPUModel
		}
		g.GPU = n
	}
}

// renumbered returns an empty GPU's options for a GPU with another number.
func renumbered(options []*label, n int) []*label {
	again := make([]*label, len(options))
	for i, o := range options {
		whole := *o
		segments := o.segments(nil)
		whole.segment, whole.from, whole.on = nil, nil, nil
		head := &whole
		for j := range segments {
			segments[j].GPU = n
			head.from = &label{segment: &segments[j], from: head.from}
		}
		again[i] = head
	}
	return again
}

// join combines each way to use one more GPU with all labels so far.
func (p *placement) join(labels, options []*label) []*label {
	if len(options) == 1 && options[0].from == nil && options[0].segment == nil && options[0].cost == (cost{}) {
		return labels // nothing fits on it
	}
	joined := make([]*label, 0, len(labels)*len(options))
	for _, o := range options {
		for _, l := range labels {
			joined = append(joined, &label{cost: l.cost.plus(o.cost), throughput: l.throughput + o.throughput, from: l, on: o})
		}
	}
	return front(joined, p.enough, false)
}

// stay returns what an own segment may be in its place: unchanged, and at the best
// point of its size. Each is nil if it is not possible.
func (p *placement) stay(g plan.Segment) (kept, retuned *plan.Segment) {
	for _, pt := range p.feasible[g.GPUModel] {
		if g.Model == p.service.Model && pt.GPCs == g.GPCs && pt.Batch == g.Batch && pt.Processes == g.Processes {
			k := g
			kept = &k
		}
	}
	for _, pt := range p.best[g.GPUModel] {
		if pt.GPCs == g.GPCs {
			r := plan.SegmentOf(g.GPU, p.tables[g.GPUModel], g.Slot, p.service, pt)
			if !sameWork(r, g) {
				retuned = &r
			}
		}
	}
	return kept, retuned
}

func throughput(g *plan.Segment) float64 {
	if g == nil {
		return 0
	}
	return g.ThroughputRPS
}

// largest returns the point of the highest throughput of each size, ascending by
// size. Of equal points it prefers lower latency, then less memory, then fewer
// processes.
func largest(points []plan.Point) []plan.Point {
	var best []plan.Point
	for _, pt := range points {
		last := len(best) - 1
		switch {
		case last < 0 || best[last].GPCs != pt.GPCs:
			best = append(best, pt)
		case cmp.Or(cmp.Compare(pt.ThroughputRPS, best[last].ThroughputRPS), cmp.Compare(best[last].LatencyMS, pt.LatencyMS),
			cmp.Compare(best[last].MemoryMiB, pt.MemoryMiB), best[last].Processes-pt.Processes) > 0:
			best[last] = pt
		}
	}
	return best
}

func cover(slots []bool, from, n int) {
	for i := from; i < from+n; i++ {
		slots[i] = true
	}
}
