// Package verify checks plans. It knows the problem and the plan but not how
// plans are made. It shares no code with the policies, reads the tables and
// profiles itself, and recomputes every figure of a plan.
//
// It checks, in this order:
//
//  1. The head: version, policy, GPU model, counts.
//  2. Each segment: a GPU of the problem, a size and slot of its placement
//     table, no slot covered twice. On a GPU that is shared without MIG: enough
//     memory, and no more processes than MPS admits.
//  3. Each segment's operating point: it is in the profile of that model on that
//     GPU, with the same throughput and latency. It is within the service's
//     latency bound.
//  4. Each service: requested once and planned once, with the problem's values,
//     its rate met. Its loads add up to the rate, are proportional to the
//     throughputs, and none exceeds its throughput.
//  5. The figures: GPCs, slack, fragmentation, the lower bound, and that an
//     optimal plan has as many GPUs as its bound.
//  6. The fleet: no more GPUs of a model than there are.
package verify

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/penstock/penstock/plan"
)

// A Violation is one fault of a plan.
type Violation struct {
	// Where is the part of the plan, as in its JSON form: "segments[3]".
	Where string
	// What describes what is wrong and what would be right.
	What string
}

func (v *Violation) Error() string { return v.Where + ": " + v.What }

// tolerance is the max relative error of sums of floating-point numbers.
const tolerance = 1e-9

// Plan checks a plan against the problem that it solves. It returns nil if the
// plan is legal and serves all services, else all faults as *Violation, joined.
// The latency bound is the problem's. To check a policy with its own bounds, put
// them into the problem's Bound.
func Plan(p *plan.Problem, pl *plan.Plan) error {
	c := checker{p: p, pl: pl, tables: map[string]plan.GPU{}, counts: map[string]int{}, services: map[string]*service{}}
	c.head()
	c.layout()
	c.points()
	c.served()
	c.figures()
	c.fleet()
	return errors.Join(c.found...)
}

// Layout checks that a plan's cuts are legal, by the tables that plan.Lookup
// knows. No more can be checked without the problem.
func Layout(pl *plan.Plan) error {
	c := checker{pl: pl, tables: map[string]plan.GPU{}}
	for _, s := range pl.Segments {
		if g, err := plan.Lookup(s.GPUModel); err == nil {
			c.tables[s.GPUModel] = g
		}
	}
	c.layout()
	return errors.Join(c.found...)
}

// checker collects the faults of pl.
type checker struct {
	p      *plan.Problem
	pl     *plan.Plan
	tables map[string]plan.GPU
	// counts are the available GPUs by model; -1 for unlimited.
	counts   map[string]int
	services map[string]*service
	found    []error
}

// service is a problem's service and what the plan gives it.
type service struct {
	plan.Service
	bound             float64
	planned, segments int
	throughput, load  float64
}

func (c *checker) wrong(where, format string, args ...any) {
	c.found = append(c.found, &Violation{where, fmt.Sprintf(format, args...)})
}

func (c *checker) head() {
	if c.pl.Version != plan.Version {
		c.wrong("version", "%d: want %d", c.pl.Version, plan.Version)
	}
	if c.pl.Policy == "" {
		c.wrong("policy", "none: want the name of the policy")
	}
	c.stocks()
	c.models()
	for _, s := range c.p.Services {
		bound := s.SLOMS / 2 * 0.9
		if c.p.Bound != nil {
			bound = c.p.Bound(s)
		}
		if _, twice := c.services[s.Name]; twice {
			c.wrong(fmt.Sprintf("service %q", s.Name), "the problem has it twice: want each once")
		}
		c.services[s.Name] = &service{Service: s, bound: bound}
	}
}

// stocks records the available GPUs.
func (c *checker) stocks() {
	stocks := c.p.Fleet
	if len(stocks) == 0 {
		stocks = []plan.Stock{{GPU: c.p.GPU, Count: -1}}
	}
	for _, s := range stocks {
		c.tables[s.GPU.Name] = s.GPU
		if n := c.counts[s.GPU.Name]; n < 0 || s.Count < 0 {
			c.counts[s.GPU.Name] = -1
		} else {
			c.counts[s.GPU.Name] = n + s.Count
		}
	}
}

// models checks the models of GPU in the head.
func (c *checker) models() {
	var models []string
	for _, s := range c.pl.Segments {
		if !slices.Contains(models, s.GPUModel) {
			models = append(models, s.GPUModel)
		}
	}
	for _, name := range models {
		if len(models) == 1 && c.pl.GPUModel != name {
			c.wrong("gpu_model", "%q: all segments are on %q", c.pl.GPUModel, name)
		}
		if n, want := c.pl.SMsPerGPU[name], usable(c.tables[name]); n != want {
			c.wrong("sms_per_gpu", "%s has %d: segments can use %d", name, n, want)
		}
	}
	if len(models) > 1 && c.pl.GPUModel != plan.Mixed {
		c.wrong("gpu_model", "%q: segments are on %d models, want %q", c.pl.GPUModel, len(models), plan.Mixed)
	}
	if len(c.pl.SMsPerGPU) > len(models) {
		c.wrong("sms_per_gpu", "%d models: segments are on %d", len(c.pl.SMsPerGPU), len(models))
	}
}

// usable returns the SM count of the largest size.
func usable(g plan.GPU) int {
	most := 0
	for _, s := range g.Sizes {
		most = max(most, s.SMs)
	}
	return most
}

// gpu is what the segments checked so far use of a GPU.
type gpu struct {
	model string
	// covered has the segment that covers each slot.
	covered         map[int]int
	gpcs, processes int
}

// layout checks the places of the segments.
func (c *checker) layout() {
	gpus := map[int]*gpu{}
	gpcs, numbers := 0, c.pl.GPUs+len(c.pl.IdleGPUs)
	for i, s := range c.pl.Segments {
		at := segmentAt(i)
		gpcs += s.GPCs
		if s.GPU < 0 || s.GPU >= numbers {
			c.wrong(at, "gpu %d: want 0 to %d", s.GPU, numbers-1)
		}
		if slices.Contains(c.pl.IdleGPUs, s.GPU) {
			c.wrong(at, "gpu %d: idle_gpus has it", s.GPU)
		}
		on := gpus[s.GPU]
		if on == nil {
			on = &gpu{model: s.GPUModel, covered: map[int]int{}}
			gpus[s.GPU] = on
		}
		c.place(i, on)
	}
	c.idle(gpus)
	if len(gpus) != c.pl.GPUs {
		c.wrong("gpus", "%d: segments lie on %d", c.pl.GPUs, len(gpus))
	}
	if gpcs != c.pl.GPCs {
		c.wrong("gpcs", "%d: segments have %d", c.pl.GPCs, gpcs)
	}
}

func segmentAt(i int) string { return fmt.Sprintf("segments[%d]", i) }

// place checks a segment's place on its GPU, next to the segments before it.
func (c *checker) place(i int, on *gpu) {
	s, at := c.pl.Segments[i], segmentAt(i)
	if on.model != s.GPUModel {
		c.wrong(at, "gpu %d is a %s here and a %s above", s.GPU, s.GPUModel, on.model)
	}
	table, ok := c.tables[s.GPUModel]
	if !ok {
		c.wrong(at, "gpu_model %q: the problem has no such GPU", s.GPUModel)
		return
	}
	size, ok := sizeOf(table, s.GPCs)
	if !ok {
		c.wrong(at, "size_gpcs %d: %s cannot be cut so", s.GPCs, table.Name)
		return
	}
	if !slices.Contains(size.Starts, s.Slot) {
		c.wrong(at, "slot %d: size %d on %s starts at one of %v", s.Slot, s.GPCs, table.Name, size.Starts)
	}
	for slot := s.Slot; slot < s.Slot+size.Slots; slot++ {
		if slot < 0 || slot >= table.Slots {
			c.wrong(at, "covers slot %d: %s has 0 to %d", slot, table.Name, table.Slots-1)
		}
		if other, taken := on.covered[slot]; taken {
			c.wrong(at, "covers slot %d of gpu %d, which segments[%d] covers", slot, s.GPU, other)
			break
		}
		on.covered[slot] = i
	}
	if on.processes += s.Processes; table.Percent && table.Clients > 0 && on.processes > table.Clients {
		c.wrong(at, "gpu %d has %d processes with it: MPS takes %d on %s", s.GPU, on.processes, table.Clients, table.Name)
	}
	if on.gpcs += s.GPCs; on.gpcs > table.GPCs {
		c.wrong(at, "gpu %d has %d GPCs with it: %s has %d", s.GPU, on.gpcs, table.Name, table.GPCs)
	}
}

// idle checks that IdleGPUs are exactly the gaps between the GPUs in use.
func (c *checker) idle(gpus map[int]*gpu) {
	last := -1
	for n := range gpus {
		last = max(last, n)
	}
	ok := len(c.pl.IdleGPUs)+len(gpus) == last+1
	for i, n := range c.pl.IdleGPUs {
		ok = ok && n >= 0 && n < last && gpus[n] == nil && (i == 0 || c.pl.IdleGPUs[i-1] < n)
	}
	if !ok {
		c.wrong("idle_gpus", "%v: want the numbers below %d that no segment has, all of them, ascending", c.pl.IdleGPUs, max(last, 0))
	}
}

func sizeOf(g plan.GPU, gpcs int) (plan.Size, bool) {
	for _, s := range g.Sizes {
		if s.GPCs == gpcs {
			return s, true
		}
	}
	return plan.Size{}, false
}

// points checks what the segments run.
func (c *checker) points() {
	memory := map[int]float64{} // by GPU
	for i, s := range c.pl.Segments {
		at := segmentAt(i)
		wanted, ok := c.services[s.Service]
		if !ok {
			c.wrong(at, "service %q: the problem has none of that name", s.Service)
			continue
		}
		wanted.segments++
		wanted.throughput += s.ThroughputRPS
		wanted.load += s.LoadRPS
		if s.Model != wanted.Model {
			c.wrong(at, "model %q: service %q has %q", s.Model, s.Service, wanted.Model)
		}
		if point := c.pointOf(i); point != nil {
			c.runs(i, wanted, point)
			c.holds(i, point, memory)
		}
	}
}

// pointOf returns the point of the profile that a segment runs at, nil if there
// is none.
func (c *checker) pointOf(i int) (point *plan.Point) {
	s, at := c.pl.Segments[i], segmentAt(i)
	profile, ok := c.p.Profiles[s.GPUModel][s.Model]
	if !ok {
		c.wrong(at, "model %q was not measured on %s", s.Model, s.GPUModel)
		return nil
	}
	for j := range profile.Points {
		pt := &profile.Points[j]
		if pt.GPCs == s.GPCs && pt.Batch == s.Batch && pt.Processes == s.Processes {
			point = pt
		}
	}
	if point == nil {
		c.wrong(at, "size %d, batch %d, %d processes: %s on %s has no such point that serves", s.GPCs, s.Batch, s.Processes, s.Model, s.GPUModel)
	}
	return point
}

// runs checks a segment's throughput, latency and load.
func (c *checker) runs(i int, wanted *service, point *plan.Point) {
	s, at := c.pl.Segments[i], segmentAt(i)
	if !near(s.ThroughputRPS, point.ThroughputRPS) || !(point.ThroughputRPS > 0) {
		c.wrong(at, "throughput_rps %v: the profile has %v", s.ThroughputRPS, point.ThroughputRPS)
	}
	if !near(s.LatencyMS, point.LatencyMS) {
		c.wrong(at, "latency_ms %v: the profile has %v", s.LatencyMS, point.LatencyMS)
	}
	if most := min(wanted.bound, wanted.SLOMS); !(s.LatencyMS < most) {
		c.wrong(at, "latency_ms %v: service %q wants less than %v", s.LatencyMS, s.Service, most)
	}
	if !(s.LoadRPS >= 0 && s.LoadRPS <= s.ThroughputRPS*(1+tolerance)) {
		c.wrong(at, "load_rps %v: want 0 to its throughput, %v", s.LoadRPS, s.ThroughputRPS)
	}
}

// holds checks a segment's memory. memory is what the segments before it take, by
// GPU.
func (c *checker) holds(i int, point *plan.Point, memory map[int]float64) {
	s, at := c.pl.Segments[i], segmentAt(i)
	table := c.tables[s.GPUModel]
	if table.Percent {
		memory[s.GPU] += point.MemoryMiB
		if table.MemoryMiB > 0 && memory[s.GPU] > float64(table.MemoryMiB)*(1+tolerance) {
			c.wrong(at, "gpu %d holds %v MiB with it: %s has %d", s.GPU, memory[s.GPU], table.Name, table.MemoryMiB)
		}
		return
	}
	if size, _ := sizeOf(table, s.GPCs); size.MemoryMiB > 0 && point.MemoryMiB > float64(size.MemoryMiB) {
		c.wrong(at, "takes %v MiB: size %d on %s has %d", point.MemoryMiB, s.GPCs, table.Name, size.MemoryMiB)
	}
}

// served checks what the services get.
func (c *checker) served() {
	for i := range c.pl.Services {
		c.planned(i)
	}
	for i, g := range c.pl.Segments {
		s, ok := c.services[g.Service]
		if !ok || !(s.throughput > 0) {
			continue
		}
		if want := s.RateRPS * g.ThroughputRPS / s.throughput; !near(g.LoadRPS, want) {
			c.wrong(segmentAt(i), "load_rps %v: want %v, in proportion to its throughput", g.LoadRPS, want)
		}
	}
	for _, want := range c.p.Services {
		s := c.services[want.Name]
		at := fmt.Sprintf("service %q", want.Name)
		if s.planned == 0 {
			c.wrong(at, "is not in services")
		}
		if s.throughput < s.RateRPS*(1-tolerance) {
			c.wrong(at, "wants %v requests/s: its %d segments reach %v", s.RateRPS, s.segments, s.throughput)
		}
		if !near(s.load, s.RateRPS) {
			c.wrong(at, "wants %v requests/s: its segments carry %v", s.RateRPS, s.load)
		}
	}
}

// planned checks a service's entry in the plan.
func (c *checker) planned(i int) {
	a, at := c.pl.Services[i], fmt.Sprintf("services[%d]", i)
	s, ok := c.services[a.Service]
	if !ok {
		c.wrong(at, "service %q: the problem has none of that name", a.Service)
		return
	}
	if s.planned++; s.planned > 1 {
		c.wrong(at, "service %q is listed twice", a.Service)
	}
	if a.Model != s.Model || a.RateRPS != s.RateRPS || a.SLOMS != s.SLOMS {
		c.wrong(at, "service %q wants %s at %v requests/s in %v ms: it is planned as %s at %v in %v",
			a.Service, s.Model, s.RateRPS, s.SLOMS, a.Model, a.RateRPS, a.SLOMS)
	}
	if !near(a.LatencyBoundMS, s.bound) {
		c.wrong(at, "latency_bound_ms %v: want %v", a.LatencyBoundMS, s.bound)
	}
	if !near(a.AssignedRPS, s.throughput) {
		c.wrong(at, "assigned_rps %v: its segments reach %v", a.AssignedRPS, s.throughput)
	}
}

// figures recomputes the metrics.
func (c *checker) figures() {
	var used, busy, total float64
	gpus := map[int]bool{}
	for _, s := range c.pl.Segments {
		table := c.tables[s.GPUModel]
		size, _ := sizeOf(table, s.GPCs)
		used += float64(size.SMs)
		if s.ThroughputRPS > 0 {
			busy += float64(size.SMs) * s.LoadRPS / s.ThroughputRPS
		}
		if !gpus[s.GPU] {
			gpus[s.GPU] = true
			total += float64(usable(table))
		}
	}
	slack, fragmentation := 0.0, 0.0
	if used > 0 {
		slack, fragmentation = (used-busy)/used, (total-used)/total
	}
	if !nearRatio(c.pl.InternalSlack, slack) {
		c.wrong("internal_slack", "%v: the segments' is %v", c.pl.InternalSlack, slack)
	}
	if !nearRatio(c.pl.ExternalFragmentation, fragmentation) {
		c.wrong("external_fragmentation", "%v: the segments' is %v", c.pl.ExternalFragmentation, fragmentation)
	}
	if c.pl.LowerBound < 0 || c.pl.LowerBound > c.pl.GPUs {
		c.wrong("lower_bound", "%d: the plan has %d GPUs: want one from 1 to that, or 0 for none", c.pl.LowerBound, c.pl.GPUs)
	}
	if proved := c.pl.LowerBound > 0 && c.pl.LowerBound == c.pl.GPUs; c.pl.Optimal != proved {
		c.wrong("optimal", "%v: the lower bound is %d, and the plan has %d GPUs: want %v", c.pl.Optimal, c.pl.LowerBound, c.pl.GPUs, proved)
	}
	if !(c.pl.DelayMS >= 0) || math.IsInf(c.pl.DelayMS, 0) {
		c.wrong("delay_ms", "%v: want a number from 0", c.pl.DelayMS)
	}
}

// fleet counts the GPUs of each model.
func (c *checker) fleet() {
	models := map[int]string{}
	for _, s := range c.pl.Segments {
		models[s.GPU] = s.GPUModel
	}
	used := map[string]int{}
	for _, model := range models {
		used[model]++
	}
	for _, stock := range c.p.Fleet {
		name := stock.GPU.Name
		if n := c.counts[name]; n >= 0 && used[name] > n {
			c.wrong("gpus", "%d × %s: the fleet has %d", used[name], name, n)
			c.counts[name] = -1
		}
	}
}

// near compares figures that were computed in different orders; NaN is near
// nothing.
func near(a, b float64) bool {
	return math.Abs(a-b) <= tolerance*max(math.Abs(a), math.Abs(b))
}

// nearRatio compares ratios near 0, which are differences of large numbers.
func nearRatio(a, b float64) bool { return math.Abs(a-b) <= tolerance }
