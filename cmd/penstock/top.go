package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/penstock/penstock/cmd/penstock/functions"
	"github.com/penstock/penstock/control"
)

// topWindow is the time that the numbers of `penstock top` are of. The page's tiles use the same.
const topWindow = 5 * time.Second

// The limits of top's interval. The manager's histograms are read each time.
const minTopInterval, maxTopInterval = 100 * time.Millisecond, time.Minute

func topCommand() *cobra.Command {
	var dir, output string
	var interval time.Duration
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show the functions of the running node and what they do now",
		Long: `Shows each function's 99th percentile next to its objective, its requests per second, and its
use of the device, of the last five seconds. Functions with a problem come first and have a "!";
the lines below the table have the reasons. Ctrl-C quits.

"per second" counts requests that ended, with any result, and "not ok" those of them that were
late, busy or failed. "lost" counts since the function was added; it must be 0. "guarantee",
"use" and "demoted" are those of "penstock if list". "queue" is the mean wait for a batch, "in
flight" the requests that wait or run now, "batch" the mean size of batches. A narrow terminal
shows fewer columns.

If the output is no terminal, or with -o json, it measures for --interval, prints once and ends.
"penstock if list -o json" has the counters.`,
		Example: `  penstock top
  penstock top --interval 10s > now.txt
  penstock top -o json | jq '.functions[] | {name, p99_ms, slo_ms}'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if interval < minTopInterval || interval > maxTopInterval {
				return fmt.Errorf("--interval is %s, want %s to %s", interval, minTopInterval, maxTopInterval)
			}
			folder, err := nodeFolder(dir)
			if err != nil {
				return err
			}
			read := func(ctx context.Context) (control.Sample, error) { return control.ReadSample(ctx, folder) }
			if output == "table" && isTerminal(os.Stdout) {
				terminal := functions.Terminal{Writer: os.Stdout, Size: func() (width, height int) {
					width, height, _ = term.GetSize(int(os.Stdout.Fd())) // 0 if it is not known
					return width, height
				}}
				return functions.Watch(cmd.Context(), terminal, read, interval, max(topWindow, interval))
			}

			live, err := measureLive(cmd.Context(), read, interval)
			if err != nil {
				return err
			}
			if output == "json" {
				return writeJSON(cmd.OutOrStdout(), live)
			}
			for _, line := range live.Lines(0) {
				fmt.Fprintln(cmd.OutOrStdout(), line)
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&dir, "runtime-dir", "", nodeUsage)
	cmd.Flags().DurationVarP(&interval, "interval", "i", time.Second, "time between two updates, or to measure before printing once")
	outputFlag(cmd, &output, "table", "json")
	return cmd
}

func writeJSON(to io.Writer, value any) error {
	e := json.NewEncoder(to)
	e.SetIndent("", "  ")
	return e.Encode(value)
}

// measureLive compares two samples.
func measureLive(ctx context.Context, read func(context.Context) (control.Sample, error), interval time.Duration) (*functions.Live, error) {
	before, err := read(ctx)
	if err != nil {
		return nil, err
	}
	select {
	case <-time.After(interval):
	case <-ctx.Done():
		return nil, fmt.Errorf("interrupted: %w", context.Cause(ctx))
	}
	after, err := read(ctx)
	if err != nil {
		return nil, err
	}
	if !before.Status.Started.Equal(after.Status.Started) {
		return nil, errors.New("measure node: its manager was restarted; try again")
	}
	return functions.NewLive(&before, &after), nil
}
