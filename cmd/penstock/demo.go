package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/internal/testbed"
	"github.com/penstock/penstock/loadgen"
	"github.com/penstock/penstock/node"
	"github.com/penstock/penstock/orchestrator"
	"github.com/penstock/penstock/shm/cpuset"
)

func demoCommand() *cobra.Command {
	var duration time.Duration
	var out, format string
	var camera, open bool
	var phone string
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Run three models on real pictures, then overload one of them",
		Long: `Runs ` + "`penstock up`" + ` with the built-in configuration and ` + "`penstock load`" + ` against it.
In the second half one function receives twice the requests that it can answer, and the
others still meet their objectives.

With --camera it runs until Ctrl-C, with a page at http://127.0.0.1:9651 that answers the camera of
your browser. A button gives another function ten times its load, another kills the process that
serves the camera.`,
		Example: `  penstock demo --duration 30s --out out
  penstock demo --camera --open
  penstock demo --camera --phone`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if open && !camera {
				return errors.New("--open opens the page of --camera; want both")
			}
			if phone != "" && !camera {
				return errors.New("--phone serves the page of --camera; want both")
			}
			if camera {
				return demoCamera(cmd.Context(), out, phone, open)
			}
			if duration < 4*time.Second {
				return fmt.Errorf("--duration %s: want at least 4s, 2s for each half", duration)
			}
			return demo(cmd.Context(), duration, out, format)
		},
	}
	cmd.Flags().DurationVar(&duration, "duration", 30*time.Second, "measured time")
	cmd.Flags().StringVar(&out, "out", "out", "folder for the log, and for the pictures with the results drawn on them")
	cmd.Flags().BoolVar(&camera, "camera", false, "show the page, until Ctrl-C")
	cmd.Flags().BoolVar(&open, "open", false, "open the page in a browser")
	cmd.Flags().StringVar(&phone, "phone", "", phoneUsage)
	cmd.Flags().Lookup("phone").NoOptDefVal = phoneAuto
	cmd.Flags().StringVarP(&format, "output", "o", "table", "table, json or csv")
	return cmd
}

// The demo's traffic, in requests per second. In the second half, the overloaded function
// receives overload times the rate that the device can serve.
var demoRates = []struct {
	function  string
	perSecond int
}{{"face", 40}, {"fashion", 400}, {"detect", 3}}

const (
	overloaded = "detect"
	overload   = 2
	// quietMachine is the part of the CPUs that other programs may use before the demo warns.
	quietMachine = 0.05
)

func demo(ctx context.Context, duration time.Duration, out, format string) error {
	log, err := openDemoLog(out)
	if err != nil {
		return err
	}
	defer log.Close()

	fmt.Fprintf(os.Stderr, "penstock up (log: %s)\n", log.Name())
	machine, err := testbed.NewForeignTime()
	if err != nil {
		return err
	}
	nd, err := startDemoNode(ctx, log)
	if err != nil {
		return err
	}
	defer nd.Kill()
	// The load runs on the manager's CPUs, because the demo shows the CPUs of the inference
	// functions.
	own, _ := orchestrator.IFCPUs(0)
	if err := cpuset.Pin(own); err != nil {
		return err
	}

	rates := map[string]string{}
	for _, r := range demoRates {
		rates[r.function] = fmt.Sprint(r.perSecond)
	}
	half := func(what string, warmup time.Duration, check bool) (*loadgen.Report, error) {
		fmt.Fprintf(os.Stderr, "%s: penstock load --duration %s", what, duration/2)
		for _, r := range demoRates {
			fmt.Fprintf(os.Stderr, " --rate %s=%s", r.function, rates[r.function])
		}
		fmt.Fprintln(os.Stderr)
		o := loadOptions{
			node: nodeOptions{runtimeDir: nd.Dir}, rates: rates, duration: duration / 2, warmup: warmup,
			arrivals: "poisson", streams: 1, seed: 1, check: check, figuresOnly: !check, output: format, search: searchOptions{precision: defaultPrecision},
		}
		if check {
			o.draw = out
		}
		return runLoad(ctx, o)
	}
	steady, err := half("first half", time.Second, true)
	if err != nil {
		return err
	}
	if rates[overloaded], err = overloadRate(nd); err != nil {
		return err
	}
	busy, err := half(fmt.Sprintf("second half: %s receives %d times the requests that it can answer", overloaded, overload), time.Second, false)
	if err != nil {
		return err
	}
	foreign, err := machine.End(nd)
	if err != nil {
		return err
	}
	if format == "table" {
		printDemo(os.Stdout, steady, busy, foreign)
	}
	return nil
}

// openDemoLog opens the node's log in the demo's folder, which it makes if needed.
func openDemoLog(out string) (*os.File, error) {
	if err := os.MkdirAll(out, 0o755); err != nil {
		return nil, fmt.Errorf("make folder: %w", err)
	}
	log, err := os.Create(filepath.Join(out, "penstock.log"))
	if err != nil {
		return nil, fmt.Errorf("make log: %w", err)
	}
	return log, nil
}

// startDemoNode starts a node with the built-in configuration.
func startDemoNode(ctx context.Context, log *os.File) (*node.Node, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find own binary: %w", err)
	}
	starting, cancel := context.WithTimeoutCause(ctx, time.Minute, errors.New("a function had no ready process after a minute"))
	defer cancel()
	return node.Start(starting, node.Options{Binary: self, Config: string(configs.BuiltIn()), Log: log})
}

// overloadRate is the rate that needs overload times the device's capacity.
func overloadRate(nd *node.Node) (string, error) {
	f, err := nd.Function(overloaded)
	if err != nil {
		return "", err
	}
	rate := 500.0 // as many as the load generator can send
	if cost := f.Guarantee.CostMillis; cost > 0 {
		rate = min(rate, math.Ceil(1000*overload/cost))
	}
	return fmt.Sprint(rate), nil
}

// printDemo prints the demo's results.
func printDemo(w io.Writer, steady, busy *loadgen.Report, foreign float64) {
	for _, after := range busy.Functions {
		for _, before := range steady.Functions {
			switch {
			case before.Name != after.Name:
			case after.Name == overloaded:
				fmt.Fprintf(w, "%s: %.1f %% of %.0f requests/s in time; overloaded: %.1f of %.0f requests/s in time\n",
					after.Name, before.WithinSLO, before.OfferedRPS, after.GoodputRPS, after.OfferedRPS)
			default:
				fmt.Fprintf(w, "%s: %.1f %% of its requests in time; next to the overloaded function: %.1f %%\n", after.Name, before.WithinSLO, after.WithinSLO)
			}
		}
	}
	if foreign > quietMachine {
		fmt.Fprintf(w, "Other programs used %.0f %% of the CPUs; the figures are better on an idle machine.\n", 100*foreign)
	} else {
		fmt.Fprintf(w, "Other programs used %.0f %% of the CPUs.\n", 100*foreign)
	}
}
