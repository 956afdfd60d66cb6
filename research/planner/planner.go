// Package planner compares the planner's policies. It measures the delay of each
// against the number of services. It also counts the GPUs for the scenarios of
// ParvaGPU's paper as services or rates grow (its Fig. 10 and 11). planner/verify
// checks every plan, outside the measured time.
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
	"github.com/penstock/penstock/planner/verify"
	"github.com/penstock/penstock/research/planners"
	"github.com/penstock/penstock/research/planners/simulated"
)

// Options say what is measured.
type Options struct {
	Machine testbed.Machine
	// GPU is the model that is planned on, with as many as needed.
	GPU      plan.GPU
	Profiles map[string]map[string]plan.Profile
	// Scenarios are multiplied. The many services are drawn from Drawn.
	Scenarios, Drawn []Scenario
	Policies         []plan.Policy
	// Services are the numbers of services at which delays are measured. Times are
	// the factors by which scenarios are multiplied. Both ascend.
	Services, Times []int
	// Limit is the max time of a plan. If a plan takes longer, the policy gets no
	// larger one of the kind.
	Limit time.Duration
	// Seed determines the random draw of the many services.
	Seed uint64
	// Progress, if not nil, is called before each measurement.
	Progress func(done, all int, what string)
}

// Scenario is a named list of services.
type Scenario struct {
	Name     string
	Services []plan.Service
}

// Report is the report of `penstock-lab plan`.
type Report struct {
	Machine      testbed.Machine `json:"machine"`
	GPU          string          `json:"gpu_model"`
	LimitSeconds float64         `json:"limit_s"`
	Seed         uint64          `json:"seed"`
	Policies     []string        `json:"policies"`
	Delays       []Delay         `json:"delays"`
	Counts       []Count         `json:"counts"`
	// Missing are the plans that were not made, and why.
	Missing []Missing `json:"missing"`
}

// Result describes a plan and its delay.
type Result struct {
	Policy string `json:"policy"`
	// Services is the number of services in the plan.
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

// Scale names what is multiplied in a scenario.
type Scale string

// A scenario grows by copies of its services, as in the paper, or by its rates.
const (
	scaleServices Scale = "services"
	scaleRates    Scale = "rates"
)

// Count is the result of one policy on one scenario, multiplied.
type Count struct {
	Scenario string `json:"scenario"`
	Scale    Scale  `json:"grow"`
	Times    int    `json:"times"`
	Result
}

// Missing is a plan that was not made.
type Missing struct {
	Policy string `json:"policy"`
	// Scenario, Grow and Times are those of a Count. Services is that of a Delay.
	Scenario string `json:"scenario,omitempty"`
	Scale    Scale  `json:"grow,omitempty"`
	Times    int    `json:"times,omitempty"`
	Services int    `json:"services,omitempty"`
	Why      string `json:"why"`
}

// Repeats of a plan: at least minRuns, then at most maxRuns until `enough` time
// is spent. After more than tooMuch there are no more.
const (
	minRuns = 3
	maxRuns = 25
	enough  = 300 * time.Millisecond
	tooMuch = 3 * time.Second
)

// Run measures everything. If ctx ends, Run returns its error early. A plan that the
// verifier refuses is an error.
func Run(ctx context.Context, o Options) (*Report, error) {
	r := &Report{Machine: o.Machine, GPU: o.GPU.Name, LimitSeconds: o.Limit.Seconds(), Seed: o.Seed, Delays: []Delay{}, Counts: []Count{}, Missing: []Missing{}}
	for _, p := range o.Policies {
		r.Policies = append(r.Policies, p.Name())
	}
	all := len(o.Policies) * (len(o.Services) + 2*len(o.Scenarios)*len(o.Times))
	done := 0
	report := func(format string, args ...any) {
		if o.Progress != nil {
			o.Progress(done, all, fmt.Sprintf(format, args...))
		}
		done++
	}
	for _, policy := range o.Policies {
		late := false
		for _, n := range o.Services {
			report("%s, %d services", policy.Name(), n)
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
			for _, scale := range []Scale{scaleServices, scaleRates} {
				late = false
				for _, times := range o.Times {
					report("%s, %s, %s × %d", policy.Name(), s.Name, scale, times)
					result, why, err := o.measure(ctx, policy, scale.by(s.Services, times), &late)
					if err != nil {
						return nil, fmt.Errorf("%s, %s, %s × %d: %w", policy.Name(), s.Name, scale, times, err)
					}
					if why != "" {
						r.Missing = append(r.Missing, Missing{Policy: policy.Name(), Scenario: s.Name, Scale: scale, Times: times, Why: why})
						continue
					}
					r.Counts = append(r.Counts, Count{Scenario: s.Name, Scale: scale, Times: times, Result: result})
				}
			}
		}
	}
	return r, nil
}

// measure plans repeatedly. why is the reason if there is no plan. late is set if
// the limit was exceeded; it ends the following measurements.
func (o Options) measure(ctx context.Context, policy plan.Policy, services []plan.Service, late *bool) (result Result, why string, err error) {
	if *late {
		return result, fmt.Sprintf("a smaller one took more than %s", o.Limit), nil
	}
	problem := &plan.Problem{GPU: o.GPU, Services: services, Profiles: o.Profiles}
	var took []time.Duration
	var spent time.Duration
	var made *plan.Plan
	for len(took) < minRuns || spent < enough && len(took) < maxRuns {
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

// plannedIn runs a policy. A policy cannot be stopped, so when ctx ends plannedIn
// returns and leaves it running.
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

// cannot reports whether a policy has refused the problem. iGniter does not divide a
// service, so it refuses high rates.
func cannot(err error) bool {
	var infeasible *plan.Infeasible
	var unmet *simulated.Unmet
	return errors.As(err, &infeasible) || errors.As(err, &unmet)
}

// by multiplies the services or the rates.
func (g Scale) by(services []plan.Service, times int) []plan.Service {
	var scaled []plan.Service
	if g == scaleRates {
		for _, s := range services {
			s.RateRPS *= float64(times)
			scaled = append(scaled, s)
		}
		return scaled
	}
	for i := range times {
		for _, s := range services {
			s.Name = fmt.Sprintf("%s-%d", s.Name, i+1)
			scaled = append(scaled, s)
		}
	}
	return scaled
}

// many draws n services from the scenarios by a seed. Each is one of theirs with 0.1
// to 1 times its rate and 1 to 1.5 times its objective. So hardly any two are alike,
// and a policy that can plan the original can plan the drawn service.
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
