package plan

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/penstock/penstock/models/profile"
)

// A Point is one measured operating point of a model: a segment of GPCs (steps
// where GPU.Percent) that runs Processes MPS processes, each at batch size
// Batch.
type Point struct {
	GPCs, Batch, Processes int
	// ThroughputRPS is the requests a second of all processes together.
	ThroughputRPS float64
	// LatencyMS is the time of one batch.
	LatencyMS float64
	// MemoryMiB is the memory of all processes together; 0 where not measured.
	MemoryMiB float64
}

// A Profile is what one model was measured to do on one model of GPU. Points
// that ran out of memory are left out; the rest ascend by GPCs, batch,
// processes.
type Profile struct {
	Model, GPU string
	// HeldBy is what held the processes to sizes of GPCs that were no MIG instances
	// ("mps"): the profile is an estimate of these, from above. Else it is empty.
	HeldBy string
	Points []Point
}

// A Service is what is wanted: a model at a rate under a latency objective.
type Service struct {
	Name, Model string
	// RateRPS is the requests a second that must be served; above 0.
	RateRPS float64
	// SLOMS is the latency objective of a request, in milliseconds; above 0.
	SLOMS float64
}

// Stock is how many GPUs of a model there are.
type Stock struct {
	GPU GPU
	// Count is the number of GPUs; negative means as many as needed.
	Count int
}

// A Problem is all that a policy needs. It is the caller's; a policy reads it.
type Problem struct {
	// GPU is what to plan on where Fleet is empty: as many as needed.
	GPU      GPU
	Services []Service
	// Profiles are keyed by the GPU's name, then by the model's.
	Profiles map[string]map[string]Profile
	// Fleet is what there is, in order of preference; empty means GPU without end.
	Fleet []Stock
	// Bound gives the latency in milliseconds that a batch of a service must stay
	// under; nil means HalfSLO.
	Bound func(Service) float64
}

// A Policy turns a problem into a plan. Errors: *NoProfile, *Infeasible,
// *TooSmall, or a plain one that says what the policy cannot do. DelayMS is
// left 0 in the plan: a policy has no clock, its caller measures.
type Policy interface {
	// Name is the name that --policy takes.
	Name() string
	Plan(*Problem) (*Plan, error)
}

// HalfSLO is the latency bound of the paper, in milliseconds
// (profile.LatencyBound).
func HalfSLO(s Service) float64 { return profile.LatencyBound(s.SLOMS) }

// BoundMS is the latency that a batch of the service must stay under.
func (p *Problem) BoundMS(s Service) float64 {
	if p.Bound != nil {
		return p.Bound(s)
	}
	return HalfSLO(s)
}

// Stocks is what there is to plan on: Fleet, or GPU without end.
func (p *Problem) Stocks() []Stock {
	if len(p.Fleet) > 0 {
		return p.Fleet
	}
	return []Stock{{GPU: p.GPU, Count: -1}}
}

// Within says whether a point may serve at a latency bound on a size: its batch
// takes less than the bound (section III-D1: "lower than"), it serves at all,
// and its memory, where known, is there.
func (pt Point) Within(boundMS float64, s Size) bool {
	fits := s.MemoryMiB == 0 || pt.MemoryMiB <= float64(s.MemoryMiB)
	return pt.ThroughputRPS > 0 && pt.LatencyMS < boundMS && fits
}

// The limits of ParvaGPU's published results. No policy takes a point of a profile
// beyond them, so that all choose from the same.
const (
	MostProcesses = 5
	MostBatch     = 256
)

// Feasible returns the profile's points that the service may run at on the
// given GPU, ascending by GPCs, batch, processes: those of up to MostProcesses
// and MostBatch that are Within the bound. It returns *NoProfile where the model
// was never measured on that GPU, and *Infeasible where there are none.
func (p *Problem) Feasible(gpu GPU, s Service) ([]Point, error) {
	measured, ok := p.Profiles[gpu.Name][s.Model]
	if !ok {
		return nil, p.noProfile(gpu, s)
	}
	bound := p.BoundMS(s)
	var points []Point
	for _, pt := range measured.Points {
		if size, ok := gpu.Size(pt.GPCs); ok && pt.limited() && pt.Within(bound, size) {
			points = append(points, pt)
		}
	}
	if len(points) == 0 {
		return nil, p.Unmet(gpu, s, func(Point) bool { return true })
	}
	return points, nil
}

// limited says whether a point is within the limits of all policies.
func (pt Point) limited() bool { return pt.Processes <= MostProcesses && pt.Batch <= MostBatch }

// noProfile says what was measured on the GPU, and where else the model was.
func (p *Problem) noProfile(gpu GPU, s Service) error {
	e := &NoProfile{Service: s, GPU: gpu.Name, Have: sortedKeys(p.Profiles[gpu.Name])}
	for _, name := range sortedKeys(p.Profiles) {
		if _, ok := p.Profiles[name][s.Model]; ok {
			e.On = append(e.On, name)
		}
	}
	return e
}

// Unmet is the error for a service whose objective no point meets, of those that
// a policy may take: it has the one that comes nearest.
func (p *Problem) Unmet(gpu GPU, s Service, may func(Point) bool) *Infeasible {
	e := &Infeasible{Service: s, GPU: gpu.Name, BoundMS: p.BoundMS(s)}
	best := math.Inf(1)
	for _, pt := range p.Profiles[gpu.Name][s.Model].Points {
		size, ok := gpu.Size(pt.GPCs)
		if ok && pt.limited() && may(pt) && pt.Within(best, size) {
			best, e.Best = pt.LatencyMS, pt
		}
	}
	return e
}

// Check says what is wrong with the problem itself, before any policy runs: a
// service without a name, a rate or an objective that is no positive number,
// the same service twice, no service at all, or a fleet without a GPU.
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
			return fmt.Errorf("service %q is there twice", s.Name)
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

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// comparePoints orders points by GPCs, batch, processes.
func comparePoints(a, b Point) int {
	return cmp.Or(a.GPCs-b.GPCs, a.Batch-b.Batch, a.Processes-b.Processes)
}
