package plan

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/penstock/penstock/models/profile"
)

// A Point is one measured operating point of a model. A segment of GPCs (steps if
// GPU.Percent) runs Processes MPS processes, each with batch size Batch.
type Point struct {
	GPCs, Batch, Processes int
	// SharePercent is the percentage of the GPU that was measured, of all processes
	// together. A model may answer wrongly at others. 0: it was a whole instance.
	SharePercent float64
	// ThroughputRPS is the total of all processes, in requests per second.
	ThroughputRPS float64
	// LatencyMS is the time of one batch.
	LatencyMS float64
	// MemoryMiB is the memory of all processes together; 0 if not measured.
	MemoryMiB float64
}

// A Profile has the measurements of one model on one model of GPU. It omits
// points that ran out of memory; the others ascend by GPCs, batch, processes.
type Profile struct {
	Model, GPU string
	// HeldBy is the mechanism that limited the processes to sizes of GPCs if
	// these were not MIG instances ("mps"). The profile is then an upper estimate
	// of MIG instances. Otherwise it is empty.
	HeldBy string
	Points []Point
}

// A Service is a demand: a model at a rate under a latency objective.
type Service struct {
	Name, Model string
	// RateRPS is the rate to serve, in requests per second; above 0.
	RateRPS float64
	// SLOMS is the latency objective of a request, in milliseconds; above 0.
	SLOMS float64
}

// Stock is the available number of GPUs of one model.
type Stock struct {
	GPU GPU
	// Count is the number of GPUs; negative means as many as needed.
	Count int
}

// A Problem is all input of a policy. The caller owns it; a policy only reads it.
type Problem struct {
	// GPU is the GPU to plan on if Fleet is empty; there are as many as needed.
	GPU      GPU
	Services []Service
	// Profiles are keyed by the GPU's name, then by the model's name.
	Profiles map[string]map[string]Profile
	// Fleet is the available GPUs, in order of preference. Empty means unlimited
	// GPUs of type GPU.
	Fleet []Stock
	// Bound returns the latency in milliseconds that a batch of a service must
	// stay below; nil means HalfSLO.
	Bound func(Service) float64
}

// A Policy turns a problem into a plan. Errors are *NoProfile, *Infeasible,
// *TooSmall, or a plain one if the policy does not support the problem. It leaves
// DelayMS at 0: a policy has no clock, so its caller measures.
type Policy interface {
	// Name is the policy's name for --policy.
	Name() string
	Plan(*Problem) (*Plan, error)
}

// HalfSLO is the latency bound of the paper, in milliseconds
// (profile.LatencyBound).
func HalfSLO(s Service) float64 { return profile.LatencyBound(s.SLOMS) }

// BoundMS returns the latency that a batch of the service must stay below.
func (p *Problem) BoundMS(s Service) float64 {
	if p.Bound != nil {
		return p.Bound(s)
	}
	return HalfSLO(s)
}

// Stocks returns the GPUs to plan on: Fleet, or unlimited GPUs of type GPU.
func (p *Problem) Stocks() []Stock {
	if len(p.Fleet) > 0 {
		return p.Fleet
	}
	return []Stock{{GPU: p.GPU, Count: -1}}
}

// Tables returns the GPUs to plan on by their names.
func (p *Problem) Tables() map[string]GPU {
	tables := map[string]GPU{}
	for _, stock := range p.Stocks() {
		tables[stock.GPU.Name] = stock.GPU
	}
	return tables
}

// isWithin reports whether a point may serve at a latency bound on a size. Its
// batch must take less than the bound (section III-D1: "lower than"), its
// throughput must be above 0, and its memory, if known, must fit.
func (pt Point) isWithin(boundMS float64, s Size) bool {
	fits := s.MemoryMiB == 0 || pt.MemoryMiB <= float64(s.MemoryMiB)
	return pt.ThroughputRPS > 0 && pt.LatencyMS < boundMS && fits
}

// The limits of ParvaGPU's published results. No policy uses points of a profile
// beyond them, so that all policies choose from the same points.
const (
	MaxProcesses = 5
	MaxBatch     = 256
)

// Feasible returns the points of the profile at which the service may run on the
// given GPU. They are within MaxProcesses, MaxBatch and the bound (Within), and
// ascend by GPCs, batch, processes. It returns *NoProfile if the model was never
// measured on that GPU, and *Infeasible if there are no such points.
func (p *Problem) Feasible(gpu GPU, s Service) ([]Point, error) {
	measured, ok := p.Profiles[gpu.Name][s.Model]
	if !ok {
		return nil, p.noProfile(gpu, s)
	}
	bound := p.BoundMS(s)
	var points []Point
	for _, pt := range measured.Points {
		if size, ok := gpu.Size(pt.GPCs); ok && pt.limited() && pt.isWithin(bound, size) {
			points = append(points, pt)
		}
	}
	if len(points) == 0 {
		return nil, p.Unmet(gpu, s, func(Point) bool { return true })
	}
	return points, nil
}

// limited reports whether a point is within the limits of all policies.
func (pt Point) limited() bool { return pt.Processes <= MaxProcesses && pt.Batch <= MaxBatch }

// noProfile lists the models measured on the GPU, and the GPUs on which the model
// was measured.
func (p *Problem) noProfile(gpu GPU, s Service) error {
	e := &NoProfile{Service: s, GPU: gpu.Name, Have: sortedKeys(p.Profiles[gpu.Name])}
	for _, name := range sortedKeys(p.Profiles) {
		if _, ok := p.Profiles[name][s.Model]; ok {
			e.On = append(e.On, name)
		}
	}
	return e
}

// Unmet returns the error for a service whose objective no point meets. Among the
// points that may accepts, it has the one that comes nearest.
func (p *Problem) Unmet(gpu GPU, s Service, allowed func(Point) bool) *Infeasible {
	e := &Infeasible{Service: s, GPU: gpu.Name, BoundMS: p.BoundMS(s)}
	best := math.Inf(1)
	for _, pt := range p.Profiles[gpu.Name][s.Model].Points {
		size, ok := gpu.Size(pt.GPCs)
		if ok && pt.limited() && allowed(pt) && pt.isWithin(best, size) {
			best, e.Best = pt.LatencyMS, pt
		}
	}
	return e
}

// Check returns an error if the problem itself is invalid, before any policy
// runs. It refuses a service without a name, a rate or objective that is not a
// positive number, and the same service twice. It also refuses a problem without
// a service and a fleet without a GPU.
func (p *Problem) Check() error {
	if len(p.Services) == 0 {
		return fmt.Errorf("no services: want at least one")
	}
	seen := map[string]bool{}
	for _, s := range p.Services {
		switch {
		case s.Name == "":
			return fmt.Errorf("a service of model %q has no name", s.Model)
		case seen[s.Name]:
			return fmt.Errorf("service %q is listed twice", s.Name)
		case !positive(s.RateRPS):
			return fmt.Errorf("service %q: rate %v requests/s: want a number above 0", s.Name, s.RateRPS)
		case !positive(s.SLOMS):
			return fmt.Errorf("service %q: SLO %v ms: want a number above 0", s.Name, s.SLOMS)
		}
		seen[s.Name] = true
	}
	for _, stock := range p.Stocks() {
		if len(stock.GPU.Sizes) == 0 {
			return fmt.Errorf("GPU %q has no placement table", stock.GPU.Name)
		}
	}
	return nil
}

func positive(x float64) bool { return x > 0 && !math.IsInf(x, 1) }

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// comparePoints orders points by GPCs, batch, processes.
func comparePoints(a, b Point) int {
	return cmp.Or(a.GPCs-b.GPCs, a.Batch-b.Batch, a.Processes-b.Processes)
}
