package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/node"
	"github.com/penstock/penstock/orchestrator"
	"github.com/penstock/penstock/shm/cpuset"
)

func demoCommand() *cobra.Command {
	var duration time.Duration
	var out, format string
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Three real models answer real pictures while shares move under them",
		Long: `Runs ` + "`penstock up`" + ` with the built-in configuration and ` + "`penstock load`" + ` against it.
Half way the rates change, so that shares are retuned and shadows take over.`,
		Example: `  penstock demo --duration 30s --out out`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if duration < 4*time.Second {
				return fmt.Errorf("--duration %s: want at least 4s, or there is no time for a share to change", duration)
			}
			return demo(cmd.Context(), duration, out, format)
		},
	}
	cmd.Flags().DurationVar(&duration, "duration", 30*time.Second, "measured time")
	cmd.Flags().StringVar(&out, "out", "out", "folder for the log and for the pictures with what was found")
	cmd.Flags().StringVarP(&format, "output", "o", "table", "table, json or csv")
	return cmd
}

// The demo's traffic, in requests a second, before and after half time: faces
// become many, clothes few.
var demoRates = []struct {
	function      string
	before, after int
}{
	{"face", 40, 120},
	{"fashion", 400, 150},
	{"detect", 3, 2},
}

func demo(ctx context.Context, duration time.Duration, out, format string) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find own binary: %w", err)
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return fmt.Errorf("make folder: %w", err)
	}
	logPath := filepath.Join(out, "penstock.log")
	log, err := os.Create(logPath)
	if err != nil {
		return fmt.Errorf("make log: %w", err)
	}
	defer log.Close()

	fmt.Fprintf(os.Stderr, "penstock up (its log: %s)\n", logPath)
	starting, cancel := context.WithTimeoutCause(ctx, time.Minute, fmt.Errorf("no process of some function was ready within a minute"))
	defer cancel()
	nd, err := node.Start(starting, node.Options{Binary: self, Config: string(configs.BuiltIn()), Log: log})
	if err != nil {
		return err
	}
	defer nd.Kill()
	// The load shares the manager's CPUs: those of the inference functions are what
	// is shown.
	own, _ := orchestrator.IFCPUs(0)
	if err := cpuset.Pin(own); err != nil {
		return err
	}

	rates := map[string]string{}
	command, schedule := "penstock load", "time,function,rate\n"
	for _, r := range demoRates {
		rates[r.function] = fmt.Sprint(r.before)
		command += fmt.Sprintf(" --rate %s=%d", r.function, r.before)
		schedule += fmt.Sprintf("%s,%s,%d\n", duration/2, r.function, r.after)
	}
	fmt.Fprintf(os.Stderr, "%s --duration %s; after %s:", command, duration, duration/2)
	for _, r := range demoRates {
		fmt.Fprintf(os.Stderr, " %s=%d", r.function, r.after)
	}
	fmt.Fprintln(os.Stderr)
	loadErr := load(ctx, loadOptions{
		http: nd.HTTP.String(), rates: rates, duration: duration, warmup: time.Second,
		arrivals: "poisson", streams: 1, scheduleText: schedule, seed: 1, draw: out, check: true, output: format,
		precision: defaultPrecision,
	})
	if err := nd.Stop(); err != nil && loadErr == nil {
		return err
	}
	return loadErr
}
