package change

import (
	"fmt"
	"math"
	"slices"

	"github.com/penstock/penstock/plan"
)

// A transition is the sequence of steps from the old segments to the new ones.
type transition struct {
	*world
	change *Change
	// The segments that exist now, including shadows.
	onGPU     map[int][]plan.Segment
	ofService map[string][]plan.Segment
	shadows   []plan.Segment
	// The remaining work, in order of place.
	create, destroy []plan.Segment
	retune          [][2]plan.Segment // was, becomes
	// should is the throughput that a service must not fall below during the
	// change.
	should map[string]float64
	// removed are the services that are not wanted any more.
	removed map[string]bool
	// counts are the available GPUs by model, -1 for unlimited.
	counts map[string]int
	known  int // GPUs of either plan have lower numbers
	// after is the memory that the new plan's segments take, by GPU.
	after map[int]float64
}

// steps orders the steps of the change, and counts its effect on each service. It
// repeats the first of these that is possible:
//
//  1. Destroy segments of removed services: they need not serve any more.
//  2. Create every segment that has room.
//  3. Retune, if the service has enough throughput after it.
//  4. Destroy, if the service has enough throughput without the segment.
//  5. If none of these is possible, a segment that is needed blocks a new one. It
//     gets a shadow on spare slots and is destroyed.
//
// A shadow is destroyed when its service is done.
func (c *Change) steps(w *world, old *plan.Plan, before map[string]plan.Assigned, wanted map[string]plan.Service) {
	t := &transition{world: w, change: c, should: map[string]float64{}, removed: map[string]bool{}, counts: map[string]int{}}
	for name, s := range before {
		if now, exists := wanted[name]; exists {
			t.should[name] = min(s.RateRPS, now.RateRPS)
		} else {
			t.removed[name] = true
		}
	}
	for _, stock := range w.problem.Stocks() {
		t.counts[stock.GPU.Name] = stock.Count
	}
	for n := range w.models {
		t.known = max(t.known, n+1)
	}
	t.after = map[int]float64{}
	for _, g := range c.Plan.Segments {
		t.after[g.GPU] += t.memory(g)
	}
	c.GPUsDuring = max(c.GPUsBefore, c.GPUsAfter)
	t.onGPU, t.ofService = map[int][]plan.Segment{}, map[string][]plan.Segment{}
	for _, g := range old.Segments {
		t.add(g)
	}
	t.sort(old)
	for t.next() {
	}
}

// sort separates the segments that stay from those to retune, create and destroy.
func (t *transition) sort(old *plan.Plan) {
	count := make(map[string]*Service, len(t.change.Services))
	for i := range t.change.Services {
		count[t.change.Services[i].Service] = &t.change.Services[i]
	}
	type place struct{ gpu, slot int }
	after := make(map[place]plan.Segment, len(t.change.Plan.Segments))
	for _, g := range t.change.Plan.Segments {
		after[place{g.GPU, g.Slot}] = g
	}
	stays := map[place]bool{}
	for _, g := range old.Segments {
		n, exists := after[place{g.GPU, g.Slot}]
		switch {
		case !exists || n.Service != g.Service || !samePlace(n, g):
			t.destroy = append(t.destroy, g)
			count[g.Service].Destroyed++
			continue
		case sameWork(n, g):
			count[g.Service].Kept++
		case t.memory(g)+t.memory(n) > t.space(g):
			// The instance has no memory for both at once (see next for GPUs
			// without MIG).
			t.destroy, t.create = append(t.destroy, g), append(t.create, n)
			count[g.Service].Retuned++
		default:
			t.retune = append(t.retune, [2]plan.Segment{g, n})
			count[g.Service].Retuned++
		}
		stays[place{g.GPU, g.Slot}] = true
	}
	for _, g := range t.change.Plan.Segments {
		if !stays[place{g.GPU, g.Slot}] {
			t.create = append(t.create, g)
			count[g.Service].Created++
		}
	}
	slices.SortStableFunc(t.create, compareSegments)
	slices.SortStableFunc(t.destroy, compareSegments)
}

// space returns the memory of a segment's instance; infinite if it is not limited.
func (t *transition) space(g plan.Segment) float64 {
	size, _ := t.tables[g.GPUModel].Size(g.GPCs)
	if size.MemoryMiB == 0 {
		return math.Inf(1)
	}
	return float64(size.MemoryMiB)
}

// next does at most one step. It returns false when all steps are done.
func (t *transition) next() bool {
	for i, g := range t.destroy {
		if t.removed[g.Service] {
			t.destroy = slices.Delete(t.destroy, i, i+1)
			t.end(Step{Op: Destroy, Segment: g, Why: fmt.Sprintf("%s is not wanted any more", g.Service)})
			return true
		}
	}
	for i, g := range t.create {
		if t.hasRoom(g) {
			t.create = slices.Delete(t.create, i, i+1)
			t.begin(Step{Op: Create, Segment: g, Why: fmt.Sprintf("%s needs it; the slots are free", g.Service)})
			return true
		}
	}
	for i, r := range t.retune {
		old, becomes := r[0], r[1]
		if t.isFull(becomes) {
			// The GPU has no memory for both at once.
			t.retune = slices.Delete(t.retune, i, i+1)
			t.destroy, t.create = append(t.destroy, old), append(t.create, becomes)
			return true
		}
		if t.has(old.Service)-old.ThroughputRPS+becomes.ThroughputRPS >= t.should[old.Service]*(1-tolerance) {
			t.retune = slices.Delete(t.retune, i, i+1)
			t.remove(old)
			t.add(becomes)
			t.describe(Step{Op: Retune, Segment: becomes, Was: &old,
				Why: fmt.Sprintf("%s stays in the same instance; new processes start beside the old ones", old.Service)})
			return true
		}
	}
	for i, g := range t.destroy {
		if t.has(g.Service)-g.ThroughputRPS >= t.should[g.Service]*(1-tolerance) {
			t.destroy = slices.Delete(t.destroy, i, i+1)
			t.end(Step{Op: Destroy, Segment: g, Why: fmt.Sprintf("%s has enough without it", g.Service)})
			return true
		}
	}
	for i, g := range t.shadows {
		isOwn := func(s plan.Segment) bool { return s.Service == g.Service }
		if !slices.ContainsFunc(t.create, isOwn) && !slices.ContainsFunc(t.destroy, isOwn) {
			t.shadows = slices.Delete(t.shadows, i, i+1)
			t.end(Step{Op: Destroy, Segment: g, Shadow: true, Why: fmt.Sprintf("%s is where it should be", g.Service)})
			return true
		}
	}
	if len(t.create) == 0 {
		return false
	}
	t.makeWay()
	return true
}

// makeWay destroys the first segment that blocks a new one: after a shadow has
// replaced it or, if there is no spare, at once.
func (t *transition) makeWay() {
	g, ok := t.first(t.destroy)
	if !ok {
		t.makeMemory()
		return
	}
	t.destroy = slices.DeleteFunc(t.destroy, func(d plan.Segment) bool { return d == g })
	shadow, ok := t.spare(g, true)
	if !ok {
		shadow, ok = t.spare(g, false)
	}
	if ok {
		t.shadows = append(t.shadows, shadow)
		t.change.Spares = append(t.change.Spares, Spare{GPU: shadow.GPU, GPUModel: shadow.GPUModel, Slot: shadow.Slot,
			GPCs: shadow.GPCs, Service: shadow.Service, ExtraGPU: shadow.GPU >= t.known})
		t.begin(Step{Op: Create, Segment: shadow, Shadow: true,
			Why: fmt.Sprintf("a shadow of %s's segment in gpu %d, slot %d, which is in the way", g.Service, g.GPU, g.Slot)})
		// The segment goes at once: the shadow must not make other segments look
		// unneeded.
		t.end(Step{Op: Destroy, Segment: g, ShortRPS: t.short(g), Why: fmt.Sprintf("%s has enough without it", g.Service)})
		return
	}
	t.end(Step{Op: Destroy, Segment: g, ShortRPS: t.short(g),
		Why: fmt.Sprintf("it is in the way, and there is no spare for a shadow: %s is short until its new segments serve", g.Service)})
}

// makeMemory makes way if only memory, which is shared without MIG, is short. It
// destroys a segment that would be retuned if there were more memory, or else a
// shadow.
func (t *transition) makeMemory() {
	if len(t.retune) > 0 {
		old, becomes := t.retune[0][0], t.retune[0][1]
		t.retune = t.retune[1:]
		t.destroy, t.create = append(t.destroy, old), append(t.create, becomes)
		return
	}
	if g, ok := t.first(t.shadows); ok {
		t.shadows = slices.DeleteFunc(t.shadows, func(d plan.Segment) bool { return d == g })
		t.end(Step{Op: Destroy, Segment: g, Shadow: true, ShortRPS: t.short(g),
			Why: fmt.Sprintf("it has memory that %s's new segments need", g.Service)})
		return
	}
	// The new plan is legal and everything else is gone.
	panic(fmt.Sprintf("change: no way to %v", t.create))
}

// first returns the first of some segments that blocks a new one.
func (t *transition) first(segments []plan.Segment) (plan.Segment, bool) {
	for _, n := range t.create {
		if at := slices.IndexFunc(segments, func(g plan.Segment) bool { return t.overlap(g, n) }); at >= 0 {
			return segments[at], true
		}
	}
	return plan.Segment{}, false
}

// short returns the throughput that a service lacks after it has lost a segment.
func (t *transition) short(g plan.Segment) float64 {
	short := t.should[g.Service] - (t.has(g.Service) - g.ThroughputRPS)
	if short <= t.should[g.Service]*tolerance {
		return 0
	}
	return short
}

// begin creates a segment; end destroys one.
func (t *transition) begin(s Step) {
	t.add(s.Segment)
	t.describe(s)
}

func (t *transition) end(s Step) {
	t.remove(s.Segment)
	t.describe(s)
}

func (t *transition) describe(s Step) { t.change.Steps = append(t.change.Steps, s) }

func (t *transition) add(g plan.Segment) {
	t.onGPU[g.GPU] = append(t.onGPU[g.GPU], g)
	t.ofService[g.Service] = append(t.ofService[g.Service], g)
	t.change.GPUsDuring = max(t.change.GPUsDuring, len(t.onGPU))
}

func (t *transition) remove(g plan.Segment) {
	same := func(o plan.Segment) bool { return samePlace(o, g) }
	t.ofService[g.Service] = slices.DeleteFunc(t.ofService[g.Service], same)
	if left := slices.DeleteFunc(t.onGPU[g.GPU], same); len(left) > 0 {
		t.onGPU[g.GPU] = left
	} else {
		delete(t.onGPU, g.GPU)
	}
}

// has returns the current throughput of a service.
func (t *transition) has(service string) (rps float64) {
	for _, g := range t.ofService[service] {
		rps += g.ThroughputRPS
	}
	return rps
}

// overlap reports whether two segments cannot exist at once. If a GPU's memory is
// shared and short, all its segments block each other.
func (t *transition) overlap(a, b plan.Segment) bool {
	if a.GPU != b.GPU {
		return false
	}
	if a.Slot < b.Slot+t.slots(b) && b.Slot < a.Slot+t.slots(a) {
		return true
	}
	return t.isFull(b)
}

// isFull reports whether a GPU whose memory is shared has too little for one more
// segment.
func (t *transition) isFull(g plan.Segment) bool {
	table := t.tables[g.GPUModel]
	if !table.Percent || table.MemoryMiB == 0 {
		return false
	}
	sum := t.memory(g)
	for _, o := range t.onGPU[g.GPU] {
		sum += t.memory(o)
	}
	return sum > float64(table.MemoryMiB)
}

// hasRoom reports whether a segment could be created now.
func (t *transition) hasRoom(g plan.Segment) bool {
	return !slices.ContainsFunc(t.onGPU[g.GPU], func(o plan.Segment) bool { return t.overlap(o, g) })
}

// spare finds a place for a copy of a segment, on the same model of GPU. The place
// is on a GPU of either plan, on slots that are and stay free, or on a further GPU.
// lasting means that the memory must also suffice next to everything in the new
// plan. Otherwise the copy may have to go before its service is in place
// (makeMemory).
func (t *transition) spare(g plan.Segment, lasting bool) (plan.Segment, bool) {
	table := t.tables[g.GPUModel]
	size, _ := table.Size(g.GPCs)
	shadow := g
	shadow.LoadRPS = 0
	last := t.known
	for _, s := range t.shadows {
		last = max(last, s.GPU+1)
	}
	total := 0
	for n := range last + 1 {
		if count := t.counts[g.GPUModel]; n == last && count >= 0 && total >= count {
			return shadow, false
		}
		if n < last && t.modelOf(n) != g.GPUModel {
			continue
		}
		total++
		if lasting && !t.lasts(g, n) {
			continue
		}
		for _, slot := range size.Starts {
			shadow.GPU, shadow.Slot = n, slot
			if t.hasRoom(shadow) && !slices.ContainsFunc(t.create, func(c plan.Segment) bool { return t.overlap(c, shadow) }) {
				return shadow, true
			}
		}
	}
	return shadow, false
}

// modelOf returns the model of a GPU. GPUs beyond the plans' hold shadows.
func (t *transition) modelOf(n int) string {
	if model, ok := t.models[n]; ok {
		return model
	}
	for _, s := range t.shadows {
		if s.GPU == n {
			return s.GPUModel
		}
	}
	return ""
}

// lasts reports whether a GPU has memory for a shadow next to everything in the new
// plan and next to the existing shadows.
func (t *transition) lasts(shadow plan.Segment, gpu int) bool {
	table := t.tables[shadow.GPUModel]
	if !table.Percent || table.MemoryMiB == 0 {
		return true
	}
	sum := t.after[gpu] + t.memory(shadow)
	for _, s := range t.shadows {
		if s.GPU == gpu {
			sum += t.memory(s)
		}
	}
	return sum <= float64(table.MemoryMiB)
}

// String formats the step as a line of text.
func (s Step) String() string {
	g := s.Segment
	where := fmt.Sprintf("gpu %d, slot %d, size %d", g.GPU, g.Slot, g.GPCs)
	what := fmt.Sprintf("%s, batch %d, %d processes", g.Service, g.Batch, g.Processes)
	op := string(s.Op)
	if s.Shadow {
		op += " shadow"
	}
	if s.Was != nil {
		what += fmt.Sprintf(" (was batch %d, %d processes)", s.Was.Batch, s.Was.Processes)
	}
	return op + " " + where + ": " + what + ": " + s.Why
}
