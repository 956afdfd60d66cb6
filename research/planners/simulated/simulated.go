package simulated

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"runtime"

	"golang.org/x/sync/errgroup"

	"github.com/penstock/penstock/plan"
	"github.com/penstock/penstock/planner/pack"
	"github.com/penstock/penstock/planner/replay"
)

// Name is the name that penstock-lab plan --policy takes.
const Name = "penstock-sim"

// simulatedPolicy plans with bounds and headroom that it learns from the replay.
type simulatedPolicy struct {
	// Threshold is the max fraction of a service's requests that may miss the
	// objective.
	Threshold float64
	// Replay configures the replay of the plan. Learning replays only as much as each service needs.
	Replay replay.Config
}

// learning is the seed for learning. The replay of the plan uses the next seed. Users
// tend to choose small seeds: with the seed of the planning, their replay of the plan
// would prove nothing new.
const learning = 1000

// New returns the policy with a threshold of 1 % and the replay's defaults.
func New() plan.Policy {
	return simulatedPolicy{Threshold: 0.01, Replay: replay.Config{Seed: learning}}
}

// Name is the name that penstock-lab plan --policy takes.
func (simulatedPolicy) Name() string { return Name }

// Unmet is returned when no bound and headroom keep a service's violations at the
// threshold.
type Unmet struct {
	Service   plan.Service
	Threshold float64
	// MinViolations is the lowest upper end of an interval of violations in any
	// replay.
	MinViolations float64
}

func (e *Unmet) Error() string {
	return fmt.Sprintf("service %q: SLO %.6g ms at %.6g requests/s: %.3g %% of its requests miss it at best in the replay, want at most %.3g %%",
		e.Service.Name, e.Service.SLOMS, e.Service.RateRPS, 100*e.MinViolations, 100*e.Threshold)
}

// Plan makes a plan as the package comment describes; it ignores Problem.Bound. It
// returns the errors of plan.Policy and *Unmet.
func (pl simulatedPolicy) Plan(p *plan.Problem) (*plan.Plan, error) {
	if err := p.Check(); err != nil {
		return nil, err
	}
	students := make([]*student, len(p.Services))
	for i, s := range p.Services {
		students[i] = newStudent(pl, p, s)
	}
	if err := advance(students); err != nil {
		return nil, err
	}
	pl.Replay.Seed++
	for rounds := 1; ; rounds++ {
		learnt, err := together(p, students)
		if err != nil {
			return nil, err
		}
		report, err := replay.Run(p, learnt, pl.Replay)
		if err != nil {
			return nil, err
		}
		var violate []*student
		for i, s := range report.Services {
			if s.High > pl.Threshold {
				violate = append(violate, students[i])
			}
		}
		if len(violate) == 0 {
			return pl.better(p, learnt, report, students, rounds)
		}
		if err := advance(violate); err != nil {
			return nil, err
		}
	}
}

// advance moves students to their next pair, as many at a time as there are CPUs. If
// several fail, it returns the error of the first of them.
func advance(students []*student) error {
	errs := make([]error, len(students))
	var work errgroup.Group
	work.SetLimit(runtime.GOMAXPROCS(0))
	for i, s := range students {
		work.Go(func() error {
			errs[i] = s.next()
			return nil
		})
	}
	work.Wait()
	return cmp.Or(errs...)
}

// together plans all services with the pairs of their students.
func together(p *plan.Problem, students []*student) (*plan.Plan, error) {
	bounded := *p
	bounded.Services = make([]plan.Service, len(students))
	bounds := make(map[string]float64, len(students))
	headroom := false
	for i, s := range students {
		bounded.Services[i] = s.inflated()
		bounds[s.service.Name] = s.bound()
		headroom = headroom || s.at.headroom > 0
	}
	bounded.Bound = func(s plan.Service) float64 { return bounds[s.Name] }
	made, err := pack.New().Plan(&bounded)
	if err != nil {
		if small, ok := errors.AsType[*plan.TooSmall](err); ok {
			for i := range small.Services {
				small.Services[i].PlacedRPS *= p.Services[i].RateRPS / small.Services[i].RateRPS
				small.Services[i].RateRPS = p.Services[i].RateRPS
			}
		}
		return nil, err
	}
	bounded.Services = p.Services
	out := plan.New(&bounded, Name, made.Segments)
	if !headroom {
		// A lower bound that was proved with headroom does not hold without it.
		out.LowerBound, out.Optimal = made.LowerBound, made.Optimal
	}
	return out, nil
}

// better returns the learnt plan, or the plan with half of each objective if it passes
// and takes no more GPUs and GPCs. The plan's notes say what was learnt.
func (pl simulatedPolicy) better(p *plan.Problem, learnt *plan.Plan, report *replay.Report, students []*student, rounds int) (*plan.Plan, error) {
	half := *p
	half.Bound = nil
	compared := "half of each objective as the bound: not all can be met"
	if plain, err := pack.New().Plan(&half); err == nil {
		plainReport, err := replay.Run(&half, plain, pl.Replay)
		if err != nil {
			return nil, err
		}
		worst := highest(plainReport)
		compared = fmt.Sprintf("half of each objective as the bound: %d GPUs, %d GPCs, %s",
			plain.GPUs, plain.GPCs, describe(worst))
		if worst.High <= pl.Threshold && (plain.GPUs < learnt.GPUs || plain.GPUs == learnt.GPUs && plain.GPCs <= learnt.GPCs) {
			plain.Policy = Name
			plain.Notes = append(p.Estimates(plain.Segments), fmt.Sprintf("half of each objective is enough for queueing, and nothing else takes fewer GPUs or GPCs: %s in the replay (seed %d)", describe(worst), report.Seed))
			return plain, nil
		}
	}
	least, most, room := math.Inf(1), 0.0, 0
	for _, s := range students {
		least, most = min(least, s.bound()/s.service.SLOMS), max(most, s.bound()/s.service.SLOMS)
		if s.at.headroom > 0 {
			room++
		}
	}
	bounds := fmt.Sprintf("%.0f to %.0f %%", 100*least, 100*most)
	if least == most {
		bounds = fmt.Sprintf("%.0f %%", 100*most)
	}
	learnt.Notes = append(p.Estimates(learnt.Segments),
		fmt.Sprintf("latency bounds of %s of the objectives, and headroom for %d of %d services, learnt from the replay; plans replayed: %d (seed %d): %s",
			bounds, room, len(students), rounds, report.Seed, describe(highest(report))),
		compared)
	return learnt, nil
}

// highest is the service whose interval of violations has the highest upper end.
func highest(r *replay.Report) replay.Service {
	worst := r.Services[0]
	for _, s := range r.Services[1:] {
		if s.High > worst.High {
			worst = s
		}
	}
	return worst
}

func describe(s replay.Service) string {
	if s.Unserved == 0 {
		return "no request misses its objective"
	}
	return fmt.Sprintf("%.2g %% of %s's requests miss their objective, the most of any service's (at most %.2g %% at 95 %% confidence)",
		100*s.Violations, s.Service, 100*s.High)
}
