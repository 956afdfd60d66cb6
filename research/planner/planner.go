// Package planner measures the policies of the planner beside each other: how long
// each takes against the number of services, and how many GPUs it takes for the
// scenarios of ParvaGPU's paper as services or rates grow (its Fig. 10 and 11).
// Every plan is checked by plan/verify, outside the measured time.
package planner

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/penstock/penstock/internal/testbed"
	"github.com/penstock/penstock/plan"
	"github.com/penstock/penstock/plan/simulated"
	"github.com/penstock/penstock/plan/verify"
	"github.com/penstock/penstock/research/planners"
)

// Options say what is measured.
type Options struct {
	Machine testbed.Machine
	// GPU is what is planned on, as many as needed.
	GPU      plan.GPU
	Profiles map[string]map[string]plan.Profile
	// Scenarios are what grows, Drawn those that the many services are drawn from.
	Scenarios, Drawn []Scenario
	Policies         []plan.Policy
	// Services are the numbers of services that delays are measured at, Times the
	// factors that scenarios grow by; both ascend.
	Services, Times []int
	// Limit is what a plan may take: once one has taken longer, that policy is asked
	// for no larger one of the kind.
	Limit time.Duration
	// Seed draws the many services.
	Seed uint64
	// Progress is told what is about to be measured; nil where nobody listens.
	Progress func(done, all int, what string)
}

// Scenario is a named list of services.
type Scenario struct {
	Name     string
	Services []plan.Service
}

// Report is what `penstock-lab plan` writes.
type Report struct {
	Machine      testbed.Machine `json:"machine"`
	GPU          string          `json:"gpu_model"`
	LimitSeconds float64         `json:"limit_s"`
	Seed         uint64          `json:"seed"`
	Policies     []string        `json:"policies"`
	Delays       []Delay         `json:"delays"`
	Counts       []Count         `json:"counts"`
	// Missing are the plans that there are not, and why.
	Missing []Missing `json:"missing"`
}

// Result is what a plan came to.
type Result struct {
	Policy string `json:"policy"`
	// Services is how many it is for.
	Services              int     `json:"services"`
	GPUs                  int     `json:"gpus"`
	GPCs                  int     `json:"gpcs"`
	LowerBound            int     `json:"lower_bound,omitempty"`
	Optimal               bool    `json:"optimal"`
	InternalSlack         float64 `json:"internal_slack"`
	ExternalFragmentation float64 `json:"external_fragmentation"`
	// DelayMS is the median of Runs.
	DelayMS float64 `json:"delay_ms"`
	Runs    int     `json:"runs"`
}

// Delay is one policy at one number of services.
type Delay struct{ Result }

// Grow is what of a scenario is multiplied.
type Grow string

// A scenario grows by more services like its own, as in the paper, or by the rates.
const (
	growServices Grow = "services"
	growRates    Grow = "rates"
)

// Count is one policy on one scenario, grown.
type Count struct {
	Scenario string `json:"scenario"`
	Grow     Grow   `json:"grow"`
	Times    int    `json:"times"`
	Result
}

// Missing is a plan that there is not.
type Missing struct {
	Policy string `json:"policy"`
	// Scenario, Grow and Times are those of a Count; Services is a Delay's.
	Scenario string `json:"scenario,omitempty"`
	Grow     Grow   `json:"grow,omitempty"`
	Times    int    `json:"times,omitempty"`
	Services int    `json:"services,omitempty"`
	Why      string `json:"why"`
}

// Repeats of a plan: at least leastRuns or until enough is spent, whichever comes
// last, at most mostRuns, and none when more than tooMuch is spent.
const (
	leastRuns = 3
	mostRuns  = 25
	enough    = 300 * time.Millisecond
	tooMuch   = 3 * time.Second
)

// Run measures everything. It ends early, with ctx's error, when ctx ends; a plan
// that the verifier refuses is an error.
func Run(ctx context.Context, o Options) (*Report, error) {
	r := &Report{Machine: o.Machine, GPU: o.GPU.Name, LimitSeconds: o.Limit.Seconds(), Seed: o.Seed, Delays: []Delay{}, Counts: []Count{}, Missing: []Missing{}}
	for _, p := range o.Policies {
		r.Policies = append(r.Policies, p.Name())
	}
	all := len(o.Policies) * (len(o.Services) + 2*len(o.Scenarios)*len(o.Times))
	done := 0
	say := func(format string, args ...any) {
		if o.Progress != nil {
			o.Progress(done, all, fmt.Sprintf(format, args...))
		}
		done++
	}
	for _, policy := range o.Policies {
		late := false
		for _, n := range o.Services {
			say("%s, %d services", policy.Name(), n)
			result, why, err := o.measure(ctx, policy, many(o.Drawn, n, o.Seed), &late)
			if err != nil {
				return nil, fmt.Errorf("%s, %d services: %w", policy.Name(), n, err)
			}
			if why != "" {
				r.Missing = append(r.Missing, Missing{Policy: policy.Name(), Services: n, Why: why})
				continue
			}
			r.Delays = append(r.Delays, Delay{result})
		}
		for _, s := range o.Scenarios {
			for _, grow := range []Grow{growServices, growRates} {
				late = false
				for _, times := range o.Times {
					say("%s, %s, %s × %d", policy.Name(), s.Name, grow, times)
					result, why, err := o.measure(ctx, policy, grow.by(s.Services, times), &late)
					if err != nil {
						return nil, fmt.Errorf("%s, %s, %s × %d: %w", policy.Name(), s.Name, grow, times, err)
					}
					if why != "" {
						r.Missing = append(r.Missing, Missing{Policy: policy.Name(), Scenario: s.Name, Grow: grow, Times: times, Why: why})
						continue
					}
					r.Counts = append(r.Counts, Count{Scenario: s.Name, Grow: grow, Times: times, Result: result})
				}
			}
		}
	}
	return r, nil
}

// measure plans again and again; why says that there is no plan. late is set when
// the limit was passed and ends what comes after.
func (o Options) measure(ctx context.Context, policy plan.Policy, services []plan.Service, late *bool) (result Result, why string, err error) {
	if *late {
		return result, fmt.Sprintf("a smaller one took more than %s", o.Limit), nil
	}
	problem := &plan.Problem{GPU: o.GPU, Services: services, Profiles: o.Profiles}
	var took []time.Duration
	var spent time.Duration
	var made *plan.Plan
	for len(took) < leastRuns || spent < enough && len(took) < mostRuns {
		if err := ctx.Err(); err != nil {
			return result, "", err
		}
		p, d, err := plannedIn(ctx, policy, problem)
		took, spent = append(took, d), spent+d
		if cannot(err) {
			return result, err.Error(), nil
		}
		if err != nil {
			return result, "", err
		}
		made = p
		if d > o.Limit {
			*late = true
		}
		if spent > min(o.Limit, tooMuch) {
			break
		}
	}
	solved, err := planners.Solved(problem, made)
	if err != nil {
		return result, "", err
	}
	if err := verify.Plan(solved, made); err != nil {
		return result, "", fmt.Errorf("the plan is wrong: %w", err)
	}
	slices.Sort(took)
	return Result{Policy: policy.Name(), Services: len(services), GPUs: made.GPUs, GPCs: made.GPCs, LowerBound: made.LowerBound, Optimal: made.Optimal,
		InternalSlack: made.InternalSlack, ExternalFragmentation: made.ExternalFragmentation,
		DelayMS: float64(took[len(took)/2]) / float64(time.Millisecond), Runs: len(took)}, "", nil
}

// plannedIn lets a policy plan. No policy can be stopped, so that the end of ctx
// leaves it behind.
func plannedIn(ctx context.Context, policy plan.Policy, problem *plan.Problem) (*plan.Plan, time.Duration, error) {
	type outcome struct {
		plan *plan.Plan
		took time.Duration
		err  error
	}
	done := make(chan outcome, 1)
	go func() {
		start := time.Now()
		p, err := policy.Plan(problem)
		done <- outcome{p, time.Since(start), err}
	}()
	select {
	case o := <-done:
		return o.plan, o.took, o.err
	case <-ctx.Done():
		return nil, 0, context.Cause(ctx)
	}
}

// cannot says whether a policy has refused: iGniter divides no service, so that a
// high rate is beyond it.
func cannot(err error) bool {
	var infeasible *plan.Infeasible
	var unmet *simulated.Unmet
	return errors.As(err, &infeasible) || errors.As(err, &unmet)
}

// by multiplies the services, or the rates.
func (g Grow) by(services []plan.Service, times int) []plan.Service {
	var grown []plan.Service
	if g == growRates {
		for _, s := range services {
			s.RateRPS *= float64(times)
			grown = append(grown, s)
		}
		return grown
	}
	for i := range times {
		for _, s := range services {
			s.Name = fmt.Sprintf("%s-%d", s.Name, i+1)
			grown = append(grown, s)
		}
	}
	return grown
}

// many are n services drawn from the scenarios by a seed: each is one of theirs,
// with 0.1 to 1 times its rate and 1 to 1.5 times its objective, so that hardly two
// are alike, and none is more than a policy can do that does what it is drawn from.
func many(scenarios []Scenario, n int, seed uint64) []plan.Service {
	var of []plan.Service
	for _, s := range scenarios {
		of = append(of, s.Services...)
	}
	random := rand.New(rand.NewPCG(seed, 0))
	services := make([]plan.Service, n)
	for i := range services {
		s := of[random.IntN(len(of))]
		s.Name = fmt.Sprintf("%s-%d", s.Model, i)
		s.RateRPS *= 0.1 + 0.9*random.Float64()
		s.SLOMS *= 1 + 0.5*random.Float64()
		services[i] = s
	}
	return services
}
