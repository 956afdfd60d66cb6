package main

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/docker/go-units"
	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/penstock/penstock/internal/testbed"
	"github.com/penstock/penstock/research/bench"
)

func turnsCommand(print printer) *cobra.Command {
	var o bench.TurnsOptions
	var limit string
	cmd := &cobra.Command{
		Use: "turns", Short: "Two guests of 1.5 times the GPU's memory, one after the other and together (a GPU, PyTorch)",
		Long: `Runs two programs in PyTorch, each with three quarters of the memory of --limit. They alternate bursts
on the GPU with CPU time. The reference is one after the other, without the swap library.`,
		Example: `  penstock-lab turns
  penstock-lab turns --limit 8GiB --bursts 3 --period 10s --cpu-percent 50,10 -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := testbed.CheckDevice("cuda"); err != nil {
				return err
			}
			bytes, err := units.RAMInBytes(limit)
			if err != nil || bytes < 2<<30 {
				return fmt.Errorf("--limit is %q, want a size of 2GiB or more, like 8GiB", limit)
			}
			o.LimitBytes = bytes
			if err := positive("--rounds", o.Rounds); err != nil {
				return err
			}
			if err := positive("--bursts", o.Bursts); err != nil {
				return err
			}
			if o.Library == "" {
				self, err := os.Executable()
				if err != nil {
					return fmt.Errorf("find own binary: %w", err)
				}
				o.Library = filepath.Join(filepath.Dir(self), "lib", "libpenstock-swap.so")
			}
			r, err := bench.RunTurns(cmd.Context(), o, func(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) })
			if err != nil {
				return err
			}
			return print(r, turnsRows(r))
		},
	}
	cmd.Flags().StringVar(&limit, "limit", "8GiB", "memory of the GPU for both guests")
	cmd.Flags().IntVar(&o.Bursts, "bursts", 3, "bursts on the GPU per guest")
	cmd.Flags().DurationVar(&o.Period, "period", 10*time.Second, "time of a burst and of the CPU time after it")
	cmd.Flags().IntSliceVar(&o.CPUPercent, "cpu-percent", []int{50, 10}, "CPU time, in percent of the period")
	cmd.Flags().IntVar(&o.Rounds, "rounds", 1, "how many runs of each way")
	cmd.Flags().StringVar(&o.Python, "python", "python3", "Python with PyTorch")
	cmd.Flags().StringVar(&o.Library, "library", "", "the swap library; lib/libpenstock-swap.so next to this program if left out")
	return cmd
}

func turnsRows(r bench.Turns) []table.Row {
	rows := []table.Row{{"CPU time", "one after the other", "together", "swaps", "ratio", "goal"}}
	for _, c := range r.Cases {
		sequential, _, _ := bench.Spread(c.Sequential)
		together, _, _ := bench.Spread(c.Together)
		rows = append(rows, table.Row{fmt.Sprintf("%d %%", c.CPUPercent), fmt.Sprintf("%.1f s", sequential), fmt.Sprintf("%.1f s", together),
			fmt.Sprint(c.Swaps), fmt.Sprintf("%.2f", c.Ratio), fmt.Sprintf("≥ %.2f", c.Goal)})
	}
	return rows
}
