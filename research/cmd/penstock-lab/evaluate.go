package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/internal/testbed"
	"github.com/penstock/penstock/libml/frameworks"
	"github.com/penstock/penstock/research/bench"
	"github.com/penstock/penstock/research/evaluate"
	"github.com/penstock/penstock/shm/cpuset"
)

func evaluateCommand(print printer) *cobra.Command {
	var flags deviceFlags
	o := evaluate.Options{}
	var figures []string
	var cpus string
	var dry, names bool
	cmd := &cobra.Command{
		Use: "evaluate", Short: "The figures of the paper's evaluation, every way of sharing a GPU in one run",
		Long: `Measures the figures of GSLICE's evaluation on the GPU that is here: time slicing,
default MPS, fixed percentages, AIMD and Penstock on the same models, objectives, rates
and seeds. What was measured stands in OUT/FIGURE.json after every run of a variant; a
call that ended early, at --limit or for another reason, is gone on with by the next.

Figures: ` + strings.Join(evaluate.Names(), ", ") + `; all is every one, in that order.`,
		Example: `  penstock-lab evaluate --figure fig10a --models models --out research/results/evaluation --limit 8m
  penstock-lab evaluate --figure all --models models --out out --device cuda:1 --cpus 16-31
  penstock-lab evaluate --figure all --dry-run --out out
  penstock-lab evaluate --figure fig16 --device cpu --quick --runs 1 --out out`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if names {
				for _, name := range evaluate.Names() {
					fmt.Println(name)
				}
				return nil
			}
			if o.Limit < 0 {
				return fmt.Errorf("--limit %v: want 0 (none) or more", o.Limit)
			}
			if o.Runs < 1 || o.Runs > 100 {
				return fmt.Errorf("--runs %d: want 1 to 100", o.Runs)
			}
			if o.Weights != "" && o.Weights != "shared" && o.Weights != "private" {
				return fmt.Errorf("--weights %s: want shared or private", o.Weights)
			}
			for _, v := range o.Variants {
				if err := evaluate.CheckVariant(v); err != nil {
					return fmt.Errorf("--variant: %w", err)
				}
			}
			if o.Out == "" {
				return fmt.Errorf("--out: want the folder of the reports")
			}
			var err error
			if figures, err = figureNames(figures); err != nil {
				return err
			}
			if cpus != "" {
				if err := keepTo(cpus); err != nil {
					return fmt.Errorf("--cpus %s: %w", cpus, err)
				}
			}
			if _, err := configs.Decode("--device", fmt.Appendf(nil, "device: %q", flags.device)); err != nil || flags.device == configs.DeviceAuto {
				return fmt.Errorf("--device %s: want cuda, cuda:N, a GPU's UUID (nvidia-smi -L), or cpu", flags.device)
			}
			if dry {
				o.Setup = bench.Setup{Setup: testbed.Setup{Device: flags.device, Models: flags.models, Machine: testbed.ThisMachine(version)}}
				return dryRun(print, o, figures)
			}
			if o.Setup, err = flags.options(); err != nil {
				return err
			}
			ends := time.Now().Add(o.Limit)
			var reports []*evaluate.Report
			var failed []error
			for _, name := range figures {
				next := o
				next.Figure = name
				if o.Limit > 0 {
					if next.Limit = time.Until(ends); next.Limit <= 0 {
						break
					}
				}
				r, err := evaluate.Run(cmd.Context(), next)
				if cmd.Context().Err() != nil {
					return fmt.Errorf("%s: %w; what was measured is in %s, and the same call goes on with it", name, context.Cause(cmd.Context()), o.Out)
				}
				if err != nil { // the other figures may succeed
					failed = append(failed, fmt.Errorf("%s: %w", name, err))
				}
				if r != nil && (err == nil || len(r.Results) > 0) {
					reports = append(reports, r)
				}
			}
			var message error
			switch len(reports) {
			case 0:
			case 1:
				message = print(reports[0], evaluateRows(reports))
			default:
				message = print(reports, evaluateRows(reports))
			}
			if line := nothingMeasured(o, figures, reports); line != "" && len(failed) == 0 {
				fmt.Fprintln(os.Stderr, line)
			}
			return errors.Join(append(failed, message)...)
		},
	}
	flags.register(cmd, "cuda")
	cmd.Flags().StringSliceVar(&figures, "figure", nil, "which figures, or all")
	cmd.Flags().StringVar(&o.Out, "out", "out", "folder of the reports, one JSON a figure")
	cmd.Flags().DurationVar(&o.Limit, "limit", 8*time.Minute, "how long this call may take; the next goes on; 0 for no limit")
	cmd.Flags().IntVar(&o.Runs, "runs", 5, "how often each variant is measured on each case")
	cmd.Flags().StringSliceVar(&o.Variants, "variant", nil, "which variants are measured, as the reports name them; all if left out")
	cmd.Flags().Uint64Var(&o.Seed, "seed", 1, "seed of the arrivals; the same for all variants")
	cmd.Flags().BoolVar(&o.Quick, "quick", false, "two cases a figure and short times; on a CPU small models in place of the figure's: to see that it works")
	cmd.Flags().StringVar(&o.Weights, "weights", "", "shared or private, for all variants; as a node does if left out")
	cmd.Flags().StringVar(&cpus, "cpus", "", "CPUs to keep to, node and load, like 0-15 or 0,2,4; all if left out")
	cmd.Flags().BoolVar(&names, "names", false, "print the figures' names, and measure nothing")
	cmd.Flags().BoolVar(&dry, "dry-run", false, "say what is left and how long it is expected to take, and measure nothing")
	return cmd
}

// nothingMeasured returns a line for a call whose limit was too short for any measurement.
// It is empty if the call began a measurement, or if none remains.
func nothingMeasured(o evaluate.Options, figures []string, reports []*evaluate.Report) string {
	for _, r := range reports {
		if r.Tried > 0 {
			return ""
		}
	}
	var next time.Duration
	left := 0
	for _, name := range figures {
		o.Figure = name
		p, err := evaluate.Prepare(o)
		if err != nil || p.Left == 0 {
			continue
		}
		if left == 0 || p.Next < next {
			next = p.Next
		}
		left += p.Left
	}
	if left == 0 {
		return ""
	}
	return fmt.Sprintf("no measurement was made within --limit %v, and %d are left: the next takes about %v", o.Limit, left, next.Round(time.Second))
}

// figureNames returns the requested figures.
func figureNames(given []string) ([]string, error) {
	if len(given) == 0 {
		return nil, fmt.Errorf("--figure: want all, or some of %s", strings.Join(evaluate.Names(), ", "))
	}
	if slices.Contains(given, "all") {
		return evaluate.Names(), nil
	}
	var once []string
	for _, name := range given {
		if _, err := evaluate.Find(name); err != nil {
			return nil, fmt.Errorf("--figure: %w", err)
		}
		if !slices.Contains(once, name) {
			once = append(once, name)
		}
	}
	return once, nil
}

// keepTo pins this process, and those that it starts, to a list of CPUs.
func keepTo(cpus string) error {
	list, err := cpuset.Parse(cpus)
	if err != nil {
		return err
	}
	allowed, err := cpuset.Allowed()
	if err != nil {
		return err
	}
	for _, cpu := range list {
		if !slices.Contains(allowed, cpu) {
			return fmt.Errorf("CPU %d is not here: this process may use %s", cpu, cpuset.Format(allowed))
		}
	}
	return cpuset.Pin(list)
}

func dryRun(print printer, o evaluate.Options, figures []string) error {
	type planned struct {
		Figure string        `json:"figure"`
		Plan   evaluate.Plan `json:"plan"`
	}
	var all []planned
	var total time.Duration
	rows := []table.Row{{"figure", "case", "kind", "variants", "left", "about"}}
	for _, name := range figures {
		o.Figure = name
		p, err := evaluate.Prepare(o)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		all = append(all, planned{name, p})
		for _, c := range p.Cases {
			rows = append(rows, table.Row{name, c.Name, c.Kind, len(c.Variants), c.Left, c.Takes.Round(time.Second)})
		}
		rows = append(rows, table.Row{name, "all, with capacities", "", "", fmt.Sprintf("%d of %d", p.Left, p.Steps), p.Takes.Round(time.Second)})
		total += p.Takes
	}
	rows = append(rows, table.Row{"all", "", "", "", "", total.Round(time.Second)})
	return print(all, rows)
}

// evaluateRows returns a row for each run of a variant at each level, or for each function
// in a time line.
func evaluateRows(reports []*evaluate.Report) []table.Row {
	rows := []table.Row{{"figure", "case", "variant", "run", "level", "offered", "within", "p99", "batch"}}
	for _, r := range reports {
		for _, x := range r.Results {
			if x.Error != "" {
				why, _, _ := strings.Cut(x.Error, "\n") // a node's log follows
				rows = append(rows, table.Row{r.Figure, x.Case, x.Variant, x.Run, "failed", "", why})
			}
			for _, l := range x.Loads {
				p99, batch := 0.0, 0.0
				for _, f := range l.Functions {
					p99, batch = max(p99, f.P99Millis), max(batch, f.MeanBatch)
				}
				rows = append(rows, table.Row{r.Figure, x.Case, x.Variant, x.Run, l.Level, fmt.Sprintf("%.0f/s", l.OfferedRPS),
					fmt.Sprintf("%.1f %%", l.WithinPercent), fmt.Sprintf("%.1f ms", p99), fmt.Sprintf("%.1f", batch)})
			}
			if x.Timeline != nil {
				for _, f := range x.Timeline.Functions {
					rows = append(rows, table.Row{r.Figure, x.Case, x.Variant, x.Run, f.Name, fmt.Sprintf("%.0f/s", f.Total.OfferedRPS),
						fmt.Sprintf("%.1f %%", f.Total.WithinPercent), fmt.Sprintf("%.1f ms", f.Total.P99Millis), fmt.Sprintf("%.1f", f.Total.MeanBatch)})
				}
			}
			for _, p := range x.Points {
				rows = append(rows, table.Row{r.Figure, x.Case, x.Variant, x.Run, fmt.Sprintf("%s, %.0f %%, %d streams", p.Model, p.Percent, p.Streams),
					fmt.Sprintf("%.0f/s", p.ImagesPerSecond), p.Error, fmt.Sprintf("%.2f ms", p.BatchTime.P99/1000), p.Batch})
			}
		}
		if r.Left > 0 {
			rows = append(rows, table.Row{r.Figure, fmt.Sprintf("%d measurements are left", r.Left)})
		}
	}
	return rows
}

// readyCommand runs as a child process of `penstock-lab evaluate`: it measures a framework
// alone.
func readyCommand(print printer) *cobra.Command {
	var flags deviceFlags
	var given string
	cmd := &cobra.Command{
		Use: "ready", Short: "A framework alone with ready batches, many sizes in one process (for penstock-lab evaluate)", Hidden: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var wanted bench.ReadyOptions
			decoder := json.NewDecoder(strings.NewReader(given))
			decoder.DisallowUnknownFields()
			if err := decoder.Decode(&wanted); err != nil {
				return fmt.Errorf("--options %q: %w", given, err)
			}
			r, err := bench.RunReady(cmd.Context(), bench.Setup{Setup: testbed.Setup{Device: flags.device, Models: flags.models}}, frameworks.New, wanted)
			if err != nil {
				return err
			}
			rows := []table.Row{{"batch", "streams", "multiprocessors", "images", "a batch"}}
			for _, p := range r {
				rows = append(rows, table.Row{p.Batch, p.Streams, p.SMs, fmt.Sprintf("%.0f/s", p.ImagesPerSecond), micros(p.Time)})
			}
			return print(r, rows)
		},
	}
	flags.register(cmd, "cuda")
	cmd.Flags().StringVar(&given, "options", "", "what to measure, as JSON")
	return cmd
}
