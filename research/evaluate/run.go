package evaluate

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/internal/testbed"
	"github.com/penstock/penstock/research/bench"
)

// Options say which figure is measured, and how much of it.
type Options struct {
	bench.Setup
	Figure string
	// Out is the folder of reports.
	Out string
	// Limit is the max duration of a call; the next call measures the rest. A step does not
	// start if it is not expected to end in time.
	Limit time.Duration
	Runs  int
	// Variants are the measured variants; empty means all.
	Variants []string
	Seed     uint64
	// Quick replaces the figure's models and times with small models and short times.
	Quick bool
	// Weights is how all variants hold their models' weights, as configs.Config.Weights.
	// Empty selects the node's default.
	Weights string
}

// runner measures one figure.
type runner struct {
	Options
	figure  *Figure
	report  *Report
	file    string
	device  string // as in configurations and environments
	cpus    cpus
	dir     string // folder of the cards, and of the MPS daemon for ready batches
	started time.Time
}

// hopeless is how many measurements may fail in a row before a call gives up. Each failure
// may take as long as the wait for a node.
const hopeless = 4

// capacitySLO is an objective that no batch misses, so batches grow to the end of the
// ladder.
const capacitySLO = 10 * time.Second

// Capacity is measured in a closed loop, for this time after this warm-up.
const (
	capacityWarmup  = 700 * time.Millisecond
	capacityMeasure = time.Second
)

var errNoFolder = errors.New("no folder for the report: want one")

// Plan describes what a call of Run would do.
type Plan struct {
	File string
	// Steps counts all measurements and Left the remaining ones. Takes estimates the time
	// for the remaining ones.
	Steps, Left int
	Takes       time.Duration
	// Next estimates how long a call needs for the first of the remaining measurements.
	Next time.Duration
	// Cases has one entry per case: its variants and what remains.
	Cases []PlannedCase
}

// PlannedCase is one case of a Plan.
type PlannedCase struct {
	Name     string
	Kind     Kind
	Variants []string
	Left     int
	Takes    time.Duration // for the remaining measurements
}

// Prepare reads the existing report of a figure and returns what remains. It measures
// nothing. On a machine without a GPU it assumes the GPU of the report.
func Prepare(o Options) (Plan, error) {
	if o.Device != configs.DeviceCPU && len(o.Machine.GPUs) == 0 {
		name := "a GPU"
		if r, err := read(filepath.Join(o.Out, o.Figure+".json")); err == nil {
			name = r.Device
		}
		o.Device, o.Machine.GPUs = "cuda", []testbed.GPU{{Name: name}}
	}
	r, err := newRunner(o)
	if err != nil {
		return Plan{}, err
	}
	return r.plan()
}

func (r *runner) plan() (p Plan, err error) {
	steps, err := r.figure.plan(r.Runs)
	if err != nil {
		return p, err
	}
	p.File, p.Steps = r.file, len(steps)
	for _, c := range r.figure.Cases {
		p.Cases = append(p.Cases, PlannedCase{Name: c.Name, Kind: c.Kind, Variants: c.Variants})
	}
	for _, s := range steps {
		if r.report.result(s.c.Name, s.variant.name, s.run) != nil {
			continue
		}
		at := slices.IndexFunc(p.Cases, func(c PlannedCase) bool { return c.Name == s.c.Name })
		takes := r.takes(s)
		if p.Left == 0 {
			p.Next = takes
		}
		p.Left++
		p.Takes += takes
		p.Cases[at].Left++
		p.Cases[at].Takes += takes
	}
	if p.Left > 0 {
		p.Takes += r.capacityTakes()
		p.Next += r.capacityTakes()
	}
	return p, nil
}

// takes returns the expected duration of a step: as long as it took with this variant
// before, otherwise an estimate. It is at least as long as the step took to fail.
func (r *runner) takes(s step) (takes time.Duration) {
	takes = s.c.takes(s.variant)
	for i := range r.report.Results {
		x := &r.report.Results[i]
		if x.Case != s.c.Name || x.Variant != s.variant.name {
			continue
		}
		took := time.Duration(x.TookSeconds * float64(time.Second))
		if x.Error == "" {
			return took
		}
		takes = max(takes, took)
	}
	return takes
}

// capacityTakes estimates how long it takes to measure the missing capacities.
func (r *runner) capacityTakes() time.Duration {
	missing := r.missing()
	if len(missing) == 0 {
		return 0
	}
	return startTime(missing) + stopTime + time.Duration(len(missing))*(capacityWarmup+capacityMeasure)
}

// missing returns the models whose capacity is unknown.
func (r *runner) missing() (all []Function) {
	for _, f := range r.figure.models() {
		if r.report.capacity(f.Model) == 0 {
			all = append(all, f)
		}
	}
	return all
}

// newRunner reads the existing report of a figure.
func newRunner(o Options) (*runner, error) {
	switch {
	case o.Runs < 1 || o.Runs > 100:
		return nil, fmt.Errorf("%d runs: want 1 to 100", o.Runs)
	case o.Out == "":
		return nil, errNoFolder
	}
	figure, err := Find(o.Figure)
	if err != nil {
		return nil, err
	}
	if o.Quick {
		figure = figure.quick(o.Device == configs.DeviceCPU)
	}
	r := &runner{Options: o, figure: figure, file: filepath.Join(o.Out, figure.Name+".json"), cpus: divideCPUs(), started: time.Now()}
	var shown string
	if r.device, shown, err = resolve(o.Device, os.Getenv("CUDA_VISIBLE_DEVICES"), &o.Machine); err != nil {
		return nil, err
	}
	r.Options.Setup.Device = r.device
	settings, err := figure.fingerprint(o)
	if err != nil {
		return nil, err
	}
	if r.report, err = readIf(r.file); errors.Is(err, errDamaged) {
		return nil, fmt.Errorf("%w; remove it, and the figure is measured again", err)
	} else if err != nil {
		return nil, err
	}
	switch {
	case r.report == nil:
		r.report = &Report{Version: version, Figure: figure.Name, Settings: settings}
	case r.report.Figure != figure.Name:
		return nil, fmt.Errorf("%s is of figure %q, not of %s: take another folder, or remove it", r.file, r.report.Figure, figure.Name)
	case r.report.Settings != settings:
		return nil, fmt.Errorf("%s was measured with other settings (models, times, loads, seed): take another folder, or remove it", r.file)
	case r.report.Device != shown:
		return nil, fmt.Errorf("%s was measured on %s, this is %s: take another folder, or remove it", r.file, r.report.Device, shown)
	default:
		if err := r.report.checkComplete(figure); err != nil {
			return nil, fmt.Errorf("read report %s: %w: %w; remove it, and the figure is measured again", r.file, errDamaged, err)
		}
	}
	p := r.report
	for i := range p.Results {
		if x := &p.Results[i]; x.Penstock == "" {
			x.Penstock = p.Machine.Penstock // before the current version replaces it
		}
	}
	p.Title, p.Paper, p.Machine, p.Device = figure.Title, figure.Paper, o.Machine, shown
	p.Quick, p.Seed, p.Runs = o.Quick, o.Seed, max(o.Runs, p.Runs)
	p.Cases, p.Variants = nil, nil
	for i := range figure.Cases {
		c := &figure.Cases[i]
		p.Cases = append(p.Cases, c.settings())
		for _, name := range c.Variants {
			v, err := variantOf(name)
			if err != nil {
				return nil, err
			}
			if !slices.ContainsFunc(p.Variants, func(s VariantSetting) bool { return s.Name == name }) {
				p.Variants = append(p.Variants, v.settings())
			}
		}
	}
	return r, nil
}

// fingerprint covers all that a figure's measurements depend on. It excludes the number of
// runs and the variants that other figures use.
func (f *Figure) fingerprint(o Options) (string, error) {
	var names, ways []string
	for i := range f.Cases {
		names = append(names, f.Cases[i].Variants...)
	}
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		v, err := variantOf(name)
		if err != nil {
			return "", err
		}
		ways = append(ways, v.fingerprint())
	}
	text, err := json.Marshal(struct {
		Figure   *Figure
		Variants []string
		Seed     uint64
		Quick    bool
		Weights  string
		Intake   intakeRules
	}{f, ways, o.Seed, o.Quick, o.Weights, rules})
	if err != nil {
		return "", fmt.Errorf("describe figure %s: %w", f.Name, err)
	}
	sum := sha256.Sum256(text)
	return fmt.Sprintf("%x", sum[:8]), nil
}

// Run measures what remains of a figure, as far as the limit allows. It returns the report,
// which it also writes into the report's file. The report records failed steps. Run returns
// the last failure in two cases: no step succeeded, or so many failed in a row that the
// next would fail too.
//
// Run returns errInUse if another call is measuring the same figure, or on the same device,
// into the same folder.
func Run(ctx context.Context, o Options) (*Report, error) {
	figure, err := Find(o.Figure)
	if err != nil {
		return nil, err
	}
	device, _, err := resolve(o.Device, os.Getenv("CUDA_VISIBLE_DEVICES"), &o.Machine)
	if err != nil {
		return nil, err
	}
	if o.Out == "" {
		return nil, errNoFolder
	}
	release, err := claim(o.Out, figure.Name, device)
	if err != nil {
		return nil, err
	}
	defer release()
	r, err := newRunner(o)
	if err != nil {
		return nil, err
	}
	return r.run(ctx)
}

func (r *runner) run(ctx context.Context) (_ *Report, err error) {
	if r.dir, err = newDir(); err != nil {
		return nil, err
	}
	defer os.RemoveAll(r.dir)
	steps, err := r.figure.plan(r.Runs)
	if err != nil {
		return nil, err
	}
	steps = slices.DeleteFunc(steps, func(s step) bool {
		return len(r.Variants) > 0 && !slices.Contains(r.Variants, s.variant.name) || r.report.result(s.c.Name, s.variant.name, s.run) != nil
	})
	r.report.Left = len(steps)
	if len(steps) == 0 {
		return r.report, r.report.Write(r.file)
	}
	if err := r.measureCapacity(ctx); err != nil {
		return r.report, err
	}
	succeeded, failed, failure := 0, 0, error(nil)
	for i, s := range steps {
		if r.Limit > 0 && time.Since(r.started)+r.takes(s) > r.Limit {
			r.Options.report("%s: %d measurements are left for another call: the next would not end within %v", r.figure.Name, len(steps)-i, r.Limit.Round(time.Second))
			break
		}
		r.Options.report("%s, run %d: %s, %s", r.figure.Name, s.run, s.c.Name, s.variant.label)
		r.report.Tried++
		x := r.step(ctx, s)
		if ctx.Err() != nil {
			return r.report, context.Cause(ctx)
		}
		r.report.put(x)
		if x.Error == "" {
			succeeded++
			failed = 0
			r.report.Left--
		} else {
			failure = fmt.Errorf("%s, %s: %s", s.c.Name, s.variant.name, x.Error)
			r.Options.report("%v", failure)
			failed++
		}
		if err := r.report.Write(r.file); err != nil {
			return r.report, err
		}
		if failed == hopeless {
			return r.report, fmt.Errorf("%d measurements in a row failed; the last: %w", failed, failure)
		}
	}
	if succeeded == 0 && failure != nil {
		return r.report, failure
	}
	return r.report, nil
}

func (o *Options) report(format string, args ...any) {
	if o.Progress != nil {
		o.Progress(fmt.Sprintf(format, args...))
	}
}

// measureCapacity measures the models whose capacity is unknown. All are on one node, but
// only one at a time has traffic.
func (r *runner) measureCapacity(ctx context.Context) error {
	functions := r.missing()
	if len(functions) == 0 {
		return nil
	}
	v, err := variantOf(mpsSLAB)
	if err != nil {
		return err
	}
	r.Options.report("%s: what each model can do alone", r.figure.Name)
	b, err := r.startHarness(ctx, v, &Case{Kind: kindClosed, Functions: functions}, functions)
	if err != nil {
		return fmt.Errorf("measure capacity: %w", err)
	}
	defer b.kill()
	for _, f := range functions {
		var l Load
		// A machine with other users may answer nothing for a while.
		for try := 0; try < 3 && l.AnsweredRPS == 0; try++ {
			if l, err = r.closed(ctx, b, []Function{f}, r.scaled(capacityWarmup), r.scaled(capacityMeasure)); err != nil {
				return fmt.Errorf("measure capacity of %s: %w", f.Model, err)
			}
		}
		if l.AnsweredRPS == 0 {
			return fmt.Errorf("measure capacity of %s: no request was answered ok: %+v", f.Model, l.Functions)
		}
		r.report.Capacity = append(r.report.Capacity, Capacity{Model: f.Model, PerSecond: l.AnsweredRPS,
			MeanBatch: l.Functions[0].MeanBatch, P50Millis: l.Functions[0].P50Millis})
		r.Options.report("%s: %s does %.0f a second alone, mean batch %.1f", r.figure.Name, f.Model, l.AnsweredRPS, l.Functions[0].MeanBatch)
	}
	if err := r.note(b); err != nil {
		return err
	}
	if err := b.end(); err != nil {
		return fmt.Errorf("measure capacity: %w", err)
	}
	return r.report.Write(r.file)
}

// scaled returns a shorter time if the figure is quick.
func (r *runner) scaled(d time.Duration) time.Duration {
	if r.Quick {
		return d / 3
	}
	return d
}

// note records what the node reports about the device.
func (r *runner) note(b *rig) error {
	status, err := b.Status()
	if err != nil {
		return err
	}
	if status.Devices[0].GPU != nil {
		r.report.SMs = status.Devices[0].GPU.SMs
	}
	return nil
}

// step makes one measurement. The result has any error.
func (r *runner) step(ctx context.Context, s step) (x Result) {
	began := time.Now()
	x = Result{Case: s.c.Name, Variant: s.variant.name, Run: s.run, Date: began.UTC().Format(time.RFC3339), Penstock: r.Machine.Penstock}
	err := r.measure(ctx, s, &x)
	x.TookSeconds = time.Since(began).Seconds()
	if err != nil {
		x.Error = shortened(err)
	}
	return x
}

func (r *runner) measure(ctx context.Context, s step, x *Result) (err error) {
	if s.c.Kind == kindBare {
		x.Points, err = r.ready(ctx, s.variant, s.c)
		return err
	}
	begins := s.c.Functions
	var scripts []script
	if s.c.Kind == kindTimeline {
		if scripts, err = s.c.scripts(); err != nil {
			return err
		}
		begins = first(scripts)
	}
	b, err := r.startHarness(ctx, s.variant, s.c, begins)
	if err != nil {
		return err
	}
	defer b.kill()
	// All variants have the same arrivals; each run has others.
	seed := r.Seed + uint64(s.run)*1000
	switch s.c.Kind {
	case kindLoads:
		x.Loads, err = r.loads(ctx, b, s.c, seed)
	case kindClosed:
		var l Load
		l, err = r.closed(ctx, b, s.c.Functions, s.c.Warmup, s.c.Measure)
		x.Loads = []Load{l}
	case kindTimeline:
		x.Timeline, err = r.timeline(ctx, b, s.c, scripts, seed)
	default:
		err = fmt.Errorf("case of kind %q", s.c.Kind)
	}
	if err != nil {
		return err
	}
	status, err := b.Status()
	if err != nil {
		return err
	}
	x.Mechanism, x.Lost = status.Devices[0].Mechanism, lost(&status)
	if x.Timeline != nil {
		for _, f := range x.Timeline.Functions {
			if _, exists := status.Function(f.Name); !exists {
				x.Lost += f.Lost
			}
		}
	}
	if err := r.note(b); err != nil {
		return err
	}
	return b.end()
}
