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
	"github.com/penstock/penstock/control/cputime"
	"github.com/penstock/penstock/loadgen"
	"github.com/penstock/penstock/node"
	"github.com/penstock/penstock/orchestrator"
	"github.com/penstock/penstock/shm/cpuset"
)

func demoCommand() *cobra.Command {
	var camera, lanes, open bool
	o := demoOptions{}
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Run three models on real pictures, then overload one of them",
		Long: `Runs ` + "`penstock up`" + ` with the built-in configuration and ` + "`penstock load`" + ` against it.
In the second half one function receives twice the requests that it can answer, and the
others still meet their objectives.

With --device cuda it runs on a GPU.

With --camera it runs until Ctrl-C, with a page at http://127.0.0.1:9651 that answers the camera of
your browser. A button gives another function ten times its load, another kills the process that
serves the camera.

With --lanes it runs 42 functions in one worker whose memory holds a third of their models
(docs/lanes.md). One function moves to its own process and back. The exit status is 1 if a request
was lost or an answer differs from that of the same model run in this process.`,
		Example: `  penstock demo --duration 30s --out out
  penstock demo --device cuda
  penstock demo --lanes
  penstock demo --camera --open`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if open && !camera {
				return errors.New("--open opens the page of --camera; want both")
			}
			switch {
			case camera && lanes:
				return errors.New("--camera and --lanes: want one of them")
			case camera:
				return demoCamera(cmd.Context(), o, open)
			case lanes:
				if !cmd.Flags().Changed("duration") {
					o.duration = lanesDuration
				}
				return demoLanes(cmd.Context(), o)
			}
			if o.duration < 4*time.Second {
				return fmt.Errorf("--duration %s: want at least 4s, 2s for each half", o.duration)
			}
			return demo(cmd.Context(), o)
		},
	}
	cmd.Flags().StringVar(&o.device, "device", configs.DeviceCPU, "cpu, cuda, cuda:N or a GPU's UUID")
	cmd.Flags().StringVar(&o.functions, "functions", "", "configuration in place of the built-in one, with functions of the same names")
	cmd.Flags().MarkHidden("functions") // for tests: the built-in models need ONNX Runtime on the device
	cmd.Flags().DurationVar(&o.duration, "duration", 30*time.Second, "measured time of both halves; 1m0s with --lanes")
	cmd.Flags().StringVar(&o.out, "out", "out", "folder for the log, and for the pictures with the results drawn on them")
	cmd.Flags().BoolVar(&camera, "camera", false, "show the page, until Ctrl-C")
	cmd.Flags().BoolVar(&lanes, "lanes", false, "run many models in one process")
	cmd.Flags().BoolVar(&open, "open", false, "open the page in a browser")
	cmd.Flags().StringVarP(&o.format, "output", "o", "table", "table, json or csv")
	return cmd
}

// demoOptions are the flags of `penstock demo`.
type demoOptions struct {
	device      string
	functions   string // a configuration file; empty: the built-in one
	duration    time.Duration
	out, format string
}

// config is the configuration of a node.
func (o *demoOptions) config() (string, error) {
	text := configs.BuiltIn()
	if o.functions != "" {
		var err error
		if text, err = os.ReadFile(o.functions); err != nil {
			return "", fmt.Errorf("read configuration: %w", err)
		}
	}
	return fmt.Sprintf("device: %s\n%s\n", o.device, text), nil
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
)

func demo(ctx context.Context, o demoOptions) error {
	log, err := openDemoLog(o.out)
	if err != nil {
		return err
	}
	defer log.Close()

	fmt.Fprintf(os.Stderr, "penstock up (log: %s)\n", log.Name())
	machine, err := cputime.NewForeign()
	if err != nil {
		return err
	}
	nd, err := startDemoNode(ctx, o, log)
	if err != nil {
		return err
	}
	defer nd.Kill()

	rates := map[string]string{}
	for _, r := range demoRates {
		rates[r.function] = fmt.Sprint(r.perSecond)
	}
	steady, err := o.part(ctx, nd, "first half", rates, o.functions == "")
	if err != nil {
		return err
	}
	rate, capacity, err := overloadRate(nd)
	if err != nil {
		return err
	}
	what := fmt.Sprintf("second half: %s receives %d times the requests that it can answer", overloaded, overload)
	if rate < overload*capacity {
		what = fmt.Sprintf("second half: %s receives as many requests as this program sends", overloaded)
	}
	rates[overloaded] = fmt.Sprint(rate)
	busy, err := o.part(ctx, nd, what, rates, false)
	if err != nil {
		return err
	}
	foreign, err := machine.Part()
	if err != nil {
		return err
	}
	if o.format == "table" {
		printDemo(os.Stdout, steady, busy, foreign)
	}
	return nil
}

// pinToManager keeps this process on the manager's CPUs, because the demo shows the CPUs of the
// inference functions. The caller must unpin it before it starts a node, which inherits the CPUs.
func pinToManager() (unpin func(), err error) {
	all, err := cpuset.Allowed()
	if err != nil {
		return nil, err
	}
	own, _ := orchestrator.IFCPUs(0)
	return func() { cpuset.Pin(all) }, cpuset.Pin(own)
}

// part sends requests for half of the duration. check compares the answers, and draws them.
func (o *demoOptions) part(ctx context.Context, nd *node.Node, what string, rates map[string]string, check bool) (*loadgen.Report, error) {
	fmt.Fprintf(os.Stderr, "%s: penstock load --duration %s", what, o.duration/2)
	for _, r := range demoRates {
		fmt.Fprintf(os.Stderr, " --rate %s=%s", r.function, rates[r.function])
	}
	fmt.Fprintln(os.Stderr)

	unpin, err := pinToManager()
	if err != nil {
		return nil, err
	}
	defer unpin()
	l := loadOptions{
		node: nodeOptions{runtimeDir: nd.Dir}, rates: rates, duration: o.duration / 2, warmup: time.Second,
		arrivals: "poisson", streams: 1, seed: 1, check: check, figuresOnly: !check, output: o.format, search: searchOptions{precision: defaultPrecision},
	}
	if check {
		l.draw = o.out
	}
	return runLoad(ctx, l)
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

// startDemoNode starts a node with the demo's configuration.
func startDemoNode(ctx context.Context, o demoOptions, log *os.File) (*node.Node, error) {
	config, err := o.config()
	if err != nil {
		return nil, err
	}
	return startNode(ctx, config, log)
}

// maxDemoStart is how long a node may take to start. 42 functions need several seconds on an idle
// machine.
const maxDemoStart = 3 * time.Minute

// startNode starts a node with a configuration.
func startNode(ctx context.Context, config string, log *os.File) (*node.Node, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find own binary: %w", err)
	}
	starting, cancel := context.WithTimeoutCause(ctx, maxDemoStart, fmt.Errorf("a function had no ready process after %v", maxDemoStart))
	defer cancel()
	return node.Start(starting, node.Options{Binary: self, Config: config, Log: log})
}

// maxDemoRate is the max rate that the load generator can send of the overloaded function's
// pictures.
const maxDemoRate = 500

// overloadRate is the rate that needs overload times the device's capacity, as far as the load
// generator can send it. capacity is in requests per second; it is infinite if it is not known.
func overloadRate(nd *node.Node) (rate, capacity float64, err error) {
	f, err := nd.Function(overloaded)
	if err != nil {
		return 0, 0, err
	}
	capacity = math.Inf(1)
	if f.Guarantee != nil && f.Guarantee.CostMillis > 0 {
		capacity = 1000 / f.Guarantee.CostMillis
	}
	return min(maxDemoRate, math.Ceil(overload*capacity)), capacity, nil
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
	printForeign(w, foreign)
}

// printForeign prints how much of the CPUs other programs used during a demo.
func printForeign(w io.Writer, foreign float64) {
	hint := ""
	if foreign > cputime.Quiet {
		hint = "; the figures are better on an idle machine"
	}
	fmt.Fprintf(w, "Other programs used %.0f %% of the CPUs%s.\n", 100*foreign, hint)
}
