// Package demo is `penstock demo`: a node with the built-in models and traffic that shows what it does.
package demo

import (
	"context"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"time"

	"github.com/penstock/penstock/cmd/penstock/load"
	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/control/cputime"
	"github.com/penstock/penstock/loadgen"
	"github.com/penstock/penstock/loadgen/traffic"
	"github.com/penstock/penstock/node"
	"github.com/penstock/penstock/orchestrator"
	"github.com/penstock/penstock/shm/cpuset"
)

// Options are the flags of `penstock demo`.
type Options struct {
	Device    string
	Functions string // a configuration file; empty: the built-in one
	Duration  time.Duration
	Out       string // folder for the log and the pictures
	Output    string // table or json
	Version   string // of this program
}

// config is the configuration of a node.
func (o *Options) config() (string, error) {
	text := configs.BuiltIn()
	if o.Functions != "" {
		var err error
		if text, err = os.ReadFile(o.Functions); err != nil {
			return "", fmt.Errorf("read configuration: %w", err)
		}
	}
	return fmt.Sprintf("device: %s\n%s\n", o.Device, text), nil
}

// The demo's traffic, in requests per second. In the second half, the overloaded function
// receives overload times the rate that the device can serve.
var overloadRates = []struct {
	function  string
	perSecond int
}{{"face", 40}, {"fashion", 400}, {"detect", 3}}

const (
	overloaded = "detect"
	overload   = 2
)

// Overload sends requests that the node can answer, then overloads one function.
func Overload(ctx context.Context, o Options) error {
	if o.Duration < 4*time.Second {
		return fmt.Errorf("--duration %s: want at least 4s, 2s for each half", o.Duration)
	}
	log, err := openLog(o.Out)
	if err != nil {
		return err
	}
	defer log.Close()

	fmt.Fprintf(os.Stderr, "penstock up (log: %s)\n", log.Name())
	machine, err := cputime.NewForeign()
	if err != nil {
		return err
	}
	nd, err := startOwn(ctx, o, log)
	if err != nil {
		return err
	}
	defer nd.Kill()

	rates := map[string]string{}
	for _, r := range overloadRates {
		rates[r.function] = fmt.Sprint(r.perSecond)
	}
	steady, err := o.part(ctx, nd, "first half", rates, o.Functions == "")
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
	if o.Output == "table" {
		printOverload(os.Stdout, steady, busy, foreign)
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
	own, _ := orchestrator.IFCPUs(0, orchestrator.Near{})
	return func() { cpuset.Pin(all) }, cpuset.Pin(own)
}

// part sends requests for half of the duration. check compares the answers, and draws them.
func (o *Options) part(ctx context.Context, nd *node.Node, what string, rates map[string]string, check bool) (*loadgen.Report, error) {
	fmt.Fprintf(os.Stderr, "%s: penstock load --duration %s", what, o.Duration/2)
	for _, r := range overloadRates {
		fmt.Fprintf(os.Stderr, " --rate %s=%s", r.function, rates[r.function])
	}
	fmt.Fprintln(os.Stderr)

	unpin, err := pinToManager()
	if err != nil {
		return nil, err
	}
	defer unpin()
	l := load.Options{
		Status: func(ctx context.Context) (control.Status, error) { return control.ReadStatus(ctx, nd.Dir) },
		Traffic: traffic.Options{
			Spec: loadgen.Spec{Duration: o.Duration / 2, Warmup: time.Second, Seed: 1}, Rates: rates, Arrivals: "poisson", Streams: 1,
		},
		Check: check, FiguresOnly: !check, Output: o.Output,
	}
	if check {
		l.Draw = o.Out
	}
	return load.Run(ctx, l)
}

// openLog opens the node's log in the demo's folder, which it makes if needed.
func openLog(out string) (*os.File, error) {
	if err := os.MkdirAll(out, 0o755); err != nil {
		return nil, fmt.Errorf("make folder: %w", err)
	}
	log, err := os.Create(filepath.Join(out, "penstock.log"))
	if err != nil {
		return nil, fmt.Errorf("make log: %w", err)
	}
	return log, nil
}

// maxStart is how long a node may take to start.
const maxStart = 3 * time.Minute

// startOwn starts a node with the demo's configuration.
func startOwn(ctx context.Context, o Options, log *os.File) (*node.Node, error) {
	config, err := o.config()
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find own binary: %w", err)
	}
	starting, cancel := context.WithTimeoutCause(ctx, maxStart, fmt.Errorf("a function had no ready process after %v", maxStart))
	defer cancel()
	return node.Start(starting, node.Options{Binary: self, Config: config, Log: log})
}

// maxRate is the max rate that the load generator can send of the overloaded function's
// pictures.
const maxRate = 500

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
	return min(maxRate, math.Ceil(overload*capacity)), capacity, nil
}

// printOverload prints the demo's results, and how much of the CPUs other programs used.
func printOverload(w io.Writer, steady, busy *loadgen.Report, foreign float64) {
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
	hint := ""
	if foreign > cputime.Quiet {
		hint = "; the figures are better on an idle machine"
	}
	fmt.Fprintf(w, "Other programs used %.0f %% of the CPUs%s.\n", 100*foreign, hint)
}
