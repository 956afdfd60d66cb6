package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/penstock/penstock/cmd/penstock/load"
	"github.com/penstock/penstock/control"
)

func loadCommand() *cobra.Command {
	var o load.Options
	var node nodeChoice
	var capture string
	var speed float64
	cmd := &cobra.Command{
		Use:   "load",
		Short: "Send pictures to a running node (open loop), and report the answers",
		Long: `Sends pictures to the functions of a running node without waiting for earlier answers (open
loop). Each latency counts from the scheduled time of the request. Answers are compared with
the same model run in this process.

In the table each request is counted once: sent = in time + too late (ok after the objective)
+ late (not run, because it could no longer be in time) + dropped (not sent, for that reason)
+ busy + incomplete + refused + failed + lost (accepted and never answered) + unanswered. Columns
of zeros are left out. -o json has all figures.

The exit status is 1 if a request was lost or not answered, or an answer was wrong.

With --capture the command plays the UDP datagrams of a pcap or pcapng file instead, at their
recorded times. Each goes to the function of the node at the port to which it was recorded.`,
		Example: `  penstock load --rate face=60 --rate fashion=400 --duration 30s
  penstock load --rate detect=6 --arrivals 30fps --streams 2 -o json
  penstock load --schedule rates.csv --draw out
  penstock load --rate face=60 -o json | jq -e 'all(.functions[]; .within_slo >= 99)'
  penstock load --capture cameras.pcap --speed 2`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if err := captureAlone(cmd); err != nil {
				return err
			}
			if o.Status, err = node.statusReader(); err != nil {
				return err
			}
			if capture == "" {
				_, err = load.Run(cmd.Context(), o)
				return err
			}
			now, err := o.Status(cmd.Context())
			if err != nil {
				return err
			}
			return load.PlayCapture(cmd.Context(), cmd.OutOrStdout(), now, capture, speed, o.Output)
		},
	}
	f, t := cmd.Flags(), &o.Traffic
	f.StringVar(&node.dir, "runtime-dir", "", nodeUsage)
	f.StringVar(&node.http, "http", "", "address of the node's status page, like 127.0.0.1:9650; for a node of another user or machine")
	f.StringToStringVar(&t.Rates, "rate", nil, "function=requests per second; may be repeated; 10 for every function if left out")
	f.DurationVar(&t.Spec.Duration, "duration", 30*time.Second, "measured time")
	f.DurationVar(&t.Spec.Warmup, "warmup", time.Second, "warm-up time before the measured time")
	f.StringVar(&t.Arrivals, "arrivals", "poisson", "poisson, constant, 30fps (each stream at a random phase), bursts:16")
	f.IntVar(&t.Streams, "streams", 1, "clients per function, each with its own socket")
	f.StringVar(&t.Schedule, "schedule", "", "file with changes of the rates over time (CSV: time,function,rate)")
	f.Uint64Var(&t.Spec.Seed, "seed", 1, "seed of the arrivals")
	f.StringVar(&t.Pictures, "pictures", "", "folder of PNG and JPEG pictures to send; the built-in ones if left out")
	f.StringSliceVar(&t.Models, "models", nil, "folders of cards to check answers with, besides the built-in ones")
	f.StringVar(&o.Draw, "draw", "", "folder for the pictures with the results drawn on them")
	f.StringVar(&o.KeyFile, "key", "", "file with a key of the functions; the node's own file if left out, which another machine does not have")
	f.BoolVar(&o.Check, "check", true, "compare answers with the same model run in this process")
	f.StringVar(&capture, "capture", "", "play the UDP datagrams of this file (pcap or pcapng) instead of sending pictures")
	f.Float64Var(&speed, "speed", 1, "with --capture: recorded seconds per second")
	f.DurationVar(&t.Deadline, "deadline", 0, "deadline sent with each request")
	f.Uint8Var(&t.Priority, "priority", 0, "priority sent with each request")
	outputFlag(cmd, &o.Output, "table", "json")
	return cmd
}

// captureAlone refuses flags that say what to send and when together with --capture.
func captureAlone(cmd *cobra.Command) (err error) {
	if !cmd.Flags().Changed("capture") {
		return nil
	}
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if !slices.Contains([]string{"capture", "speed", "http", "runtime-dir", "output"}, f.Name) {
			err = fmt.Errorf("--capture and --%s: want one of them; a capture has its own times and contents", f.Name)
		}
	})
	return err
}

// nodeChoice finds the node to send to.
type nodeChoice struct {
	dir  string // runtime folder; empty: that of the only node of this user
	http string // address of the status page, instead of dir
}

// statusReader returns a function that reads the status of the node.
func (n *nodeChoice) statusReader() (func(context.Context) (control.Status, error), error) {
	if n.http == "" {
		dir, err := nodeFolder(n.dir)
		return func(ctx context.Context) (control.Status, error) { return control.ReadStatus(ctx, dir) }, err
	}
	if n.dir != "" {
		return nil, errors.New("--http and --runtime-dir: want one of them; both choose the node")
	}
	return func(ctx context.Context) (control.Status, error) {
		now, err := control.ReadStatusAt(ctx, n.http)
		if err != nil {
			err = fmt.Errorf("%w; start a node with `penstock up`, or name the address of its status page with --http", err)
		}
		return now, err
	}, nil
}
