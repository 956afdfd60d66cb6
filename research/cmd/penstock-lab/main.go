// Command penstock-lab measures Penstock: its parts against floors of the same run, the
// paper's evaluation, and the planner's policies against others. `make -C research lab` builds it in the
// folder of penstock, the binary that runs its nodes.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/penstock/penstock/internal/testing/null"
	"github.com/penstock/penstock/internal/testing/slabsim"
	"github.com/penstock/penstock/libml/framework"
	"github.com/penstock/penstock/libml/frameworks"
	"github.com/penstock/penstock/research/bench"
	"github.com/penstock/penstock/research/floor"
)

// version is set by the Makefile.
var version = "unknown"

func main() {
	floor.MaybeChild()
	frameworks.BuiltIn["null"] = func() framework.Framework { return null.New() }
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := root().ExecuteContext(ctx)
	var status exitStatus
	switch {
	case err == nil:
	case errors.As(err, &status):
		os.Exit(int(status))
	default:
		fmt.Fprintln(os.Stderr, "penstock-lab:", err)
		os.Exit(1)
	}
}

// exitStatus ends the program with a status whose reason was already printed.
type exitStatus int

func (s exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

func isTerminal(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }

// binaryVariable names the penstock binary if it is not in the folder of this binary.
const binaryVariable = "PENSTOCK_BINARY"

// programs returns the penstock binary, which runs the nodes, and this binary.
func programs() (penstock, lab string, err error) {
	if lab, err = os.Executable(); err != nil {
		return "", "", fmt.Errorf("find own binary: %w", err)
	}
	if penstock = os.Getenv(binaryVariable); penstock == "" {
		penstock = filepath.Join(filepath.Dir(lab), "penstock")
	}
	if _, err := os.Stat(penstock); err != nil {
		return "", "", fmt.Errorf("find penstock: %w; `make -C research lab` builds both, and %s names another", err, binaryVariable)
	}
	return penstock, lab, nil
}

func root() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "penstock-lab",
		Short: "Measure the parts, each beside a floor of the same run",
		Example: `  penstock-lab ingest
  penstock-lab dispatch -o json
  penstock-lab slab --slo 50ms
  penstock-lab simulate
  penstock-lab lanes
  penstock-lab worker
  penstock-lab residency
  penstock-lab loading
  penstock-lab guest
  penstock-lab turns
  penstock-lab gather
  penstock-lab devices --devices cuda:0,cuda:1
  penstock-lab swap -n 1000
  penstock-lab plan
  penstock-lab overhead --device cuda --models models`,
		Args: cobra.NoArgs, Version: version, SilenceUsage: true, SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.SetVersionTemplate("penstock-lab {{.Version}}\n")
	cmd.CompletionOptions.HiddenDefaultCmd = true
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
			return json.NewEncoder(os.Stdout).Encode(report)
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
		Example: `  penstock-lab dispatch -n 5000`, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if dispatches < 1 {
				return fmt.Errorf("-n %d: want at least 1", dispatches)
			}
			penstock, _, err := programs()
			if err != nil {
				return err
			}
			r, err := bench.RunDispatch(cmd.Context(), penstock, dispatches)
			if err != nil {
				return err
			}
			return print(r, []table.Row{
				{"last fragment received -> batch starts", micros(r.CompleteToBatch)},
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
		Example: `  penstock-lab slab --slo 50ms -o json`, Args: cobra.NoArgs,
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
		limitCommand(print), startCommand(print), faultCommand(print), planCommand(print), evaluateCommand(print), readyCommand(print),
		weightsCommand(print), devicesCommand(print), instanceCommand(), sharingCommand(print), simulateCommand(print), lanesCommand(print), workerCommand(print), residencyCommand(print), loadingCommand(print), guestLabCommand(print), burnCommand(),
		turnsCommand(print))
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
