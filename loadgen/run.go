package loadgen

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/loadgen/answer"
	"github.com/penstock/penstock/loadgen/arrival"
)

// Run sends a spec's traffic and reports on it. It returns after the duration and
// at most the grace time. Nothing of the run is left running then.
//
// When ctx ends, Run stops sending at once and waits at most a second for
// outstanding requests. It then returns the report of the time so far without an
// error, marked Interrupted.
func Run(ctx context.Context, spec Spec, o Options) (*Report, error) {
	spec, err := spec.complete()
	if err != nil {
		return nil, fmt.Errorf("check load: %w", err)
	}
	if o.Clock == nil {
		o.Clock = SystemClock{}
	}
	// After ctx has ended, the run still waits for sent requests and asks the
	// manager.
	background, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()

	r := &run{spec: spec, options: o}
	defer r.close()
	for i := range spec.Functions {
		f := &spec.Functions[i]
		references, err := answers(ctx, f, o.Reference)
		if err != nil {
			return nil, fmt.Errorf("compute reference answers of %s: %w", f.Name, err)
		}
		stream, err := dial(background, spec, i, newLedger(f, references), o.Dial)
		if err != nil {
			return nil, fmt.Errorf("dial %s: %w", f.Name, err)
		}
		r.traffic = append(r.traffic, stream)
	}
	r.watch = newWatch(o.Status)
	if err := r.watch.begin(ctx); err != nil {
		return nil, err
	}
	return r.measure(ctx, background)
}

// run is the state of a running Spec.
type run struct {
	spec    Spec
	options Options
	traffic []*traffic
	watch   *watch
	start   int64 // of the warm-up, by the clock
}

// traffic is the state of a running Function.
type traffic struct {
	f        *Function
	arrivals arrival.Arrivals
	senders  []Sender
	ledger   *ledger
}

// answers asks the reference for the right answer to each picture. It returns nil
// if there is no reference.
func answers(ctx context.Context, f *Function, reference Reference) ([]answer.Answer, error) {
	if reference == nil {
		return nil, nil
	}
	all := make([]answer.Answer, len(f.Pictures))
	for i, picture := range f.Pictures {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		a, err := reference.Answer(f.Name, picture)
		if errors.Is(err, ErrNoReference) {
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("picture %d: %w", i, err)
		}
		all[i] = a
	}
	return all, nil
}

func dial(ctx context.Context, spec Spec, function int, l *ledger, dial Dialer) (*traffic, error) {
	f := &spec.Functions[function]
	rate := spec.Schedule.Rate(f.Name, f.PerSecond).Shift(spec.Warmup)
	t := &traffic{
		f:      f,
		ledger: l,
		// Functions arrive independently: each has its own seed.
		arrivals: arrival.New(f.Arrivals, rate, f.Streams, spec.Seed+uint64(function)<<32),
	}
	for stream := range f.Streams {
		sender, err := dial(ctx, *f, stream, l.reply)
		if err != nil {
			t.close()
			return nil, fmt.Errorf("stream %d: %w", stream, err)
		}
		t.senders = append(t.senders, sender)
	}
	return t, nil
}

func (t *traffic) close() error {
	var errs []error
	for _, sender := range t.senders {
		errs = append(errs, sender.Close())
	}
	t.senders = nil
	return errors.Join(errs...)
}

func (r *run) close() error {
	var errs []error
	for _, t := range r.traffic {
		errs = append(errs, t.close())
	}
	return errors.Join(errs...)
}

func (r *run) measure(ctx, background context.Context) (*Report, error) {
	alarms := make([]Alarm, len(r.traffic))
	for i := range alarms {
		alarm, err := r.options.Clock.Alarm(ctx)
		if err != nil {
			return nil, err
		}
		defer alarm.Close()
		alarms[i] = alarm
	}
	watching, stopWatching := context.WithCancel(background)
	defer stopWatching()
	var watchers, schedulers sync.WaitGroup
	r.start = r.options.Clock.Now()
	watchers.Go(func() { r.watch.poll(watching) })
	watchers.Go(func() { r.observe(watching) })
	for i, t := range r.traffic {
		schedulers.Go(func() { t.schedule(alarms[i], r.options.Clock, r.start, r.spec) })
	}
	schedulers.Wait()
	measured := r.elapsed() // before the grace time
	interrupted := ctx.Err() != nil
	r.drain(ctx)
	stopWatching()
	watchers.Wait()

	for _, t := range r.traffic {
		t.ledger.close() // replies that arrive while we ask the manager no longer count
	}
	report := &Report{Seconds: measured.Seconds(), Interrupted: interrupted}
	report.ManagerError = errorText(r.watch.end(background))
	for _, t := range r.traffic {
		report.Functions = append(report.Functions, t.report(measured, r.watch))
	}
	if err := r.close(); err != nil {
		return report, fmt.Errorf("close streams: %w", err)
	}
	return report, report.check()
}

// elapsed returns how much of the measured time has passed.
func (r *run) elapsed() time.Duration {
	passed := time.Duration(r.options.Clock.Now()-r.start) - r.spec.Warmup
	return min(max(passed, 0), r.spec.Duration)
}

// schedule sends each request at its intended time until the run's end. If it is
// late, it sends all due requests at once: intended times do not move.
func (t *traffic) schedule(alarm Alarm, clock Clock, start int64, spec Spec) {
	end := spec.Warmup + spec.Duration
	for i := 0; ; i++ {
		next := t.arrivals.Next()
		if next.At >= end {
			// The run lasts for its full duration, even if the last request was
			// long before its end.
			alarm.Wait(start + int64(end))
			return
		}
		intended := start + int64(next.At)
		if !alarm.Wait(intended) {
			return
		}
		picture := i % len(t.f.Pictures)
		lag := time.Duration(clock.Now() - intended)
		tag := t.ledger.begin(intended, lag, picture, next.At >= spec.Warmup)
		if err := t.senders[next.Stream].Send(t.f.Pictures[picture], intended, tag); err != nil {
			t.ledger.reply(&client.Result{Tag: tag, Err: err})
		}
	}
}

// drain waits until no request is outstanding, at most for the grace time.
func (r *run) drain(ctx context.Context) {
	grace := time.NewTimer(r.spec.Grace)
	defer grace.Stop()
	interrupted := ctx.Done()
	for _, t := range r.traffic {
		drained := t.ledger.drain()
	wait:
		for {
			select {
			case <-drained:
				break wait
			case <-grace.C:
				return
			case <-interrupted:
				interrupted = nil
				grace.Reset(min(r.spec.Grace, interruptedGrace))
			}
		}
	}
}

// observe periodically calls the Observe callback.
func (r *run) observe(ctx context.Context) {
	ticker := time.NewTicker(ObserveEvery)
	defer ticker.Stop()
	before := make([]uint64, len(r.traffic))
	last := r.start
	for {
		select {
		case <-ticker.C:
			last = r.show(before, last)
		case <-ctx.Done():
			r.show(before, last)
			return
		}
	}
}

// show reports the rate offered since last. It updates before and returns the new
// last.
func (r *run) show(before []uint64, last int64) int64 {
	if r.options.Observe == nil {
		return last
	}
	now := r.options.Clock.Now()
	passed := time.Duration(now - r.start)
	whole := r.spec.Warmup + r.spec.Duration
	snapshot := Snapshot{Left: max(whole-passed, 0), Elapsed: passed, WarmingUp: passed < r.spec.Warmup}
	for i, t := range r.traffic {
		live := t.ledger.live()
		offered := live.offered
		if since := time.Duration(now - last); since > 0 {
			live.PerSecond = float64(offered-before[i]) / since.Seconds()
		}
		before[i] = offered
		live.Name, live.SLO = t.f.Name, t.f.SLO
		if status, known := r.watch.function(t.f.Name); known {
			live.SharePercent, live.ShareKnown = status.SharePercent, true
		}
		snapshot.Functions = append(snapshot.Functions, live)
	}
	r.options.Observe(snapshot)
	return now
}

// Snapshot is the current state of a run.
type Snapshot struct {
	// Elapsed counts from the start of the warm-up. Left is the time to the end of
	// the measured time.
	Elapsed, Left time.Duration
	WarmingUp     bool
	Functions     []Live
}

// Live is the current state of one function's traffic.
type Live struct {
	Name string
	SLO  time.Duration
	// PerSecond is the rate sent since the previous snapshot.
	PerSecond float64
	// WithinSLO is the percentage of ended requests that got an ok answer within
	// the objective. P99 is that of the ok answers so far, 0 if there are none.
	// Outstanding counts the requests without an answer yet.
	WithinSLO   float64
	P99         time.Duration
	Outstanding int
	// SharePercent is the share in force. ShareKnown is false if no manager was
	// asked.
	SharePercent float64
	ShareKnown   bool

	offered uint64
}

func (l *ledger) live() Live {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := &l.stats
	return Live{
		WithinSLO:   percent(t.within, t.answered()+t.dropped+t.givenUp),
		P99:         time.Duration(t.latency.ValueAtPercentile(99)),
		Outstanding: l.open,
		offered:     t.offered,
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
