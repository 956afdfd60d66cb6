package main

import (
	"fmt"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/research/bench"
)

func workerCommand(print printer) *cobra.Command {
	var flags deviceFlags
	var o bench.WorkerOptions
	cmd := &cobra.Command{
		Use: "worker", Short: "What a worker saves: memory and starts of many functions in one process and in their own",
		Long: `Starts a node with all functions in one worker, and a node with a process and a shadow for each, in
turn. Rows have the median and the range of the runs. "restart" is the time from SIGKILL of a process until
all functions serve.`,
		Example: `  penstock-lab worker
  penstock-lab worker --functions 12 --rounds 5
  penstock-lab worker --device cuda --models models --only-worker --functions 42`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := positive("--rounds", o.Rounds); err != nil {
				return err
			}
			if err := positive("--functions", o.Functions); err != nil {
				return err
			}
			setup, err := flags.options()
			if err != nil {
				return err
			}
			o.Setup = setup
			r, err := bench.RunWorker(cmd.Context(), o)
			if err != nil {
				return err
			}
			return print(r, workerRows(r))
		},
	}
	flags.register(cmd, configs.DeviceCPU)
	cmd.Flags().BoolVar(&o.OnlyWorker, "only-worker", false, "leave out own processes; a GPU serves at most 48")
	cmd.Flags().StringSliceVar(&o.ModelNames, "model", []string{"face", "fashion", "face", "fashion", "detect"}, "models of the functions, in turn")
	cmd.Flags().IntVar(&o.Functions, "functions", 40, "how many functions")
	cmd.Flags().IntVar(&o.Rounds, "rounds", 3, "how many runs of each way")
	return cmd
}

func workerRows(r bench.Worker) []table.Row {
	row := func(name, unit string, of func(*bench.WorkerWay) []float64) table.Row {
		cell := func(way *bench.WorkerWay) string { return spreadCell(of(way), unit) }
		return table.Row{name, cell(&r.Worker), cell(&r.Own)}
	}
	return []table.Row{
		{fmt.Sprintf("%d functions", r.Functions), "worker", "own processes"},
		row("processes", "", func(w *bench.WorkerWay) []float64 { return w.Processes }),
		row(memoryName(r.Device), " MiB", func(w *bench.WorkerWay) []float64 { return w.MemoryMiB }),
		row("start", " s", func(w *bench.WorkerWay) []float64 { return w.Start }),
		row("restart", " s", func(w *bench.WorkerWay) []float64 { return w.Restart }),
		{"memory ratio", orNone(r.Ratio), ""},
	}
}
