package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/research/bench"
)

func loadingCommand(print printer) *cobra.Command {
	var flags deviceFlags
	var o bench.LoadingOptions
	cmd := &cobra.Command{
		Use: "loading", Short: "What loading a model costs the request that waits for it, and a neighbour in its own process",
		Long: `Starts a node with a worker whose memory holds only some of its members, and a function in its own
process. The members get one request after the other, so each request needs a load; "loads per request" says
whether that is so. Slow senders spread a request over --spread. Rows have the median and the range of the rounds.`,
		Example: `  penstock-lab loading
  penstock-lab loading --device cuda --models models --model vgg19,resnet152 --neighbour resnet50 --memory 1200 --rate 500`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, flag := range []struct {
				name  string
				value int
			}{{"--rounds", o.Rounds}, {"--memory", o.MemoryMiB}} {
				if err := positive(flag.name, flag.value); err != nil {
					return err
				}
			}
			if o.PerSecond <= 0 || o.Duration < time.Second {
				return fmt.Errorf("--rate %v for %v: want a rate above 0, for 1s or more", o.PerSecond, o.Duration)
			}
			if o.Spread <= 0 {
				return fmt.Errorf("--spread %v: want a time above 0", o.Spread)
			}
			setup, err := flags.options()
			if err != nil {
				return err
			}
			o.Setup = setup
			r, err := bench.RunLoading(cmd.Context(), o)
			if err != nil {
				return err
			}
			return print(r, loadingRows(r))
		},
	}
	flags.register(cmd, configs.DeviceCPU)
	cmd.Flags().StringSliceVar(&o.ModelNames, "model", []string{"detect", "detect"}, "models of the members, in turn")
	cmd.Flags().IntVar(&o.MemoryMiB, "memory", 24, "memory of the worker, in MiB")
	cmd.Flags().StringVar(&o.Neighbour, "neighbour", "fashion", "model of the function in its own process")
	cmd.Flags().Float64Var(&o.PerSecond, "rate", 40, "requests per second of the neighbour")
	cmd.Flags().DurationVar(&o.Spread, "spread", 5*time.Millisecond, "how long slow senders take to send a request")
	cmd.Flags().DurationVar(&o.Duration, "duration", 5*time.Second, "of each measurement")
	cmd.Flags().IntVar(&o.Rounds, "rounds", 3, "how many times each is measured")
	return cmd
}

func loadingRows(r bench.Loading) []table.Row {
	row := func(name string, values []float64, unit string) table.Row {
		median, smallest, largest := bench.Spread(values)
		return table.Row{name, fmt.Sprintf("%.2f%s (%.2f to %.2f)", median, unit, smallest, largest)}
	}
	return []table.Row{
		{fmt.Sprintf("%s in %d MiB; neighbour %s at %v/s", strings.Join(r.Models, ", "), r.MemoryMiB, r.Neighbour, r.Rate), ""},
		row("request to a resident model, p50", r.Resident, " ms"),
		row("request to an evicted model, p50", r.Linked, " ms"),
		row("loads per request", r.LoadsPerRequest, ""),
		row("the last load of that model", r.Load, " ms"),
		row("added besides the load (goal 1 ms + 0.2 loads)", r.Added, " ms"),
		row("neighbour's p99 without the worker's requests", r.Alone, " ms"),
		row("neighbour's p99 next to loads", r.Beside, " ms"),
		{"next to loads / without (goal 1.10)", fmt.Sprintf("%.2f", r.P99Ratio)},
		row(fmt.Sprintf("request sent within %v ms, loads at its first packet, p50", r.SpreadMillis), r.Early, " ms"),
	}
}
