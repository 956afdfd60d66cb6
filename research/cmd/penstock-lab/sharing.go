package main

import (
	"fmt"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/penstock/penstock/research/bench"
)

func sharingCommand(print printer) *cobra.Command {
	var o bench.SharingOptions
	cmd := &cobra.Command{
		Use: "sharing", Short: "Ways to share the CPUs of this machine, interleaved: guarantees, no shares, quotas",
		Long: `Runs each mix of loads on a fresh node with guarantees (the default), without shares, and with
CPU quotas that tune themselves, in turn. Each row has the median and the range of the runs.
"foreign" is the part of the CPUs' time that other programs or the hypervisor took.`,
		Example: `  penstock-lab sharing
  penstock-lab sharing --rounds 3 --duration 5s --mix "demo, detect 40/s"`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := positive("--rounds", o.Rounds); err != nil {
				return err
			}
			if o.Duration < time.Second {
				return fmt.Errorf("--duration %v: want at least 1s", o.Duration)
			}
			var err error
			if o.Setup, err = cpuSetup(); err != nil {
				return err
			}
			r, err := bench.RunSharing(cmd.Context(), o)
			if err != nil {
				return err
			}
			return print(r, sharingRows(r))
		},
	}
	cmd.Flags().DurationVar(&o.Duration, "duration", 10*time.Second, "measured time of a run")
	cmd.Flags().IntVar(&o.Rounds, "rounds", 10, "how many runs of each mix with each variant")
	cmd.Flags().StringArrayVar(&o.Only, "mix", nil, "measure this mix only; may be repeated")
	return cmd
}

func sharingRows(r bench.Sharing) []table.Row {
	rows := []table.Row{{"mix", "sharing", "function", "within objective", "goodput", "late", "p99", "foreign"}}
	spread := func(values []float64, unit string) string {
		median, smallest, largest := bench.Spread(values)
		return fmt.Sprintf("%.1f%s (%.1f to %.1f)", median, unit, smallest, largest)
	}
	for _, m := range r.Mixes {
		for _, v := range m.Variants {
			for _, f := range v.Functions {
				rows = append(rows, table.Row{
					m.Name, v.Name, f.Name, spread(f.Within, " %"), spread(f.Goodput, "/s"), spread(f.Late, " %"), spread(f.P99, " ms"),
					fmt.Sprintf("%.0f %%", 100*v.Foreign),
				})
			}
		}
	}
	return rows
}
