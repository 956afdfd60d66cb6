package main

import (
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/research/bench"
)

func guestLabCommand(print printer) *cobra.Command {
	var flags deviceFlags
	var o bench.GuestOptions
	cmd := &cobra.Command{
		Use: "guest [-- COMMAND [ARGUMENT...]]", Short: "What a guest costs a function, and what a function leaves a guest",
		Long: `Measures a function under load, a guest (penstock run), and both together, on the same node. On a
CPU the guest computes on all CPUs. On a GPU it trains a network like ResNet-50 in PyTorch. A COMMAND
replaces it; it has to print lines "steps N". Rows have the median and the range of the rounds.`,
		Example: `  penstock-lab guest
  penstock-lab guest --device cuda --model resnet50 --models models --rate 500
  penstock-lab guest --device cuda --python /opt/torch/bin/python --own`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := positive("--rounds", o.Rounds); err != nil {
				return err
			}
			if o.Rate <= 0 || o.Duration < time.Second {
				return fmt.Errorf("--rate %v for %v: want a rate above 0, for 1s or more", o.Rate, o.Duration)
			}
			var err error
			if o.Setup, err = flags.options(); err != nil {
				return err
			}
			o.Command = args
			r, err := bench.RunGuest(cmd.Context(), o)
			if err != nil {
				return err
			}
			return print(r, guestRows(r))
		},
	}
	flags.register(cmd, configs.DeviceCPU)
	cmd.Flags().StringVar(&o.Model, "model", "face", "model of the function")
	cmd.Flags().Float64Var(&o.Rate, "rate", 40, "requests per second")
	cmd.Flags().DurationVar(&o.Duration, "duration", 20*time.Second, "of each measurement")
	cmd.Flags().IntVar(&o.Rounds, "rounds", 3, "how many nodes")
	cmd.Flags().BoolVar(&o.Own, "own", false, "run the guest outside MPS")
	cmd.Flags().StringVar(&o.Memory, "memory", "", "the guest's memory limit, like 40GiB")
	cmd.Flags().StringVar(&o.Python, "python", "python3", "Python with PyTorch, for the training on a GPU")
	cmd.Flags().IntVar(&o.Batch, "batch", 64, "batch size of the training")
	return cmd
}

func guestRows(r bench.Guest) []table.Row {
	cell := func(values []float64, scale float64, unit string) string {
		median, smallest, largest := bench.Spread(values)
		return fmt.Sprintf("%.2f%s (%.2f to %.2f)", scale*median, unit, scale*smallest, scale*largest)
	}
	return []table.Row{
		{fmt.Sprintf("%s, %v requests/s; guest: %s", r.Model, r.Rate, strings.Join(r.Command, " ")), "alone", "together"},
		{"function: p50", cell(r.Alone.P50, 1, " ms"), cell(r.Beside.P50, 1, " ms")},
		{"function: p99", cell(r.Alone.P99, 1, " ms"), cell(r.Beside.P99, 1, " ms")},
		{"function: in time", cell(r.Alone.Within, 1, " %"), cell(r.Beside.Within, 1, " %")},
		{"guest: steps per second", cell(r.GuestAlone, 1, ""), cell(r.GuestBeside, 1, "")},
		{"device time that the function leaves", cell(r.Idle, 100, " %"), ""},
		{"p99 together / alone (goal 1.10)", fmt.Sprintf("%.3f", r.P99Ratio), ""},
		{"guest's rate together / (alone × idle) (goal 0.8)", fmt.Sprintf("%.3f", r.GuestRatio), ""},
	}
}

// burnCommand is the guest on a CPU.
func burnCommand() *cobra.Command {
	return &cobra.Command{
		Use: "burn", Short: "Keep all CPUs busy and print the steps", Hidden: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return bench.Burn(cmd.Context(), os.Stdout) },
	}
}
