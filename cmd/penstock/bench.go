package main

import (
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/penstock/penstock/bench"
	"github.com/penstock/penstock/bench/slabsim"
)

func benchCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure the parts, each beside a floor of the same run",
		Example: `  penstock bench ingest
  penstock bench dispatch -o json
  penstock bench slab --slo 50ms
  penstock bench gather
  penstock bench swap -n 1000
  penstock bench plan
  penstock bench overhead --device cuda --models models`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	output := cmd.PersistentFlags().StringP("output", "o", "table", "table or json")
	cmd.PersistentPreRunE = func(*cobra.Command, []string) error {
		if *output != "json" && *output != "table" {
			return fmt.Errorf("output %q: want table or json", *output)
		}
		return nil
	}
	print := printer(func(report any, rows []table.Row) error {
		switch *output {
		case "json":
			encoder := json.NewEncoder(os.Stdout)
			encoder.SetIndent("", "  ")
			return encoder.Encode(report)
		case "table":
			t := table.NewWriter()
			t.SetStyle(table.StyleLight)
			t.SetOutputMirror(os.Stdout)
			t.AppendRows(rows)
			t.Render()
			return nil
		}
		return fmt.Errorf("output %q: want table or json", *output)
	})

	var dispatches int
	dispatch := &cobra.Command{
		Use: "dispatch", Short: "What the hand-overs between manager and an idle inference function cost",
		Example: `  penstock bench dispatch -n 5000`, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if dispatches < 1 {
				return fmt.Errorf("-n %d: want at least 1", dispatches)
			}
			self, err := os.Executable()
			if err != nil {
				return fmt.Errorf("find own binary: %w", err)
			}
			r, err := bench.RunDispatch(cmd.Context(), self, dispatches)
			if err != nil {
				return err
			}
			return print(r, []table.Row{
				{"last piece received -> batch starts", micros(r.CompleteToBatch)},
				{"batch ended -> reply sent", micros(r.BatchToReply)},
				{"floor: bare futex wake", micros(r.Floor)},
			})
		},
	}
	dispatch.Flags().IntVarP(&dispatches, "number", "n", 4000, "how many requests")

	var slo time.Duration
	var seed uint64
	slab := &cobra.Command{
		Use: "slab", Short: "SLAB against Clipper's AIMD on a simulated device, in virtual time",
		Example: `  penstock bench slab --slo 50ms -o json`, Args: cobra.NoArgs,
		RunE: func(_ *cobra.Command, _ []string) error {
			if slo <= 0 {
				return fmt.Errorf("--slo %s: want a positive duration", slo)
			}
			c := slabsim.DefaultConfig(slo)
			c.Seed = seed
			r, err := slabsim.Run(c)
			if err != nil {
				return err
			}
			return print(r, slabRows(r))
		},
	}
	slab.Flags().DurationVar(&slo, "slo", 50*time.Millisecond, "latency objective")
	slab.Flags().Uint64Var(&seed, "seed", 1, "seed of arrivals and noise")

	cmd.AddCommand(ingestCommand(print), dispatch, slab, gatherCommand(print), swapCommand(print), bareCommand(print), overheadCommand(print), dpdkCommand(print),
		limitCommand(print), faultCommand(print), benchPlanCommand(print), evaluateCommand(print), readyCommand(print),
		benchWeightsCommand(print), instanceCommand())
	return cmd
}

// printer prints a report as JSON, or its rows as a table.
type printer func(report any, rows []table.Row) error

func micros(m bench.Micros) string {
	return fmt.Sprintf("p50 %.1f  p99 %.1f  max %.1f µs", m.P50, m.P99, m.Max)
}

func slabRows(r slabsim.Report) []table.Row {
	rows := []table.Row{{"rule", "load", "t90", "final batch", "p99", "goodput", "late"}}
	for _, rule := range []struct {
		name string
		slabsim.Result
	}{{"slab", r.Result}, {"aimd", r.AIMD}} {
		for _, l := range rule.Loads {
			rows = append(rows, table.Row{rule.name, fmt.Sprintf("%s, %.0f/s", l.Name, l.RateRPS), fmt.Sprintf("%.0f ms", l.T90Millis),
				fmt.Sprintf("%.1f", l.FinalBatch), fmt.Sprintf("%.1f of %.0f ms", l.P99Millis, r.SLOMillis),
				fmt.Sprintf("%.0f/s", l.GoodputRPS), fmt.Sprintf("%.1f %%", l.LatePercent)})
		}
	}
	return rows
}
