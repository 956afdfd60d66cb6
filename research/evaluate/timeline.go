package evaluate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/loadgen"
	"github.com/penstock/penstock/loadgen/arrival"
	"github.com/penstock/penstock/shm"
)

// Cue is a scheduled event of a time line.
type Cue struct {
	At   time.Duration
	What string // cueBegin, cueEnd or cueRate
	// Function is the function that the event changes. Level is its load from then on,
	// unused at an end.
	Function string
	Level    float64
}

// The kinds of events. At "begin" a function is added, unless it is there from time 0, and
// gets its traffic as soon as it serves. At "rate" its rate changes. At "end" its traffic
// ends, and then it is removed from the node. The other kinds are observations: the function
// serves, or its share has changed.
const (
	cueBegin    = "begin"
	cueRate     = "rate"
	cueEnd      = "end"
	eventServes = "serves"
	eventShare  = "share"
)

// script is one function's part of a time line.
type script struct {
	f          Function
	begin, end time.Duration
	level      float64
	rates      []Cue
	leaves     bool // it is removed at its end
}

// scripts groups a case's cues by function; every function has a beginning.
func (c *Case) scripts() (all []script, err error) {
	for _, f := range c.Functions {
		s := script{f: f, begin: -1, end: c.Length}
		for _, cue := range c.Events {
			if cue.Function != f.Name {
				continue
			}
			switch cue.What {
			case cueBegin:
				s.begin, s.level = cue.At, cue.Level
			case cueEnd:
				s.end, s.leaves = cue.At, true
			case cueRate:
				s.rates = append(s.rates, cue)
			default:
				return nil, fmt.Errorf("time line %s: %q at %v: want begin, rate or end", c.Name, cue.What, cue.At)
			}
		}
		if s.begin < 0 || s.end <= s.begin || s.end > c.Length {
			return nil, fmt.Errorf("time line %s: %s begins at %v and ends at %v of %v", c.Name, f.Name, s.begin, s.end, c.Length)
		}
		all = append(all, s)
	}
	return all, nil
}

// first returns the functions that exist from the beginning.
func first(all []script) (functions []Function) {
	for _, s := range all {
		if s.begin == 0 {
			functions = append(functions, s.f)
		}
	}
	return functions
}

// observed is the node's status at a moment.
type observed struct {
	at             int64
	shares, limits map[string]float64
}

// timelineEvents collects what happens while a time line runs.
type timelineEvents struct {
	start int64

	mu     sync.Mutex // guards all below
	events []Event
	states []observed
	ends   map[string]control.FunctionStatus // as last seen
}

func (t *timelineEvents) event(what, function string, value float64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.events = append(t.events, Event{AtSeconds: time.Duration(shm.Now() - t.start).Seconds(), What: what, Function: function, Value: value})
}

// watchEvery is the interval at which the status is read while a time line runs.
const watchEvery = 50 * time.Millisecond

// watch reads the node's status until ctx ends, and records changes of shares.
func (t *timelineEvents) watch(ctx context.Context, b *rig) {
	last := map[string]float64{}
	for ctx.Err() == nil {
		status, err := b.Status()
		if err == nil {
			o := observed{at: shm.Now(), shares: map[string]float64{}, limits: map[string]float64{}}
			for _, f := range status.Functions {
				o.shares[f.Name], o.limits[f.Name] = f.SharePercent, f.Limit
				if old, ok := last[f.Name]; !ok || old != f.SharePercent {
					t.event(eventShare, f.Name, f.SharePercent)
				}
				last[f.Name] = f.SharePercent
			}
			t.mu.Lock()
			t.states = append(t.states, o)
			for _, f := range status.Functions {
				t.ends[f.Name] = f
			}
			t.mu.Unlock()
		}
		if pause(ctx, watchEvery) != nil {
			return
		}
	}
}

// timeline runs a case's script against a node that has its first functions, and returns
// what happened.
func (r *runner) timeline(ctx context.Context, b *rig, c *Case, scripts []script, seed uint64) (*Timeline, error) {
	t := &timelineEvents{start: shm.Now() + int64(100*time.Millisecond), ends: map[string]control.FunctionStatus{}}
	watching, stop := context.WithCancel(ctx)
	defer stop()
	var watcher, players sync.WaitGroup
	watcher.Go(func() { t.watch(watching, b) })
	records := make([]*record, len(scripts))
	lags := make([]float64, len(scripts))
	failed := make([]error, len(scripts))
	for i, s := range scripts {
		records[i] = &record{}
		players.Go(func() {
			lag, err := r.play(ctx, b, t, s, records[i], seed+uint64(i)<<16)
			lags[i] = lag
			if err != nil {
				failed[i] = fmt.Errorf("%s: %w", s.f.Name, err)
			}
		})
	}
	players.Wait()
	stop()
	watcher.Wait()
	if err := errors.Join(failed...); err != nil {
		return nil, err
	}
	line := &Timeline{BinSeconds: c.Bin.Seconds(), Seconds: c.Length.Seconds(), Events: t.events}
	slices.SortStableFunc(line.Events, func(a, b Event) int { return cmp.Compare(a.AtSeconds, b.AtSeconds) })
	for i, s := range scripts {
		f := bins(s.f, records[i].all(), t, c)
		f.Total.SendLagP99Millis = lags[i]
		if end, ok := t.ends[s.f.Name]; ok {
			f.Swaps, f.SwapIdleMillis, f.Lost = end.Swaps, end.SwapIdle.Max/1000, end.Lost
			f.Total.SharePercent, f.Total.Receivers = end.SharePercent, end.Receivers
		}
		line.Functions = append(line.Functions, f)
	}
	return line, nil
}

// until waits until a moment of the time line.
func (t *timelineEvents) until(ctx context.Context, at time.Duration) error {
	if d := time.Duration(t.start + int64(at) - shm.Now()); d > 0 {
		return pause(ctx, d)
	}
	return ctx.Err()
}

// play runs one function's part: add it, send its traffic, remove it.
func (r *runner) play(ctx context.Context, b *rig, t *timelineEvents, s script, rec *record, seed uint64) (lag float64, err error) {
	if err := t.until(ctx, s.begin); err != nil {
		return 0, err
	}
	t.event(cueBegin, s.f.Name, s.level)
	if s.begin > 0 {
		// The manager answers the order when the function serves.
		if err := b.Order(control.AddPath, b.variant.added(b.options, s.f)); err != nil {
			return 0, err
		}
	}
	at, err := b.Function(s.f.Name)
	if err != nil {
		return 0, err
	}
	t.event(eventServes, s.f.Name, 0)
	now := time.Duration(shm.Now() - t.start)
	if s.end-now < 2*watchEvery {
		return 0, fmt.Errorf("served %v after it was to begin, which leaves no time for its traffic", (now - s.begin).Round(time.Millisecond))
	}
	full := b.full[s.f.Name]
	spec := loadgen.Spec{Duration: s.end - now, Functions: []loadgen.Function{b.open(s.f, at.Port, s.level*full)}, Seed: seed}
	for _, cue := range s.rates {
		spec.Schedule = append(spec.Schedule, arrival.Change{At: max(0, cue.At-now), Function: s.f.Name, PerSecond: cue.Level * full})
	}
	var rates sync.WaitGroup
	told, stop := context.WithCancel(ctx)
	for _, cue := range s.rates {
		rates.Go(func() {
			if t.until(told, cue.At) == nil {
				t.event(cueRate, s.f.Name, cue.Level)
			}
		})
	}
	report, err := loadgen.Run(ctx, spec, loadgen.Options{Dial: rec.dial(dialer())})
	stop()
	rates.Wait()
	if err != nil {
		return 0, err
	}
	if report.Interrupted {
		return 0, context.Cause(ctx)
	}
	if s.leaves {
		t.event(cueEnd, s.f.Name, 0)
		if err := b.Order(control.RemovePath, control.NameOrder{Name: s.f.Name}); err != nil {
			return 0, err
		}
	}
	return report.Functions[0].SendLagP99Millis, nil
}

// bins groups a function's requests into bins by their intended send time. A sender that
// began late ends late: requests that it sent after the end count for the last bin.
func bins(f Function, all []sample, t *timelineEvents, c *Case) FunctionTimeline {
	line := FunctionTimeline{Name: f.Name, SLOMillis: millis(f.SLO)}
	for begin := time.Duration(0); begin < c.Length; begin += c.Bin {
		from, to := t.start+int64(begin), t.start+int64(begin+c.Bin)
		own := within(all, from, to)
		if begin+c.Bin >= c.Length {
			own = within(all, from, math.MaxInt64)
		}
		l := summarize(f, own, c.Bin)
		bin := Bin{Offered: len(own), OK: int(l.OK), P50Millis: l.P50Millis, P99Millis: l.P99Millis, MeanBatch: l.MeanBatch}
		for i := range own {
			if own[i].ok() && own[i].latency() <= f.SLO {
				bin.Within++
			}
		}
		// Take the node's last status before the bin's end.
		for _, o := range t.states {
			if o.at > to {
				break
			}
			bin.SharePercent, bin.LimitBatch = o.shares[f.Name], o.limits[f.Name]
		}
		line.Bins = append(line.Bins, bin)
	}
	line.Total = summarize(f, all, c.Length)
	line.T90Seconds = t90(line.Bins, c.Bin)
	return line
}

// t90 returns when a function's mean batch first reached 90 % of its value over the last
// third of the bins with answers, counted from its first request. It returns 0 if there are
// too few bins.
func t90(bins []Bin, each time.Duration) float64 {
	begin := slices.IndexFunc(bins, func(b Bin) bool { return b.Offered > 0 })
	if begin < 0 {
		return 0
	}
	var batches []float64
	for _, b := range bins[begin:] {
		if b.MeanBatch > 0 {
			batches = append(batches, b.MeanBatch)
		}
	}
	if len(batches) < 6 {
		return 0
	}
	last := slices.Sorted(slices.Values(batches[len(batches)-len(batches)/3:]))
	settled := last[len(last)/2]
	for i, b := range bins[begin:] {
		if b.MeanBatch >= 0.9*settled {
			return (time.Duration(i+1) * each).Seconds()
		}
	}
	return 0
}
