package main

import (
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"github.com/penstock/penstock/libml/frameworks"
	"github.com/penstock/penstock/research/bench"
)

func weightsCommand(print printer) *cobra.Command {
	var flags deviceFlags
	o := bench.WeightsOptions{}
	var budgetMiB int64
	cmd := &cobra.Command{
		Use: "weights", Short: "What shared weights save: time to wake, memory, and how many instances fit (Table 1 of the paper)",
		Long: `Instances of each model are started under MPS, with weights of their own and with weights
that all share: how long one takes to load and to wake, with one batch size and with all of its
card's, and what it takes of the GPU's memory. Then instances are started until no more fit into
the budget, the rest of the GPU's memory being held.`,
		Example: `  penstock-lab weights --models models -o json
  penstock-lab weights --models models --model vgg19 --budget 0`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for flag, n := range map[string]int{"--most": o.MaxInstances, "--runs": o.Runs, "--at-once": o.AtOnce} {
				if err := positive(flag, n); err != nil {
					return err
				}
			}
			if budgetMiB < 0 || budgetMiB > 1<<40 {
				return fmt.Errorf("--budget %d: want MiB, or 0", budgetMiB)
			}
			if o.Limit < 0 {
				return fmt.Errorf("--limit %v: want a time, or 0", o.Limit)
			}
			var err error
			if o.Setup, err = flags.options(); err != nil {
				return err
			}
			o.BudgetBytes = budgetMiB << 20
			r, err := bench.RunWeights(cmd.Context(), o)
			if err != nil {
				return err
			}
			rows := []table.Row{{"model", "weights", "batches", "load ms", "wake ms", "of it the context", "MiB", "fit"}}
			for _, m := range r.Models {
				add := func(what string, i bench.WeightsInstance, fit string) {
					rows = append(rows, table.Row{m.Model, what, fmt.Sprint(i.Batches), fmt.Sprintf("%.0f", i.LoadMillis), fmt.Sprintf("%.0f", i.WakeMillis),
						fmt.Sprintf("%.0f", i.ContextMillis), i.Bytes >> 20, fit})
				}
				add("private", m.Private.One, "")
				add("private", m.Private.Ladder, fmt.Sprint(m.Private.Fit))
				add("shared, prepared first", m.Prepared, "")
				add("shared, put there first", m.Uploaded, "")
				add("shared", m.Shared.One, "")
				add("shared", m.Shared.Ladder, fmt.Sprintf("%d, and %d MiB once", m.Shared.Fit, m.WeightsBytes>>20))
			}
			if len(r.Left) > 0 {
				rows = append(rows, table.Row{"not begun", fmt.Sprint(r.Left)})
			}
			return print(r, rows)
		},
	}
	flags.register(cmd, "cuda")
	cmd.Flags().StringSliceVar(&o.Models, "model", []string{"alexnet", "resnet50", "resnet152", "vgg19"}, "which models")
	cmd.Flags().Int64Var(&budgetMiB, "budget", 16<<10, "MiB that instances are started into; 0 starts none")
	cmd.Flags().IntVar(&o.MaxInstances, "most", 46, "how many are started at most; MPS takes 48 clients")
	cmd.Flags().IntVar(&o.AtOnce, "at-once", 8, "how many are started at the same time, until the first does not start")
	cmd.Flags().DurationVar(&o.Limit, "limit", 0, "how long all of it may take: a model is left out that would take longer; 0 is as long as it takes")
	cmd.Flags().IntVar(&o.Runs, "runs", 3, "how often an instance is measured")
	cmd.Flags().StringVar(&o.Report, "report", "", "file that has the report after each model; what it has already is not measured again")
	return cmd
}

// instanceCommand runs as a child process of `penstock-lab weights`.
func instanceCommand() *cobra.Command {
	began := time.Now()
	var card, socket string
	cmd := &cobra.Command{
		Use: "instance", Short: "One instance of a model, for penstock-lab weights", Hidden: true, Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			log := slog.New(zerolog.NewSlogHandler(zerolog.New(os.Stderr).Level(zerolog.InfoLevel)))
			return bench.RunInstance(os.Stdin, os.Stdout, began, card, socket, frameworks.New, log)
		},
	}
	cmd.Flags().StringVar(&card, "card", "", "its card's file")
	cmd.Flags().StringVar(&socket, "weights", "", "the holder's socket; its own weights if left out")
	return cmd
}
