package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/libml"
	"github.com/penstock/penstock/libml/frameworks"
	"github.com/penstock/penstock/loadgen"
	"github.com/penstock/penstock/loadgen/answer"
	"github.com/penstock/penstock/loadgen/arrival"
	"github.com/penstock/penstock/loadgen/picture"
	"github.com/penstock/penstock/loadgen/status"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/models/zoo"
	"github.com/penstock/penstock/wire"
)

// loadOptions are the flags of `penstock load`; the demo fills them in itself.
type loadOptions struct {
	runtimeDir   string
	http         string // in place of runtimeDir
	rates        map[string]string
	duration     time.Duration
	warmup       time.Duration
	arrivals     string
	streams      int
	schedule     string
	scheduleText string // in place of the file
	seed         uint64
	pictures     string
	models       []string
	draw         string
	check        bool
	findMaxRate  string
	precision    float64
	deadline     time.Duration
	priority     uint8
	output       string
	require      []string
	required     []loadgen.Requirement // what require says; see checkFlags
	// figuresOnly leaves out what was seen on the pictures.
	figuresOnly bool
}

func loadCommand() *cobra.Command {
	o := loadOptions{}
	cmd := &cobra.Command{
		Use:   "load",
		Short: "Send pictures at a running node, open loop, and report how they were answered",
		Long: `Sends pictures at the functions of a running node, whatever becomes of the ones
before (open loop), and counts each latency from the moment at which its request
was meant to leave. Answers are compared with the same model run in this process.

The exit status is 1 when an accepted request was lost, an answer was wrong, the node
stopped answering (nothing came back from a function for three seconds, or for four of
its objectives and a second where that is longer; or at all; or its manager died with
requests, or the function was taken off), or when what --require says was not met. That the network lost a request or
two is no fault by itself: --require answered=100% makes it one.

--require is a bound, of each function that is sent to or of one (face:p99=25ms):
  within=99%     at least so many of the requests were answered ok within the objective
  ok=99%         were answered ok
  answered=100%  were answered, be it late or busy
  accuracy=90%   at least so many labelled pictures got their class
  goodput=50     at least so many answers a second were ok and within the objective
  p99=25ms       at most that latency, of the ok answers; also p50 and p99.9`,
		Example: `  penstock load --rate face=60 --rate fashion=400 --duration 30s
  penstock load --rate detect=6 --arrivals 30fps --streams 2 -o json
  penstock load --schedule rates.csv --draw out
  penstock load --rate face=60 --require within=99%,face:p99=25ms -o json || exit 1
  penstock load --find-max-rate fashion --duration 5s`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("require") && len(o.require) == 0 {
				return errors.New("--require is empty; want [FUNCTION:]METRIC=BOUND, like within=99% or face:p99=25ms, or leave it out")
			}
			return load(cmd.Context(), o)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.runtimeDir, "runtime-dir", "", nodeUsage)
	f.StringVar(&o.http, "http", "", "where the node serves its status, like 127.0.0.1:9650; for a node of another user or machine")
	f.StringToStringVar(&o.rates, "rate", nil, "function=requests a second; may be repeated; 10 for every function if left out")
	f.DurationVar(&o.duration, "duration", 30*time.Second, "measured time")
	f.DurationVar(&o.warmup, "warmup", time.Second, "time before, not measured")
	f.StringVar(&o.arrivals, "arrivals", "poisson", "poisson, constant, 30fps (each stream at a random phase), bursts:16")
	f.IntVar(&o.streams, "streams", 1, "clients a function, each with a socket of its own")
	f.StringVar(&o.schedule, "schedule", "", "file that changes the rates in time (CSV or YAML: time, function, rate)")
	f.Uint64Var(&o.seed, "seed", 1, "seed of the arrivals")
	f.StringVar(&o.pictures, "pictures", "", "folder of PNG and JPEG pictures to send; the built-in ones if left out")
	f.StringSliceVar(&o.models, "models", nil, "folders of the cards that answers are checked by, beside the built-in ones")
	f.StringVar(&o.draw, "draw", "", "folder to write the pictures into, with what was found drawn on them")
	f.BoolVar(&o.check, "check", true, "compare answers with the same model run in this process")
	f.StringVar(&o.findMaxRate, "find-max-rate", "", "search for the highest rate of this function with p99 within its objective and goodput of 99 %; the others get only what --rate says")
	f.Float64Var(&o.precision, "precision", defaultPrecision, "how close --find-max-rate comes, as a part of the rate")
	f.DurationVar(&o.deadline, "deadline", 0, "deadline told to the manager with each request")
	f.Uint8Var(&o.priority, "priority", 0, "priority told to the manager with each request")
	f.StringSliceVar(&o.require, "require", nil, "[function:]metric=bound that makes the exit status 1 when missed, like within=99% or face:p99=25ms; may be repeated")
	f.StringVarP(&o.output, "output", "o", "table", "table, json or csv")
	return cmd
}

// load runs the traffic and prints the report.
func load(ctx context.Context, o loadOptions) error {
	_, err := runLoad(ctx, o)
	return err
}

// runLoad is load, and returns the report; nil after a search. A report with an error has
// faults, which were printed.
func runLoad(ctx context.Context, o loadOptions) (*loadgen.Report, error) {
	if !slices.Contains([]string{"table", "json", "csv"}, o.output) {
		return nil, fmt.Errorf("output %q: want table, json or csv", o.output)
	}
	if err := o.checkFlags(); err != nil {
		return nil, err
	}
	ask, err := o.node()
	if err != nil {
		return nil, err
	}
	now, err := ask(ctx)
	if err != nil && o.http != "" {
		err = fmt.Errorf("%w; is a node running? `penstock up` starts one, --http says where it serves its status", err)
	}
	if err != nil {
		return nil, err
	}
	run, err := prepare(now, o)
	if err != nil {
		return nil, err
	}
	defer run.close()

	progress := loadgen.NewProgress(os.Stderr, terminalWidth())
	options := loadgen.Options{
		Dial:    loadgen.DialClient(client.Options{}),
		Status:  ask,
		Observe: progress.Show,
		Tell:    func(line string) { progress.Say("penstock load: " + line) },
	}
	if o.check {
		options.Reference = run.references
	}
	if o.findMaxRate != "" {
		defer progress.End()
		return nil, findMaxRate(ctx, run.spec, options, o)
	}
	report, err := loadgen.Run(ctx, run.spec, options)
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
		if err := run.show(report, o); err != nil {
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

// node returns how to ask the node for its status.
func (o *loadOptions) node() (func(context.Context) (control.Status, error), error) {
	if o.http != "" {
		return status.New(o.http).Status, nil
	}
	dir, err := nodeFolder(o.runtimeDir)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) (control.Status, error) { return control.ReadStatus(ctx, dir) }, nil
}

// checkFlags says which flag is wrong, before anything is asked of the node.
func (o *loadOptions) checkFlags() error {
	switch {
	case o.http != "" && o.runtimeDir != "":
		return errors.New("--http and --runtime-dir: want one of them; both choose the node")
	case o.duration <= 0:
		return fmt.Errorf("--duration %v: want more than 0, like 30s", o.duration)
	case o.warmup < 0:
		return fmt.Errorf("--warmup %v: want 0 or more", o.warmup)
	case o.deadline < 0:
		return fmt.Errorf("--deadline %v: want 0 or more; 0 tells the manager none", o.deadline)
	case o.streams < 1:
		return fmt.Errorf("--streams %d: want at least 1", o.streams)
	case !(o.precision > 0 && o.precision <= 1):
		return fmt.Errorf("--precision %v: want more than 0, at most 1", o.precision)
	case o.findMaxRate != "" && o.schedule != "":
		return errors.New("--find-max-rate and --schedule: want one of them; a search sets its rate itself")
	case o.findMaxRate != "" && o.output == "csv":
		return errors.New("--find-max-rate and --output csv: a search is written as table or json")
	case o.findMaxRate != "" && len(o.require) > 0:
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

// outputWidth is how wide the standard output's terminal is, 0 if it is none.
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
	probe, err := loadgen.ProbeFunction(spec, o.findMaxRate, options)
	if err != nil {
		return err
	}
	start := 10.0
	for _, f := range spec.Functions {
		if f.Name == o.findMaxRate {
			start = f.PerSecond
		}
	}
	found, err := loadgen.FindMaxRate(ctx, loadgen.Search{Start: start, Precision: o.precision, Confirm: 2}, probe)
	if err != nil {
		return err
	}
	if o.output == "json" {
		return found.WriteJSON(os.Stdout)
	}
	return found.WriteTable(os.Stdout)
}

// prepared is a run with all that it needs.
type prepared struct {
	spec       loadgen.Spec
	references references
	functions  []preparedFunction
}

type preparedFunction struct {
	name   string
	card   *models.Card // nil where no card was found: unchecked
	photos *picture.Photos
}

const defaultRate = 10

// defaultPrecision is how close --find-max-rate comes.
const defaultPrecision = 0.05

// prepare makes traffic for the functions that the node has.
func prepare(now control.Status, o loadOptions) (_ *prepared, err error) {
	p := &prepared{
		spec:       loadgen.Spec{Duration: o.duration, Warmup: o.warmup, Seed: o.seed},
		references: references{},
	}
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	process, err := arrival.Parse(o.arrivals)
	if err != nil {
		return nil, err
	}
	now.Functions, err = fromNetwork(now.Functions, o)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, f := range now.Functions {
		names = append(names, f.Name)
	}
	rates, err := parseRates(o.rates, names)
	if err != nil {
		return nil, err
	}
	if o.findMaxRate != "" {
		if !slices.Contains(names, o.findMaxRate) {
			return nil, fmt.Errorf("--find-max-rate %s: the node has no function %q; it has: %s", o.findMaxRate, o.findMaxRate, strings.Join(names, ", "))
		}
		if len(o.rates) == 0 {
			rates = map[string]float64{}
		}
		if rates[o.findMaxRate] == 0 {
			rates[o.findMaxRate] = defaultRate
		}
	}
	if err := p.readSchedule(o, names); err != nil {
		return nil, err
	}
	photos, err := readPhotos(o.pictures)
	if err != nil {
		return nil, err
	}
	for _, f := range now.Functions {
		rate, ok := rates[f.Name]
		if !ok {
			continue
		}
		if err := p.add(f, rate, process, photos, o); err != nil {
			return nil, err
		}
	}
	return p, p.requirable(o.required)
}

// fromNetwork are the functions that can be sent to: those that a capture feeds hear nothing.
func fromNetwork(all []control.FunctionStatus, o loadOptions) ([]control.FunctionStatus, error) {
	var out []control.FunctionStatus
	for _, f := range all {
		_, named := o.rates[f.Name]
		switch {
		case f.Replay == "":
			out = append(out, f)
		case named || o.findMaxRate == f.Name:
			return nil, fmt.Errorf("%s is fed by the capture %s and takes nothing from the network; want another function", f.Name, f.Replay)
		}
	}
	if len(out) == 0 {
		return nil, errors.New("the node has no function that takes requests from the network")
	}
	return out, nil
}

// requirable says which requirement is of a function that gets no traffic.
func (p *prepared) requirable(required []loadgen.Requirement) error {
	var names []string
	for _, f := range p.spec.Functions {
		names = append(names, f.Name)
	}
	for _, r := range required {
		if r.Function != "" && !slices.Contains(names, r.Function) {
			return fmt.Errorf("--require %s:%s: nothing is sent to %s, only to: %s", r.Function, r.Metric, r.Function, strings.Join(names, ", "))
		}
	}
	return nil
}

func parseRates(given map[string]string, names []string) (map[string]float64, error) {
	rates := map[string]float64{}
	if len(given) == 0 {
		for _, name := range names {
			rates[name] = defaultRate
		}
	}
	for name, text := range given {
		if !slices.Contains(names, name) {
			return nil, fmt.Errorf("--rate %s=%s: the node has no function %q; it has: %s", name, text, name, strings.Join(names, ", "))
		}
		rate, err := strconv.ParseFloat(text, 64)
		if err != nil || !(rate >= 0 && rate <= 1e7) {
			return nil, fmt.Errorf("--rate %s=%s: want requests a second, 0 to ten million", name, text)
		}
		rates[name] = rate
	}
	return rates, nil
}

func (p *prepared) readSchedule(o loadOptions, names []string) (err error) {
	switch {
	case o.scheduleText != "":
		p.spec.Schedule, err = arrival.ParseSchedule("schedule.csv", []byte(o.scheduleText))
	case o.schedule != "":
		var data []byte
		if data, err = os.ReadFile(o.schedule); err != nil {
			return fmt.Errorf("read schedule: %w", err)
		}
		p.spec.Schedule, err = arrival.ParseSchedule(o.schedule, data)
	}
	if err != nil {
		return err
	}
	return p.spec.Schedule.CheckFunctions(names)
}

// add makes one function's traffic: labelled pictures where there are some of its
// shape, photos where it takes photos, else bytes that mean nothing.
func (p *prepared) add(f control.FunctionStatus, rate float64, process arrival.Process, photos []picture.Photo, o loadOptions) error {
	made := preparedFunction{name: f.Name}
	in := f.Input
	size := picture.Size{Height: in.Height, Width: in.Width, Channels: in.Channels}
	var pictures loadgen.Pictures
	var err error
	switch {
	case in.WireType != string(models.U8) || in.WireLayout != string(models.HWC) || in.Channels != 1 && in.Channels != 3:
		pictures, err = noise(in.Bytes, o.seed)
	case size == fashionSize && o.pictures == "":
		pictures, err = fashion()
	default:
		made.photos = picture.NewPhotos(photos, size, picture.Letterbox)
		pictures = made.photos
	}
	if err != nil {
		return err
	}
	tolerance := answer.Default
	made.card, err = zoo.Registry{Dirs: o.models}.Find(f.Model)
	switch {
	case errors.Is(err, zoo.ErrUnknownModel):
		if o.check {
			fmt.Fprintf(os.Stderr, "penstock load: answers of %s are not checked: no card %q here (--models names folders)\n", f.Name, f.Model)
		}
	case err != nil:
		return err
	case o.check && (made.card.Framework == "" || made.card.Apart() != ""):
		fmt.Fprintf(os.Stderr, "penstock load: answers of %s are not checked: %s is a program of its own\n", f.Name, f.Model)
	case o.check:
		reference, err := libml.NewReference(made.card, frameworks.New)
		if err != nil {
			return fmt.Errorf("run %s in this process: %w", f.Model, err)
		}
		p.references[f.Name] = reference
		if threshold, ok := made.card.Decoder.Params["score_threshold"].(float64); ok {
			tolerance.Threshold = threshold
		}
	}
	p.functions = append(p.functions, made)
	p.spec.Functions = append(p.spec.Functions, loadgen.Function{
		Name: f.Name,
		Addr: fmt.Sprintf("%s:%d", hostOf(f.Address), f.Port),
		SLO:  time.Duration(f.SLOMillis * float64(time.Millisecond)), PerSecond: rate, Arrivals: process,
		Streams: o.streams, Pictures: pictures, Deadline: o.deadline, Priority: o.priority, Tolerance: tolerance,
	})
	return nil
}

// hostOf is where to send to what listens on that address.
func hostOf(address string) string {
	switch address {
	case "", "0.0.0.0", "::":
		return "127.0.0.1"
	}
	if strings.Contains(address, ":") {
		return "[" + address + "]"
	}
	return address
}

func (p *prepared) close() {
	for _, r := range p.references {
		r.Close()
	}
}

var fashionSize = picture.Size{Height: 28, Width: 28, Channels: 1}

func fashion() (loadgen.Pictures, error) {
	images, classes, err := zoo.FashionTest()
	if err != nil {
		return nil, err
	}
	labels := make([]int, len(classes))
	for i, class := range classes {
		labels[i] = int(class)
	}
	return picture.NewLabelled(images, labels)
}

// noise is a few pictures of random bytes.
func noise(bytes int, seed uint64) (loadgen.Pictures, error) {
	random := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)})
	const count = 8
	pictures, labels := make([][]byte, count), make([]int, count)
	for i := range pictures {
		pictures[i], labels[i] = make([]byte, bytes), picture.NoLabel
		random.Read(pictures[i])
	}
	return picture.NewLabelled(pictures, labels)
}

func readPhotos(dir string) ([]picture.Photo, error) {
	var fsys fs.FS = zoo.PictureFS()
	if dir != "" {
		if info, err := os.Stat(dir); err != nil {
			return nil, fmt.Errorf("--pictures %s: %w", dir, errors.Unwrap(err))
		} else if !info.IsDir() {
			return nil, fmt.Errorf("--pictures %s: is a file; want the folder that it is in", dir)
		}
		fsys = os.DirFS(dir)
	}
	photos, err := picture.Read(fsys, "*.png", "*.jpg", "*.jpeg", "*.PNG", "*.JPG", "*.JPEG")
	if err != nil {
		if errors.Is(err, picture.ErrNone) {
			return nil, fmt.Errorf("--pictures %s: the folder has no PNG or JPEG file", dir)
		}
		return nil, fmt.Errorf("read pictures: %w", err)
	}
	return photos, nil
}

// references are the models that answers are compared with.
type references map[string]*libml.Reference

// Answer implements loadgen.Reference.
func (r references) Answer(function string, bytes []byte) (answer.Answer, error) {
	reference, ok := r[function]
	if !ok {
		return answer.Answer{}, loadgen.ErrNoReference
	}
	payload, kind, err := reference.Answer(bytes)
	return answer.Answer{Kind: wire.Kind(kind), Payload: payload}, err
}

// show prints what was found in the photos, and draws it where that is asked for.
func (p *prepared) show(report *loadgen.Report, o loadOptions) error {
	var views []loadgen.View
	for i, f := range p.functions {
		if f.photos == nil || f.card == nil {
			continue
		}
		views = append(views, loadgen.View{
			Function: f.name, Photos: f.photos, Answers: report.Functions[i].Answers, Labels: f.card.Labels,
		})
	}
	seen, err := loadgen.Look(views)
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
