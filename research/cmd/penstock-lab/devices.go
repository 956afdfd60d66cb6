package main

import (
	"fmt"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/internal/testbed"
	"github.com/penstock/penstock/research/bench"
)

func devicesCommand(print printer) *cobra.Command {
	var flags deviceFlags
	var o bench.DevicesOptions
	cmd := &cobra.Command{
		Use: "devices", Short: "A node on several devices beside a node on one",
		Long: `Measures one function under a closed loop on one device and on all, in turn. With --load, it also runs a
function per model on one device and as many per device on all, at the same part of a device's capacity, and doubles
the rate of the first model's function. Rows have the median and the range of the rounds.`,
		Example: `  penstock-lab devices --devices cuda:0,cuda:1 --model detect
  penstock-lab devices --devices cuda:0,cuda:1 --models models --model resnet50,face,fashion,detect --load 0.8,0.9`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := positive("--rounds", o.Rounds); err != nil {
				return err
			}
			if len(o.Devices) < 2 {
				return fmt.Errorf("--devices %q: want two or more", o.Devices)
			}
			if o.Duration < time.Second {
				return fmt.Errorf("--duration %v: want at least 1s", o.Duration)
			}
			for _, name := range o.Devices {
				if err := testbed.CheckDevice(name); err != nil {
					return fmt.Errorf("--devices %s: %w", name, err)
				}
			}
			var err error
			if o.Setup, err = flags.options(); err != nil {
				return err
			}
			r, err := bench.RunDevices(cmd.Context(), o)
			if err != nil {
				return err
			}
			return print(r, devicesRows(r))
		},
	}
	flags.device = configs.DeviceCPU
	cmd.Flags().StringVar(&flags.models, "models", "", "folder of cards, searched before the built-in models")
	cmd.Flags().StringSliceVar(&o.Devices, "devices", []string{"cuda:0", "cuda:1"}, "the devices; the first is the one")
	cmd.Flags().StringSliceVar(&o.ModelNames, "model", []string{"detect"}, "models of the functions; the first is measured alone, and grows")
	cmd.Flags().Float64SliceVar(&o.Loads, "load", nil, "parts of a device's capacity for the mixes")
	cmd.Flags().DurationVar(&o.Duration, "duration", 5*time.Second, "measured time of a run")
	cmd.Flags().IntVar(&o.Rounds, "rounds", 3, "how many runs of each")
	cmd.Flags().IntVar(&o.InFlight, "in-flight", 32, "requests in flight on each of four sockets per device in the closed loop; twice as many for the single function")
	cmd.Flags().IntVar(&o.Receivers, "receivers", 4, "receivers of each function")
	return cmd
}

func devicesRows(r bench.Devices) []table.Row {
	cell := func(values []float64, unit string) string {
		median, smallest, largest := bench.Spread(values)
		return fmt.Sprintf("%.1f%s (%.1f to %.1f)", median, unit, smallest, largest)
	}
	rows := []table.Row{
		{"", "one device", fmt.Sprintf("%d devices", len(r.Devices))},
		{r.Model + ": answers per second", cell(r.One, ""), cell(r.All, "")},
		{"all / one", "", fmt.Sprintf("%.3f", r.Ratio)},
	}
	for _, m := range r.Mixes {
		rows = append(rows, table.Row{fmt.Sprintf("worst function in time at %.0f %% of capacity", 100*m.Load), cell(m.One, " %"), cell(m.All, " %")})
	}
	var serves, kept []float64
	var late, others int
	for _, g := range r.Doubled {
		serves, kept = append(serves, g.Seconds), append(kept, g.Kept)
		late, others = late+g.OthersLate, others+g.Others
	}
	if len(r.Doubled) > 0 {
		rows = append(rows,
			table.Row{"a rate doubles: another device serves after", "", cell(serves, " s")},
			table.Row{"all answers are in time after", "", cell(kept, " s")},
			table.Row{"late answers of the other functions", "", fmt.Sprintf("%d of %d", late, others)})
	}
	return rows
}
