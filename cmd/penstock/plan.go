package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/spf13/cobra"

	"github.com/penstock/penstock/plan"
	"github.com/penstock/penstock/plan/policies"
	"github.com/penstock/penstock/plan/render"
	"github.com/penstock/penstock/plan/replay"
	"github.com/penstock/penstock/plan/verify"
)

// planOptions are the flags of `penstock plan`.
type planOptions struct {
	profiles, services, scenario string
	gpu, fleet                   string
	policy                       string
	from                         string
	replay                       bool
	replayConfig                 replay.Config
	apply, dryRun                bool
	output                       string
}

func planCommand() *cobra.Command {
	var o planOptions
	cmd := &cobra.Command{
		Use:   "plan",
		Short: "Say how many GPUs, cut how, serve a set of services",
		Long: `Says which GPUs, cut into which segments, serve each service at its rate and within its
latency objective, and checks the plan before it is printed.

The services are a CSV file with the columns model, rate_rps and slo_ms, and, where
wanted, service (a name; the model's if left out) and scenario. A model is named as its
profile MODEL.csv is in the folder of profiles (` + "`penstock profile`" + ` writes them).

The policies:

  penstock              the fewest GPUs that it can find, and whether fewer are impossible
  penstock-sim          as penstock, within latency bounds that the replay has shown to do
  parvagpu              ParvaGPU's Algorithms 1 and 2
  parvagpu-single       the same without MPS: one process a segment
  parvagpu-unoptimized  the same without its last stage, allocation optimisation
  gpulet, igniter, mig-serving
                        the planners that ParvaGPU's paper compares with, as far as
                        their papers say how`,
		Example: `  penstock plan --profiles prof_data --services services.csv
  penstock plan --profiles prof_data --services scenarios.csv --scenario S3 -o html > plan.html
  penstock plan --profiles prof_data --services services.csv --policy parvagpu --replay
  penstock plan --profiles prof_data --services services.csv --fleet fleet.csv -o json > plan.json
  penstock plan --profiles prof_data --services changed.csv --from plan.json
  penstock plan --profiles prof_data --services services.csv --apply --dry-run`,
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
	f.StringVar(&o.scenario, "scenario", "", "which of the file's scenarios, if it has several")
	f.StringVar(&o.gpu, "gpu", plan.PublishedGPU, "model of GPU to plan on: "+strings.Join(gpuNames(), ", "))
	f.StringVar(&o.fleet, "fleet", "", "CSV file of the GPUs that there are: gpu, count (a number or "+plan.Unlimited+"); the preferred ones first")
	f.StringVar(&o.policy, "policy", policies.Default, strings.Join(policies.Names(), ", "))
	f.StringVar(&o.from, "from", "", "plan (-o json) that is in force: move as little of it as possible, and say what moves")
	f.BoolVar(&o.replay, "replay", false, "feed the plan with Poisson arrivals and say how many requests miss their objective")
	f.Uint64Var(&o.replayConfig.Seed, "seed", 1, "seed of the replay's arrivals")
	f.IntVar(&o.replayConfig.Requests, "requests", 20000, "requests of each service in one run of the replay")
	f.StringVar((*string)(&o.replayConfig.Routing), "routing", string(replay.ByLoad), "how the replay chooses a service's segment: "+list(replay.Routings()))
	f.StringVar((*string)(&o.replayConfig.Rule), "rule", string(replay.Deadline), "what a replayed segment starts: "+list(replay.Rules()))
	f.BoolVar(&o.apply, "apply", false, "cut this machine's GPUs into the plan's MIG instances (needs root)")
	f.BoolVar(&o.dryRun, "dry-run", false, "with --apply: print the steps and take none")
	f.StringVarP(&o.output, "output", "o", "table", "table, json, yaml or html")
	return cmd
}

func gpuNames() (names []string) {
	for _, g := range plan.GPUs() {
		names = append(names, g.Name)
	}
	return names
}

func list[T ~string](names []T) string {
	words := make([]string, len(names))
	for i, n := range names {
		words[i] = string(n)
	}
	return strings.Join(words, ", ")
}

// check says which flag is wrong, before a file is read.
func (o *planOptions) check(cmd *cobra.Command) error {
	given := func(name string) bool { return cmd.Flags().Changed(name) }
	switch {
	case !slices.Contains([]string{"table", "json", "yaml", "html"}, o.output):
		return fmt.Errorf("output %q: want table, json, yaml or html", o.output)
	case o.profiles == "":
		return errors.New("--profiles is missing: want the folder of the models' profiles, MODEL.csv each")
	case o.services == "":
		return errors.New("--services is missing: want a CSV file with the columns model, rate_rps, slo_ms")
	case given("gpu") && given("fleet"):
		return errors.New("--gpu and --fleet: want one of them; a fleet names its GPUs")
	case o.dryRun && !o.apply:
		return errors.New("--dry-run without --apply: want both, to see the steps, or neither")
	case o.replayConfig.Requests < 1:
		return fmt.Errorf("--requests %d: want at least 1", o.replayConfig.Requests)
	}
	for _, name := range []string{"seed", "requests", "routing", "rule"} {
		if given(name) && !o.replay {
			return fmt.Errorf("--%s without --replay: want both, or neither", name)
		}
	}
	if !slices.Contains(replay.Routings(), o.replayConfig.Routing) {
		return fmt.Errorf("--routing %q: want one of %s", o.replayConfig.Routing, list(replay.Routings()))
	}
	if !slices.Contains(replay.Rules(), o.replayConfig.Rule) {
		return fmt.Errorf("--rule %q: want one of %s", o.replayConfig.Rule, list(replay.Rules()))
	}
	return nil
}

// run plans, checks, and prints:
//
//  1. the problem is read: profiles, services, GPUs;
//  2. the policy makes a plan of it, or changes the one in force;
//  3. the verifier checks the plan;
//  4. the replay feeds it, and the steps to it are looked up, where asked for;
//  5. it is printed;
//  6. the steps are taken, where asked for.
func (o *planOptions) run(ctx context.Context, out, progress io.Writer) error {
	policy, err := policies.Find(o.policy)
	if err != nil {
		return fmt.Errorf("--policy: %w", err)
	}
	problem, err := o.problem()
	if err != nil {
		return err
	}
	printed := printedPlan{}
	if printed.Plan, err = timed(ctx, policy, problem); err != nil {
		return err
	}
	if problem, err = policies.Solved(o.policy, problem); err != nil {
		return err
	}
	if err := verify.Plan(problem, printed.Plan); err != nil {
		return fmt.Errorf("policy %s made a plan that does not hold, which is a mistake in Penstock; it is not printed: %w", o.policy, err)
	}
	if o.replay {
		if printed.Replay, err = replay.Run(problem, printed.Plan, o.replayConfig); err != nil {
			return err
		}
	}
	if o.apply {
		if printed.cutting, err = cut(printed.Plan, openMIG, o.dryRun); err != nil {
			return err
		}
		printed.Steps = printed.cutting.strings()
	}
	if err := printed.print(out, o.output); err != nil {
		return err
	}
	if o.apply && !o.dryRun {
		return printed.cutting.do(progress)
	}
	return nil
}

// timed lets the policy plan, and says how long it took. A policy cannot be
// stopped, so that an interrupt leaves it behind.
func timed(ctx context.Context, policy plan.Policy, problem *plan.Problem) (*plan.Plan, error) {
	type outcome struct {
		plan *plan.Plan
		err  error
	}
	done := make(chan outcome, 1)
	go func() {
		start := time.Now()
		p, err := policy.Plan(problem)
		if err == nil {
			p.DelayMS = float64(time.Since(start).Microseconds()) / 1000
		}
		done <- outcome{p, err}
	}()
	select {
	case o := <-done:
		return o.plan, o.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// problem reads the files.
func (o *planOptions) problem() (*plan.Problem, error) {
	p := &plan.Problem{}
	var err error
	if p.GPU, err = plan.Lookup(o.gpu); err != nil {
		return nil, fmt.Errorf("--gpu %w", err)
	}
	if o.fleet != "" {
		err := readFile("--fleet", o.fleet, func(r io.Reader) error {
			p.Fleet, err = plan.ReadFleet(r, o.fleet)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	if p.Profiles, err = readProfiles(o.profiles); err != nil {
		return nil, err
	}
	err = readFile("--services", o.services, func(r io.Reader) error {
		p.Services, err = plan.ReadServices(r, o.services, o.scenario)
		return err
	})
	if err != nil {
		return nil, err
	}
	var names []string
	for _, s := range p.Stocks() {
		if len(p.Profiles[s.GPU.Name]) > 0 {
			return p, nil
		}
		names = append(names, s.GPU.Name)
	}
	return nil, fmt.Errorf("--profiles %s: none is of %s; there are profiles of %s", o.profiles, strings.Join(names, " or "),
		strings.Join(slices.Sorted(maps.Keys(p.Profiles)), ", "))
}

// readProfiles reads a folder of profiles.
func readProfiles(dir string) (map[string]map[string]plan.Profile, error) {
	profiles, err := plan.ReadProfiles(os.DirFS(dir))
	var path *fs.PathError
	switch {
	case errors.As(err, &path):
		return nil, fmt.Errorf("--profiles %s: %w: want a folder of profiles, MODEL.csv each", dir, path.Err)
	case err != nil:
		return nil, err
	case len(profiles) == 0:
		return nil, fmt.Errorf("--profiles %s: no profile in it: want MODEL.csv for each model", dir)
	}
	return profiles, nil
}

// readFile lets read have a file that a flag names.
func readFile(flag, path string, read func(io.Reader) error) error {
	f, err := os.Open(path)
	var why *fs.PathError
	if errors.As(err, &why) {
		return fmt.Errorf("%s %s: %w", flag, path, why.Err)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", flag, err)
	}
	defer f.Close()
	return read(f)
}

// printedPlan is a plan and what more was asked about it. Its JSON is a plan's with
// more at the end, which plan.Read leaves alone.
type printedPlan struct {
	*plan.Plan
	Replay *replay.Report `json:"replay,omitempty"`
	Steps  []string       `json:"steps,omitempty"`
	// cutting has the steps; nil where they were not asked for.
	cutting *cutting
}

func (p printedPlan) print(w io.Writer, output string) error {
	switch output {
	case "html":
		return render.HTML(w, p.Plan, p.sections()...)
	case "table":
		return render.Table(w, p.Plan, p.sections()...)
	}
	text, err := json.MarshalIndent(p, "", "  ")
	if err == nil && output == "yaml" {
		text, err = yaml.JSONToYAML(text)
	} else if err == nil {
		text = append(text, '\n')
	}
	if err == nil {
		_, err = w.Write(text)
	}
	if err != nil {
		return fmt.Errorf("write plan: %w", err)
	}
	return nil
}

// sections are what more was asked, for who reads it.
func (p printedPlan) sections() (list []render.Section) {
	if p.Replay != nil {
		list = append(list, replaySection(p.Replay))
	}
	if p.cutting != nil {
		list = append(list, p.cutting.section())
	}
	return list
}

func replaySection(r *replay.Report) render.Section {
	missed := "No request misses its objective"
	if r.Violations > 0 {
		missed = fmt.Sprintf("%s of all requests miss their objective, most of %s", fine(r.Violations), r.Worst)
	}
	s := render.Section{Title: "Replay", Text: []string{
		fmt.Sprintf("Poisson arrivals, seed %d; routing %s, rule %s. %s; processes are busy %s of the time.",
			r.Seed, r.Routing, r.Rule, missed, render.Percent(r.Utilisation)),
	}, Head: []string{"service", "SLO ms", "p50 ms", "p99 ms", "miss", "between", "late", "not run", "of requests", "load"}}
	for _, v := range r.Services {
		s.Rows = append(s.Rows, []string{v.Service, render.Exact(v.SLOMS), render.Decimal(v.P50MS), render.Decimal(v.P99MS),
			fine(v.Violations), fine(v.Low) + " – " + fine(v.High), fmt.Sprint(v.Late), fmt.Sprint(v.Unserved), fmt.Sprint(v.Requests), render.Percent(v.Load)})
	}
	return s
}

// fine is a small part of one in percent.
func fine(part float64) string { return fmt.Sprintf("%.3g %%", 100*part) }
