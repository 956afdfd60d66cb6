package main

import (
	"fmt"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/penstock/penstock/libml/lane"
	"github.com/penstock/penstock/research/lanes"
)

// Seeds of the random mixes: the policies were tuned with the first group only.
const (
	lastTunedMix = 100
	lastMix      = 200
)

func lanesCommand(print printer) *cobra.Command {
	first, last, seeds := uint64(1), uint64(lastMix), 5
	cmd := &cobra.Command{
		Use: "lanes", Short: "Workers with more models than memory, simulated in virtual time",
		Long: `Simulates lanes and residency (docs/adr/0025-lanes-and-residency.md). Nothing is measured on a GPU.

jobs       100 finite jobs: mean time to completion, fifo's divided by srtf's (Salus: 3.19)
fair       three equal jobs: the max that one is served, divided by the min
goodput    requests in time of edf, divided by those of each other policy, over random mixes
residency  42 models with 5.7 GB of weights, Zipf arrivals, an objective of 25 ms`,
		Example: `  penstock-lab lanes
  penstock-lab lanes --first 101 --last 200 -o json`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if first < 1 || last < first || seeds < 1 {
				return fmt.Errorf("--first %d --last %d --seeds %d: want 1 or more, first and last in this order", first, last, seeds)
			}
			r, err := lanes.Measure(first, last, lastTunedMix, seeds)
			if err != nil {
				return err
			}
			return print(r, lanesRows(r))
		},
	}
	cmd.Flags().Uint64Var(&first, "first", first, "seed of the first random mix")
	cmd.Flags().Uint64Var(&last, "last", last, "seed of the last random mix")
	cmd.Flags().IntVar(&seeds, "seeds", seeds, "seeds of the jobs and of the 42 models")
	return cmd
}

func lanesRows(r lanes.Report) []table.Row {
	rows := []table.Row{{"simulated", "", "", "", "", "", ""}}
	for _, j := range r.Jobs {
		rows = append(rows, table.Row{"jobs", fmt.Sprintf("sigma %.1f", j.Sigma), fmt.Sprintf("fifo %.1f min", j.FIFOMinutes),
			fmt.Sprintf("srtf %.1f min", j.SRTFMinutes), fmt.Sprintf("ratio %.2f", j.Ratio)})
	}
	rows = append(rows, table.Row{"fair", "three equal jobs", fmt.Sprintf("max / min %.4f", r.FairSpread)})
	for _, g := range r.Goodput {
		row := table.Row{"goodput", fmt.Sprintf("%s, %d mixes", g.Group, g.Mixes)}
		for _, name := range lane.Names() {
			if name != lane.EDF {
				row = append(row, fmt.Sprintf("edf / %s %.4f", name, g.Ratios[name]))
			}
		}
		rows = append(rows, append(row, fmt.Sprintf("%d below 0.99, worst %.3f", g.Below, g.WorstRatio)))
	}
	for _, w := range r.Residency {
		rows = append(rows, table.Row{"residency", w.Name, fmt.Sprintf("%.2f %% in time, worst seed %.2f %%", w.InTimePercent, w.WorstPercent),
			fmt.Sprintf("%.0f loads/s, %.0f %% of the time", w.LoadsPerS, 100*w.Loading), fmt.Sprintf("lanes %.0f %% busy", 100*w.Busy),
			fmt.Sprintf("cold requests %.2f ms", w.ColdMillis), fmt.Sprintf("thrashing %.0f %%, ends with %d MiB", 100*w.Thrashing, w.EndMiB)})
	}
	return rows
}
