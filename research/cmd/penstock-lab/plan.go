package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/penstock/penstock/internal/testbed"
	"github.com/penstock/penstock/plan"
	"github.com/penstock/penstock/research/planner"
	"github.com/penstock/penstock/research/planners"
)

func planCommand(print printer) *cobra.Command {
	var profiles, gpu string
	var only string
	var services, scenarios, drawn, names []string
	o := planner.Options{}
	cmd := &cobra.Command{
		Use: "plan", Short: "Delay of each of the planner's policies, and how many GPUs it takes as services and rates grow",
		Long: `Plans with each policy for 1 to 10,000 services (delays), and for each scenario with one to
ten times its services and one to ten times its rates (counts). Every plan is checked. The profiles and
scenarios that are taken where none are named lie in Penstock's source tree.`,
		Example: `  penstock-lab plan --policy penstock --policy parvagpu
  penstock-lab plan --only counts -o json > research/results/planner/counts.json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.Limit <= 0 {
				return fmt.Errorf("--limit %s: want a positive duration", o.Limit)
			}
			for flag, list := range map[string][]int{"--count": o.Services, "--times": o.Times} {
				if !slices.IsSorted(list) || len(list) > 0 && list[0] < 1 {
					return fmt.Errorf("%s %v: want numbers from 1 on, ascending", flag, list)
				}
			}
			var err error
			if o.GPU, err = plan.Lookup(gpu); err != nil {
				return fmt.Errorf("--gpu %w", err)
			}
			for _, name := range names {
				p, err := planners.Find(name)
				if err != nil {
					return fmt.Errorf("--policy: %w", err)
				}
				o.Policies = append(o.Policies, p)
			}
			if o.Profiles, err = readProfiles(profiles); err == nil {
				o.Scenarios, err = readScenarios(services, scenarios)
			}
			if err == nil {
				o.Drawn, err = readScenarios(services, drawn)
			}
			if errors.Is(err, fs.ErrNotExist) {
				err = fmt.Errorf("%w; run it in Penstock's source tree, or name others", err)
			}
			if err != nil {
				return err
			}
			switch only {
			case "":
			case "delays":
				o.Times = nil
			case "counts":
				o.Services = nil
			default:
				return fmt.Errorf("--only %q: want delays or counts", only)
			}
			o.Machine = testbed.ThisMachine(version)
			last := ""
			o.Progress = func(done, all int, what string) {
				what = fmt.Sprintf("%d of %d: %s", done+1, all, what)
				if isTerminal(os.Stderr) {
					fmt.Fprintf(os.Stderr, "\r%-*s", len(last), what)
					last = what
				}
			}
			r, err := planner.Run(cmd.Context(), o)
			if last != "" {
				fmt.Fprintln(os.Stderr)
			}
			if err != nil {
				return err
			}
			return print(r, plannerRows(r))
		},
	}
	f := cmd.Flags()
	f.StringVar(&profiles, "profiles", "plan/testdata/parvagpu/prof_data", "folder of the models' profiles")
	f.StringSliceVar(&services, "services", []string{"plan/testdata/parvagpu/scenarios_s1_s3.csv", "plan/testdata/parvagpu/scenarios_s4_s6.csv"}, "CSV files of the scenarios; again for more")
	f.StringSliceVar(&scenarios, "scenario", []string{"S1", "S2", "S3", "S4", "S5", "S6"}, "which of them; again for more")
	f.StringSliceVar(&drawn, "drawn", []string{"S1", "S2", "S3"}, "those that the many services are drawn from")
	f.StringVar(&only, "only", "", "delays or counts; both if left out")
	f.StringVar(&gpu, "gpu", plan.PublishedGPU, "model of GPU to plan on")
	f.StringSliceVar(&names, "policy", planners.Names(), "which policies; again for more")
	f.IntSliceVar(&o.Services, "count", []int{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000}, "numbers of services to measure the delay at")
	f.IntSliceVar(&o.Times, "times", []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, "how many times the services, and the rates, of each scenario")
	f.DurationVar(&o.Limit, "limit", 20*time.Second, "a policy that took longer for a plan is asked for no larger one")
	f.Uint64Var(&o.Seed, "seed", 1, "seed of the many services")
	return cmd
}

// readScenarios reads each scenario from the first file that contains it.
func readScenarios(paths []string, names []string) (list []planner.Scenario, err error) {
	for _, name := range names {
		var found []plan.Service
		var first error
		for _, path := range paths {
			services, err := readServices(path, name)
			if err == nil {
				found = services
				break
			}
			if first == nil {
				first = err
			}
		}
		if found == nil {
			return nil, cmp.Or(first, errors.New("--services: want a file of scenarios"))
		}
		list = append(list, planner.Scenario{Name: name, Services: found})
	}
	return list, nil
}

func plannerRows(r *planner.Report) []table.Row {
	rows := []table.Row{{"for", "policy", "services", "GPUs", "GPCs", "at least", "optimal", "delay"}}
	row := func(what string, x planner.Result) table.Row {
		bound := ""
		if x.LowerBound > 0 {
			bound = fmt.Sprint(x.LowerBound)
		}
		return table.Row{what, x.Policy, x.Services, x.GPUs, x.GPCs, bound, map[bool]string{true: "proved"}[x.Optimal], fmt.Sprintf("%.3f ms", x.DelayMS)}
	}
	for _, d := range r.Delays {
		rows = append(rows, row("delay", d.Result))
	}
	for _, c := range r.Counts {
		rows = append(rows, row(fmt.Sprintf("%s, %s × %d", c.Scenario, c.Scale, c.Times), c.Result))
	}
	for _, m := range r.Missing {
		what := "delay"
		if m.Scenario != "" {
			what = fmt.Sprintf("%s, %s × %d", m.Scenario, m.Scale, m.Times)
		}
		why, _, _ := strings.Cut(m.Why, ";")
		rows = append(rows, table.Row{what, m.Policy, m.Services, "none: " + why})
	}
	return rows
}

func readProfiles(folder string) (map[string]map[string]plan.Profile, error) {
	profiles, err := plan.ReadProfiles(os.DirFS(folder))
	if err == nil && len(profiles) == 0 {
		err = fmt.Errorf("%s: no profile in it: %w", folder, fs.ErrNotExist)
	}
	if err != nil {
		return nil, fmt.Errorf("--profiles: %w", err)
	}
	return profiles, nil
}

func readServices(file, scenario string) ([]plan.Service, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("--services: %w", err)
	}
	defer f.Close()
	return plan.ReadServices(f, file, scenario)
}
