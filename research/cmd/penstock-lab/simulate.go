package main

import (
	"fmt"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/penstock/penstock/research/sharesim"
)

// Numbers of random mixes: the rule was tuned with the first group only.
const (
	lastTuned = 200
	lastSeed  = 300
)

func simulateCommand(print printer) *cobra.Command {
	first, last := uint64(1), uint64(lastSeed)
	var evaluation, division bool
	var costError float64
	var sharing string
	cmd := &cobra.Command{
		Use: "simulate", Short: "Guarantees on a simulated GPU, in virtual time, next to the best fixed division",
		Long: `Simulates functions that share a GPU by guarantees (docs/sharing.md): the evaluation's mixes, and
random ones of 2 to 12 functions with objectives of 5 to 100 ms, steps, bursts, silence and overload.
The rule was tuned with seeds 1 to 200.

With --sharing the GPU has no MPS (docs/adr/0031-turns-on-a-gpu.md): "turns" runs batches one after the
other, "slices" gives each function an equal part of the time.

"within" are the functions with at least 300 requests while their true need was within their guarantee.
"goodput" is weighted by device time and divided by that of the best fixed division of the device
that answers 99 % in time of the same functions.`,
		Example: `  penstock-lab simulate
  penstock-lab simulate --first 201 --last 300 --evaluation=false -o json
  penstock-lab simulate --first 101 --division=false --sharing turns`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if costError <= 0 {
				return fmt.Errorf("--cost-error %v: want more than 0", costError)
			}
			if first < 1 || last < first {
				return fmt.Errorf("--first %d --last %d: want 1 or more, in this order", first, last)
			}
			mode, ok := sharings[sharing]
			if !ok {
				return fmt.Errorf("--sharing %s: want priorities, slices or turns", sharing)
			}
			var groups []sharesim.Summary
			simulate := func(name string, mixes []sharesim.Mix) error {
				if len(mixes) == 0 {
					return nil
				}
				for i := range mixes {
					for j := range mixes[i].Functions {
						mixes[i].Functions[j].CostError = costError
					}
				}
				reports, err := sharesim.Simulate(mixes, division)
				groups = append(groups, sharesim.Summarize(name, reports))
				return err
			}
			if evaluation {
				mixes := sharesim.EvaluationMixes()
				for i := range mixes {
					mixes[i] = mixes[i].On(mode)
				}
				if err := simulate("evaluation", mixes); err != nil {
					return err
				}
			}
			for _, g := range []struct{ first, last uint64 }{
				{first, min(last, lastTuned)}, {max(first, lastTuned+1), last},
			} {
				var mixes []sharesim.Mix
				for seed := g.first; seed <= g.last; seed++ {
					mixes = append(mixes, sharesim.RandomMixOn(mode, seed))
				}
				if err := simulate(fmt.Sprintf("seeds %d to %d", g.first, g.last), mixes); err != nil {
					return err
				}
			}
			return print(groups, simulateRows(groups))
		},
	}
	cmd.Flags().Uint64Var(&first, "first", first, "seed of the first random mix")
	cmd.Flags().Uint64Var(&last, "last", last, "seed of the last random mix")
	cmd.Flags().BoolVar(&evaluation, "evaluation", true, "simulate the evaluation's mixes")
	cmd.Flags().BoolVar(&division, "division", true, "search the best fixed divisions, which takes most of the time")
	cmd.Flags().Float64Var(&costError, "cost-error", 1, "what processes believe a batch to cost, as a multiple of the true cost")
	cmd.Flags().StringVar(&sharing, "sharing", "priorities", "how batches share the GPU: priorities, slices or turns")
	return cmd
}

var sharings = map[string]sharesim.Sharing{
	"priorities": sharesim.Priorities, "slices": sharesim.Slices, "turns": sharesim.Turns,
}

func simulateRows(groups []sharesim.Summary) []table.Row {
	rows := []table.Row{{
		"mixes", "functions within", "below 99 % in time", "of these infeasible", "worst", "all requests within",
		"goodput, device seconds", "of the best division, min", "median", "below 0.99",
	}}
	for _, g := range groups {
		smallest, median, below := g.Ratio()
		ratio := func(r float64) string {
			if len(g.Ratios) == 0 {
				return "-"
			}
			return fmt.Sprintf("%.3f", r)
		}
		rows = append(rows, table.Row{
			g.Group, g.Functions, g.Below, g.Infeasible, fmt.Sprintf("%.2f %%", g.WorstPercent), fmt.Sprintf("%.3f %%", g.InTimePercent),
			fmt.Sprintf("%.1f", g.GoodputSeconds),
			ratio(smallest), ratio(median), fmt.Sprintf("%d of %d", below, len(g.Ratios)),
		})
	}
	return rows
}
