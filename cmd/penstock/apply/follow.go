package apply

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/cuda/mig"
	"github.com/penstock/penstock/plan"
	"github.com/penstock/penstock/planner/follow"
	"github.com/penstock/penstock/planner/verify"
)

// Follow carries out the plan of a node's configuration, and changes it when rates leave it, until
// ctx ends. It logs what it does, and why it cannot.
func Follow(ctx context.Context, c configs.Config, openMIG func() (mig.Session, error), log zerolog.Logger) {
	f := follower{c: c, openMIG: openMIG, log: log, rates: follow.New(follow.Default)}
	tick := time.NewTicker(c.Plan.Follow)
	defer tick.Stop()
	for ctx.Err() == nil {
		err := f.step(ctx, time.Now())
		if err != nil && ctx.Err() == nil && err.Error() != f.failure {
			f.failure = err.Error()
			log.Error().Err(err).Msg("cannot plan for the rates; the node runs on as it is")
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

type follower struct {
	c       configs.Config
	openMIG func() (mig.Session, error)
	log     zerolog.Logger
	rates   *follow.Follower
	failure string // that was logged last
}

// step measures the rates. If they have left the plan, it plans again and carries that out.
func (f *follower) step(ctx context.Context, now time.Time) error {
	status, err := control.ReadStatus(ctx, f.c.RuntimeDir)
	if err != nil {
		return nil // the node starts, or ends
	}
	services, err := f.services()
	if err != nil {
		return err
	}
	if f.rates.Planned != nil {
		offered := map[string]uint64{}
		for _, s := range status.Functions {
			offered[s.Name] = s.Offered
		}
		want := f.rates.Observe(now, offered)
		if want == nil {
			return nil
		}
		for i := range services {
			if rate, ok := want[services[i].Name]; ok {
				services[i].RateRPS = rate
			}
		}
	}
	if err := f.apply(ctx, services); err != nil {
		return err
	}
	rates := map[string]float64{}
	for _, s := range services {
		rates[s.Name] = s.RateRPS
	}
	f.failure, f.rates.Planned = "", rates
	return nil
}

func (f *follower) services() ([]plan.Service, error) {
	file, err := os.Open(f.c.Plan.Services)
	if err != nil {
		return nil, fmt.Errorf("read plan.services: %w", err)
	}
	defer file.Close()
	return plan.ReadServices(file, f.c.Plan.Services, "")
}

// apply plans for services on the node's devices, and carries that out.
func (f *follower) apply(ctx context.Context, services []plan.Service) error {
	profiles, err := plan.ReadProfiles(os.DirFS(f.c.Plan.Profiles))
	if err != nil {
		return fmt.Errorf("read plan.profiles: %w", err)
	}
	n, err := Open(ctx, f.c.RuntimeDir, f.openMIG)
	if err != nil {
		return err
	}
	defer n.Close()
	report := func(line string) { f.log.Info().Str("step", line).Msg("plan") }
	if err := n.Finish(ctx, report); err != nil {
		return err
	}
	problem := &plan.Problem{Profiles: profiles, Services: services, Fleet: n.Machine.Fleet()}
	if len(problem.Fleet) == 0 {
		return n.NoGPU()
	}
	pl, c, err := n.Plan(problem)
	if err != nil {
		return problem.Explain(err)
	}
	if err := verify.Plan(problem, pl); err != nil {
		return err
	}
	if err := n.Begin(pl, c); err != nil {
		return err
	}
	for _, s := range services {
		at := slices.IndexFunc(pl.Services, func(a plan.Assigned) bool { return a.Service == s.Name })
		f.log.Info().Str("service", s.Name).Float64("rate_rps", s.RateRPS).Float64("capacity_rps", pl.Services[at].AssignedRPS).Msg("planned")
	}
	return n.Finish(ctx, report)
}
