package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/cmd/penstock/apply"
	"github.com/penstock/penstock/cuda/mig"
	"github.com/penstock/penstock/plan"
	"github.com/penstock/penstock/planner/change"
	"github.com/penstock/penstock/planner/pack"
	"github.com/penstock/penstock/planner/replay"
	"github.com/penstock/penstock/planner/verify"
)

// openMIG opens this machine's driver; tests replace it.
var openMIG = mig.Open

// planOptions are the flags of `penstock plan`.
type planOptions struct {
	profiles, services, scenario string
	gpu, fleet                   string
	from                         string
	gpuGiven                     bool
	replay                       bool
	replayConfig                 replay.Config
	apply, dryRun                bool
	dir                          string
	output                       string
}

func planCommand() *cobra.Command {
	var o planOptions
	cmd := &cobra.Command{
		Use:   "plan",
		Short: "Plan how many GPUs serve a set of services, and carry the plan out",
		Long: `Finds the GPUs, and the segments to cut them into, that serve each service at its rate and
within its latency objective. The plan is verified before it is printed.

The services are a CSV file with the columns model, rate_rps and slo_ms, and optionally
service (a name; the model's if left out) and scenario. MODEL.csv in the folder of profiles is
the profile of model MODEL (` + "`penstock profile`" + ` writes them).

The plan has the fewest GPUs that can be found, and says if it is proved that no plan has fewer.

--apply carries the plan out on the node that runs on this machine. Without --gpu and --fleet
the plan is for its devices. It changes as little as possible of the plan that the node runs.
If a step fails, the steps before it are undone; if this command is interrupted or killed, the
same command continues.

penstock-lab plan compares the planner with ParvaGPU's planner and its baselines.`,
		Example: `  penstock plan --profiles prof_data --services services.csv
  penstock plan --profiles prof_data --services scenarios.csv --scenario S3
  penstock plan --profiles prof_data --services services.csv --replay
  penstock plan --profiles prof_data --services services.csv --fleet fleet.csv -o json > plan.json
  penstock plan --profiles prof_data --services changed.csv --from plan.json
  penstock plan --profiles profiles --services services.csv --apply --dry-run`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(cmd); err != nil {
				return err
			}
			return o.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.profiles, "profiles", "", "folder of the models' profiles, MODEL.csv each")
	f.StringVar(&o.services, "services", "", "CSV file of the services: model, rate_rps, slo_ms[, service][, scenario]")
	f.StringVar(&o.scenario, "scenario", "", "scenario to plan, if the file has several")
	f.StringVar(&o.gpu, "gpu", plan.PublishedGPU, "model of GPU to plan on: "+strings.Join(gpuNames(), ", "))
	f.StringVar(&o.fleet, "fleet", "", "CSV file of the available GPUs: gpu, count (a number or "+plan.Unlimited+"); the preferred ones first")
	f.StringVar(&o.from, "from", "", "present plan (-o json): change as little of it as possible, and print the changes")
	f.BoolVar(&o.replay, "replay", false, "simulate Poisson arrivals on the plan, and print how many requests miss their objective")
	f.Uint64Var(&o.replayConfig.Seed, "seed", 1, "seed of the replay's arrivals")
	f.IntVar(&o.replayConfig.Requests, "requests", 20000, "requests per service in one run of the replay")
	f.BoolVar(&o.apply, "apply", false, "carry out the plan on the running node: cut GPUs (needs root and mig: manage), start and remove functions")
	f.BoolVar(&o.dryRun, "dry-run", false, "with --apply: print the steps without taking them")
	f.StringVar(&o.dir, "runtime-dir", "", nodeUsage)
	outputFlag(cmd, &o.output, "table", "json")
	return cmd
}

func gpuNames() (names []string) {
	for _, g := range plan.GPUs() {
		names = append(names, g.Name)
	}
	return names
}

// check checks the flags before any file is read. Its error names the flag.
func (o *planOptions) check(cmd *cobra.Command) error {
	given := func(name string) bool { return cmd.Flags().Changed(name) }
	o.gpuGiven = given("gpu")
	switch {
	case o.profiles == "":
		return errors.New("--profiles is missing: want the folder of the models' profiles, MODEL.csv each")
	case o.services == "":
		return errors.New("--services is missing: want a CSV file with the columns model, rate_rps, slo_ms")
	case given("gpu") && given("fleet"):
		return errors.New("--gpu and --fleet: want one of them; a fleet names its GPUs")
	case given("from") && o.apply:
		return errors.New("--from and --apply: want one of them; --apply changes the plan that the node runs")
	case given("runtime-dir") && !o.apply:
		return errors.New("--runtime-dir without --apply: want both, or neither")
	case o.dryRun && !o.apply:
		return errors.New("--dry-run without --apply: want both, to see the steps, or neither")
	case o.replayConfig.Requests < 1:
		return fmt.Errorf("--requests %d: want at least 1", o.replayConfig.Requests)
	}
	for _, name := range []string{"seed", "requests"} {
		if given(name) && !o.replay {
			return fmt.Errorf("--%s without --replay: want both, or neither", name)
		}
	}
	return nil
}

// run plans, checks, and prints:
//
//  1. It reads the files (planread.go).
//  2. The planner makes a plan, or changes the current plan.
//  3. The verifier checks the plan.
//  4. If the flags ask for it, the plan is replayed and the steps to it are computed.
//  5. It prints the plan (planprint.go).
//  6. If the flags ask for it, it takes the steps (package apply).
func (o *planOptions) run(ctx context.Context, out, progress io.Writer) error {
	var node *apply.Node
	report := func(line string) { fmt.Fprintln(progress, line) }
	if o.apply {
		dir, err := nodeFolder(o.dir)
		if err != nil {
			return err
		}
		if node, err = apply.Open(ctx, dir, openMIG); err != nil {
			return err
		}
		defer node.Close()
		if node.Record.Next != nil && !o.dryRun {
			report("continue with the plan that was interrupted")
			if err := node.Finish(ctx, report); err != nil {
				return err
			}
		}
	}
	problem, old, err := o.read(node)
	if err != nil {
		return err
	}
	printed := printedPlan{Applies: o.apply}
	start := time.Now()
	printed.Plan, printed.Change, err = unlessDone(ctx, func() (*plan.Plan, *change.Change, error) {
		switch {
		case old != nil:
			c, err := change.From(old, problem)
			if err != nil {
				return nil, nil, fmt.Errorf("--from: %w", err)
			}
			return c.Plan, c, nil
		case o.apply:
			return node.Plan(problem)
		}
		p, err := pack.New().Plan(problem)
		return p, nil, err
	})
	if err != nil {
		return problem.Explain(err)
	}
	printed.DelayMS = float64(time.Since(start).Microseconds()) / 1000
	printed.Notes = append(printed.Notes, problem.Unused()...)
	if err := verify.Plan(problem, printed.Plan); err != nil {
		return fmt.Errorf("the plan fails its verification, which is a bug in Penstock; report it: %w", err)
	}
	if o.replay {
		printed.Replay, _, err = unlessDone(ctx, func() (*replay.Report, any, error) {
			r, err := replay.Run(problem, printed.Plan, o.replayConfig)
			return r, nil, err
		})
		if err != nil {
			return err
		}
	}
	if o.apply {
		if err := node.Begin(printed.Plan, printed.Change); err != nil {
			return err
		}
		printed.Steps = node.Record.Next.Steps
	}
	if err := printed.print(out, o.output); err != nil {
		return err
	}
	if o.apply && !o.dryRun {
		return node.Finish(ctx, report)
	}
	return nil
}

// unlessDone waits for work, which cannot be canceled: after an interrupt it continues in
// its goroutine and its results are dropped.
func unlessDone[A, B any](ctx context.Context, work func() (A, B, error)) (a A, b B, err error) {
	done := make(chan func() (A, B, error), 1)
	go func() {
		a, b, err := work()
		done <- func() (A, B, error) { return a, b, err }
	}()
	select {
	case results := <-done:
		return results()
	case <-ctx.Done():
		return a, b, context.Cause(ctx)
	}
}
