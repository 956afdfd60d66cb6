package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/libml"
	"github.com/penstock/penstock/libml/frameworks"
	"github.com/penstock/penstock/loadgen"
	"github.com/penstock/penstock/loadgen/capture"
	"github.com/penstock/penstock/loadgen/status"
	"github.com/penstock/penstock/loadgen/traffic"
	"github.com/penstock/penstock/models"
)

// loadOptions are the flags of `penstock load`; the demo fills them in itself.
type loadOptions struct {
	node     nodeOptions
	rates    map[string]string
	duration time.Duration
	warmup   time.Duration
	arrivals string
	streams  int
	schedule string
	seed     uint64
	pictures string
	models   []string
	draw     string
	check    bool
	search   searchOptions
	deadline time.Duration
	priority uint8
	output   string
	require  []string
	required []loadgen.Requirement // parsed from require by checkFlags
	capture  captureOptions
	// figuresOnly leaves out what the models found in the pictures.
	figuresOnly bool
}

// nodeOptions find the node.
type nodeOptions struct {
	runtimeDir string
	http       string // instead of runtimeDir
}

// captureOptions are those of a capture that is played instead of pictures.
type captureOptions struct {
	file  string // empty: none
	speed float64
}

// searchOptions are those of a search for the highest rate.
type searchOptions struct {
	function  string // empty: no search
	precision float64
}

func loadCommand() *cobra.Command {
	o := loadOptions{}
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

The exit status is 1 if a request was lost or not answered, an answer was wrong, or a bound of
--require was not met.

--require sets a bound for each function with traffic, or for one (face:p99=25ms):
  within=99%     min part of the requests answered ok within the objective
  ok=99%         min part answered ok
  answered=100%  min part answered at all, also late or busy
  accuracy=90%   min part of the labelled pictures with the right class
  goodput=50     min number of ok answers within the objective per second
  p99=25ms       max latency of the ok answers; also p50 and p99.9

With --capture the command plays the UDP datagrams of a pcap or pcapng file instead, at their
recorded times. Each goes to the function of the node at the port to which it was recorded.`,
		Example: `  penstock load --rate face=60 --rate fashion=400 --duration 30s
  penstock load --rate detect=6 --arrivals 30fps --streams 2 -o json
  penstock load --schedule rates.csv --draw out
  penstock load --rate face=60 --require within=99%,face:p99=25ms -o json || exit 1
  penstock load --capture cameras.pcap --speed 2
  penstock load --find-max-rate fashion --duration 5s`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("require") && len(o.require) == 0 {
				return errors.New("--require is empty; want [FUNCTION:]METRIC=BOUND, like within=99% or face:p99=25ms, or leave it out")
			}
			if o.capture.file != "" {
				return playCapture(cmd, o)
			}
			return load(cmd.Context(), o)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.node.runtimeDir, "runtime-dir", "", nodeUsage)
	f.StringVar(&o.node.http, "http", "", "address of the node's status page, like 127.0.0.1:9650; for a node of another user or machine")
	f.StringToStringVar(&o.rates, "rate", nil, "function=requests per second; may be repeated; 10 for every function if left out")
	f.DurationVar(&o.duration, "duration", 30*time.Second, "measured time")
	f.DurationVar(&o.warmup, "warmup", time.Second, "warm-up time before the measured time")
	f.StringVar(&o.arrivals, "arrivals", "poisson", "poisson, constant, 30fps (each stream at a random phase), bursts:16")
	f.IntVar(&o.streams, "streams", 1, "clients per function, each with its own socket")
	f.StringVar(&o.schedule, "schedule", "", "file with changes of the rates over time (CSV or YAML: time, function, rate)")
	f.Uint64Var(&o.seed, "seed", 1, "seed of the arrivals")
	f.StringVar(&o.pictures, "pictures", "", "folder of PNG and JPEG pictures to send; the built-in ones if left out")
	f.StringSliceVar(&o.models, "models", nil, "folders of cards to check answers with, besides the built-in ones")
	f.StringVar(&o.draw, "draw", "", "folder for the pictures with the results drawn on them")
	f.BoolVar(&o.check, "check", true, "compare answers with the same model run in this process")
	f.StringVar(&o.search.function, "find-max-rate", "", "search for the highest rate of this function with p99 within its objective and goodput of 99 %; the others get only what --rate says")
	f.Float64Var(&o.search.precision, "precision", defaultPrecision, "precision of --find-max-rate, as a part of the rate")
	f.StringVar(&o.capture.file, "capture", "", "play the UDP datagrams of this file (pcap or pcapng) instead of sending pictures")
	f.Float64Var(&o.capture.speed, "speed", 1, "with --capture: recorded seconds per second")
	f.DurationVar(&o.deadline, "deadline", 0, "deadline sent with each request")
	f.Uint8Var(&o.priority, "priority", 0, "priority sent with each request")
	f.StringSliceVar(&o.require, "require", nil, "[function:]metric=bound, exit status 1 if missed, like within=99% or face:p99=25ms; may be repeated")
	f.StringVarP(&o.output, "output", "o", "table", "table, json or csv")
	return cmd
}

// playCapture plays a capture to the node, and prints how many answers came.
func playCapture(cmd *cobra.Command, o loadOptions) error {
	var other string
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if !slices.Contains([]string{"capture", "speed", "http", "runtime-dir", "output"}, f.Name) {
			other = f.Name
		}
	})
	switch {
	case other != "":
		return fmt.Errorf("--capture and --%s: want one of them; a capture has its own times and contents", other)
	case !(o.capture.speed > 0 && o.capture.speed <= 1e6):
		return fmt.Errorf("--speed %v: want more than 0, at most 1000000", o.capture.speed)
	case o.output != "table" && o.output != "json":
		return fmt.Errorf("--output %q: want table or json with --capture", o.output)
	}
	node, err := o.status(cmd.Context())
	if err != nil {
		return err
	}
	play := capture.Options{File: o.capture.file, Speed: o.capture.speed, Grace: captureGrace}
	for _, f := range node.Functions {
		play.Functions = append(play.Functions, capture.Function{Name: f.Name, Addr: f.ClientAddr()})
	}
	report, err := capture.Play(cmd.Context(), play)
	if err != nil {
		return err
	}
	if o.output == "json" {
		encoder := json.NewEncoder(os.Stdout)
		encoder.SetIndent("", "  ")
		return encoder.Encode(report)
	}
	return report.WriteTable(os.Stdout)
}

// captureGrace is how long playCapture waits for another answer.
const captureGrace = 2 * time.Second

// load runs the traffic and prints the report.
func load(ctx context.Context, o loadOptions) error {
	_, err := runLoad(ctx, o)
	return err
}

// runLoad runs the traffic and returns the report, nil after a search. If it returns a
// report and an error, it has already printed the faults.
func runLoad(ctx context.Context, o loadOptions) (*loadgen.Report, error) {
	if !slices.Contains([]string{"table", "json", "csv"}, o.output) {
		return nil, fmt.Errorf("output %q: want table, json or csv", o.output)
	}
	if err := o.checkFlags(); err != nil {
		return nil, err
	}
	now, err := o.status(ctx)
	if err != nil {
		return nil, err
	}
	ask, err := o.statusReader()
	if err != nil {
		return nil, err
	}
	run, err := traffic.New(now, o.traffic())
	if err != nil {
		return nil, err
	}
	defer run.Close()

	progress := loadgen.NewProgress(os.Stderr, terminalWidth())
	options := loadgen.Options{
		Dial:    loadgen.DialClient(client.Options{}),
		Status:  ask,
		Observe: progress.Show,
		Notify:  func(line string) { progress.Print("penstock load: " + line) },
	}
	if o.check {
		options.Reference = run
	}
	if o.search.function != "" {
		defer progress.End()
		return nil, findMaxRate(ctx, run.Spec, options, o)
	}
	report, err := loadgen.Run(ctx, run.Spec, options)
	progress.End()
	if err != nil {
		return nil, err
	}
	if err := report.Require(o.required); err != nil {
		return nil, err
	}
	if err := printReport(report, o.output); err != nil {
		return nil, err
	}
	if !o.figuresOnly {
		if err := o.show(run, report); err != nil {
			return nil, err
		}
	}
	if faults := append(report.Faults(), report.Missed()...); len(faults) > 0 {
		for _, fault := range faults {
			fmt.Fprintln(os.Stderr, "penstock load:", fault)
		}
		return report, exitStatus(1)
	}
	return report, nil
}

// statusReader returns a function that reads the status of the node.
func (o *loadOptions) statusReader() (func(context.Context) (control.Status, error), error) {
	if o.node.http != "" {
		return status.New(o.node.http).Status, nil
	}
	dir, err := nodeFolder(o.node.runtimeDir)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) (control.Status, error) { return control.ReadStatus(ctx, dir) }, nil
}

// status reads the status of the node once.
func (o *loadOptions) status(ctx context.Context) (control.Status, error) {
	ask, err := o.statusReader()
	if err != nil {
		return control.Status{}, err
	}
	now, err := ask(ctx)
	if err != nil && o.node.http != "" {
		err = fmt.Errorf("%w; start a node with `penstock up`, or name the address of its status page with --http", err)
	}
	return now, err
}

// checkFlags checks the flags before the command contacts the node. Its error names the
// flag.
func (o *loadOptions) checkFlags() error {
	switch {
	case o.node.http != "" && o.node.runtimeDir != "":
		return errors.New("--http and --runtime-dir: want one of them; both choose the node")
	case o.duration <= 0:
		return fmt.Errorf("--duration %v: want more than 0, like 30s", o.duration)
	case o.warmup < 0:
		return fmt.Errorf("--warmup %v: want 0 or more", o.warmup)
	case o.deadline < 0:
		return fmt.Errorf("--deadline %v: want 0 or more; 0 for none", o.deadline)
	case o.streams < 1:
		return fmt.Errorf("--streams %d: want at least 1", o.streams)
	case !(o.search.precision > 0 && o.search.precision <= 1):
		return fmt.Errorf("--precision %v: want more than 0, at most 1", o.search.precision)
	case o.search.function != "" && o.schedule != "":
		return errors.New("--find-max-rate and --schedule: want one of them; a search sets its rate itself")
	case o.search.function != "" && o.output == "csv":
		return errors.New("--find-max-rate and --output csv: a search is written as table or json")
	case o.search.function != "" && len(o.require) > 0:
		return errors.New("--find-max-rate and --require: want one of them; a search tries rates that miss")
	}
	for _, text := range o.require {
		required, err := loadgen.ParseRequirement(text)
		if err != nil {
			return fmt.Errorf("--require %w", err)
		}
		o.required = append(o.required, required)
	}
	return nil
}

func printReport(r *loadgen.Report, output string) error {
	switch output {
	case "json":
		return r.WriteJSON(os.Stdout)
	case "csv":
		return r.WriteCSV(os.Stdout)
	}
	return r.WriteTable(os.Stdout, outputWidth())
}

// outputWidth is the width of the terminal on standard output, 0 if it is no terminal.
func outputWidth() int {
	width, _, err := term.GetSize(int(os.Stdout.Fd()))
	if err != nil {
		return 0
	}
	return width
}

func terminalWidth() func() int {
	if !isTerminal(os.Stderr) {
		return nil
	}
	return func() int {
		width, _, err := term.GetSize(int(os.Stderr.Fd()))
		if err != nil {
			return 80
		}
		return width
	}
}

func findMaxRate(ctx context.Context, spec loadgen.Spec, options loadgen.Options, o loadOptions) error {
	probe, err := loadgen.ProbeFunction(spec, o.search.function, options)
	if err != nil {
		return err
	}
	start := 10.0
	for _, f := range spec.Functions {
		if f.Name == o.search.function {
			start = f.PerSecond
		}
	}
	found, err := loadgen.FindMaxRate(ctx, loadgen.Search{Start: start, Precision: o.search.precision, Confirm: 2}, probe)
	if err != nil {
		return err
	}
	if o.output == "json" {
		return found.WriteJSON(os.Stdout)
	}
	return found.WriteTable(os.Stdout)
}

// defaultPrecision is the default relative precision of --find-max-rate.
const defaultPrecision = 0.05

// traffic returns the traffic that the flags describe.
func (o *loadOptions) traffic() traffic.Options {
	t := traffic.Options{
		Spec:  loadgen.Spec{Duration: o.duration, Warmup: o.warmup, Seed: o.seed},
		Rates: o.rates, Arrivals: o.arrivals, Streams: o.streams, Schedule: o.schedule, Search: o.search.function, Require: o.required,
		Pictures: o.pictures, Models: o.models, Deadline: o.deadline, Priority: o.priority,
		Warn: func(line string) { fmt.Fprintln(os.Stderr, "penstock load:", line) },
	}
	if o.check {
		t.Reference = func(card *models.Card) (traffic.Model, error) { return libml.NewReference(card, frameworks.New) }
	}
	return t
}

// show prints what the models found in the photos, and draws it if --draw is given.
func (o *loadOptions) show(run *traffic.Traffic, report *loadgen.Report) error {
	seen, err := run.Inspect(report)
	if err != nil {
		return err
	}
	out := os.Stdout
	if o.output != "table" {
		out = os.Stderr
	}
	for _, s := range seen {
		if s.Asked {
			fmt.Fprintln(out, s)
		}
	}
	if o.draw == "" || len(seen) == 0 {
		return nil
	}
	paths, err := loadgen.WritePictures(o.draw, seen)
	if err != nil {
		return err
	}
	fmt.Fprintln(out, "drawn:", strings.Join(paths, " "))
	return nil
}
