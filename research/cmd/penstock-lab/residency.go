package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/research/bench"
)

func residencyCommand(print printer) *cobra.Command {
	var flags deviceFlags
	var o bench.ResidencyOptions
	cmd := &cobra.Command{
		Use: "residency", Short: "What limited memory of a worker costs: answers in time, loads, and the memory of the processes",
		Long: `Starts a node with all functions in a worker with limited memory, a node with all in a worker
without a limit, a node with own processes, and each model alone in its own process, in turn.
Requests come by Zipf's law: the n-th function gets 1/n of the requests of the first. With --equal each gets as
many. A model alone gets all requests, at even intervals. With --check each answer is compared with that of the
model on the CPU. "different" counts answers to single requests that are not, byte for byte, those of own
processes. Rows have the median and the range of the runs; those of models have the difference to alone.`,
		Example: `  penstock-lab residency
  penstock-lab residency --functions 12 --memory 20 --rounds 5
  penstock-lab residency --equal --ways unlimited,alone --functions 10 --rate 10
  penstock-lab residency --device cuda --models models --model resnet50,vgg19 --functions 24 --weights 0.35 --slo 25ms --rate 600`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, flag := range []struct {
				name  string
				value int
			}{{"--rounds", o.Rounds}, {"--functions", o.Functions}, {"--memory", o.MemoryMiB}} {
				if err := positive(flag.name, flag.value); err != nil {
					return err
				}
			}
			for _, way := range o.Ways {
				if !slices.Contains(bench.AllWays, way) {
					return fmt.Errorf("--ways %s: want some of %s", way, strings.Join(bench.AllWays, ", "))
				}
			}
			if o.WeightsPart < 0 || o.WeightsPart > 1 {
				return fmt.Errorf("--weights %v: want 0 to 1", o.WeightsPart)
			}
			setup, err := flags.options()
			if err != nil {
				return err
			}
			o.Setup = setup
			r, err := bench.RunResidency(cmd.Context(), o)
			if err != nil {
				return err
			}
			return print(r, residencyRows(r))
		},
	}
	flags.register(cmd, configs.DeviceCPU)
	cmd.Flags().BoolVar(&o.Check, "check", true, "compare the answers with those of the models on the CPU")
	cmd.Flags().StringSliceVar(&o.ModelNames, "model", []string{"face", "fashion", "face", "fashion", "detect"}, "models of the functions, in turn")
	cmd.Flags().StringSliceVar(&o.Ways, "ways", bench.AllWays, "which ways to measure")
	cmd.Flags().IntVar(&o.Functions, "functions", 42, "how many functions")
	cmd.Flags().IntVar(&o.MemoryMiB, "memory", 56, "memory of the limited worker, in MiB")
	cmd.Flags().Float64Var(&o.WeightsPart, "weights", 0, "instead of --memory: the part of the models' weights that fits the limited worker")
	cmd.Flags().Float64Var(&o.PerSecond, "rate", 40, "requests per second of all functions together")
	cmd.Flags().BoolVar(&o.Equal, "equal", false, "all functions get as many requests")
	cmd.Flags().BoolVar(&o.Variants, "variants", false, "the n-th function of a model has the card NAME-n, from the second on (run.sh export --variants)")
	cmd.Flags().DurationVar(&o.Objective, "slo", time.Second, "objective of each function")
	cmd.Flags().DurationVar(&o.Duration, "duration", 30*time.Second, "how long each run sends requests")
	cmd.Flags().IntVar(&o.Rounds, "rounds", 3, "how many runs of each way")
	return cmd
}

// spreadCell has the median and the range of values, "-" if there are none.
func spreadCell(values []float64, unit string) string {
	if len(values) == 0 {
		return "-"
	}
	median, smallest, largest := bench.Spread(values)
	return fmt.Sprintf("%.1f%s (%.1f to %.1f)", median, unit, smallest, largest)
}

func residencyRows(r bench.Residency) []table.Row {
	row := func(name, unit string, of func(*bench.ResidencyWay) []float64) table.Row {
		cell := func(way *bench.ResidencyWay) string { return spreadCell(of(way), unit) }
		return table.Row{name, cell(&r.Limited), cell(&r.Unlimited), cell(&r.Own), cell(&r.Alone)}
	}
	rows := []table.Row{
		{fmt.Sprintf("%d functions", r.Functions), fmt.Sprintf("worker of %d MiB", r.MemoryMiB), "worker", "own processes", "each model alone"},
		row("requests", "", func(w *bench.ResidencyWay) []float64 { return w.Requests }),
		row("in time", " %", func(w *bench.ResidencyWay) []float64 { return w.InTime }),
		row("failed", "", func(w *bench.ResidencyWay) []float64 { return w.Failed }),
		row("lost", "", func(w *bench.ResidencyWay) []float64 { return w.Lost }),
		row("wrong", "", func(w *bench.ResidencyWay) []float64 { return w.Wrong }),
		row("different", "", func(w *bench.ResidencyWay) []float64 { return w.Different }),
		row("median of a function", " ms", func(w *bench.ResidencyWay) []float64 { return w.P50 }),
		row("p99 of a function", " ms", func(w *bench.ResidencyWay) []float64 { return w.P99 }),
		row("loads per second", "", func(w *bench.ResidencyWay) []float64 { return w.Loads }),
		row("a load", " ms", func(w *bench.ResidencyWay) []float64 { return w.LoadMillis }),
		row(memoryName(r.Device), " MiB", func(w *bench.ResidencyWay) []float64 { return w.MemoryMiB }),
		{"memory ratio", orNone(r.Ratio), orNone(r.UnlimitedRatio), "", ""},
	}
	if r.WeightsMiB > 0 {
		rows = append(rows, table.Row{"fixed memory, weights of all models", fmt.Sprintf("%.0f and %.0f MiB", r.FixedMiB, r.WeightsMiB), "", "", ""})
	}
	for _, name := range slices.Sorted(maps.Keys(r.Alone.Models)) {
		rows = append(rows, residencyModelRow(r, name))
	}
	added := func(w bench.ResidencyWay) string {
		if w.Models == nil || r.Alone.Models == nil {
			return "-"
		}
		return fmt.Sprintf("%+.2f ms, p99 %+.2f ms", w.AddedMean, w.AddedP99)
	}
	return append(rows, table.Row{"added: mean of models, largest p99 (goal 1 and 5 ms)", added(r.Limited), added(r.Unlimited), added(r.Own), ""})
}

// orNone prints a ratio, which is 0 if one of its ways was not measured.
func orNone(ratio float64) string {
	if ratio == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f", ratio)
}

// residencyModelRow has a model's mean and 99th percentile in each way.
func residencyModelRow(r bench.Residency, name string) table.Row {
	alone := r.Alone.Models[name]
	cell := func(w bench.ResidencyWay) string {
		m := w.Models[name]
		if m == nil {
			return "-"
		}
		mean, _, _ := bench.Spread(m.Mean)
		p99, _, _ := bench.Spread(m.P99)
		addedMean, addedP99 := m.Added(alone)
		return fmt.Sprintf("%.2f (%+.2f), p99 %.2f (%+.2f) ms", mean, addedMean, p99, addedP99)
	}
	mean, _, _ := bench.Spread(alone.Mean)
	p99, _, _ := bench.Spread(alone.P99)
	return table.Row{name + ": mean", cell(r.Limited), cell(r.Unlimited), cell(r.Own), fmt.Sprintf("%.2f, p99 %.2f ms", mean, p99)}
}
