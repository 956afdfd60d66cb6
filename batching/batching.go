// Package batching decides how many requests make the next batch. It has four rules. SLAB is
// GSLICE's self-learning adaptive batching (section 3.3.1). For comparison there are
// Clipper's AIMD, one request per batch, and batches of a fixed size with a delay. The
// package is pure: no clock, no I/O, no state of its own. docs/adr/0002-slab.md gives the
// reasons for the design.
//
// The batch loop uses it in these steps:
//
//  1. Rule.Start returns the first State. Rule.Warm teaches it the times of the warm-up
//     batches, if there were any.
//  2. Rule.ReadyAt returns when there may be a batch. Rule.Pick chooses it from the pending
//     requests, at most Rule.Size of them, and returns those that can no longer meet their
//     deadline.
//  3. The loop runs the batch, padded to Rule.Pad.
//  4. Rule.Next takes the observation and returns the next State.
//
// # What is controlled
//
// The part of a request's latency that batching can influence is
//
//	aggregation + wait for the running batch + its own batch
//
// A request that arrives just after a batch began waits for all of that batch. So under
// load the aggregation and two batches in a row must fit the objective: one batch may
// take about (SLO - aggregation) / 2. If requests arrive in step with the batches (bursts
// to an idle device), the wait is shorter, and a batch may take up to SLO - aggregation.
// State learns which part of a running batch the oldest request waits for. Both cases
// follow from it.
//
// If requests arrive faster than such batches can take them, some must be late. Batches
// then grow further, as far as they fill with requests that still meet their deadline
// (Pick makes sure of that). So more requests are answered, each within the objective.
//
// A request that waited for more than the running batch was in a backlog. That part of
// its wait never counts: smaller batches would lower the throughput and lengthen the
// backlog that caused them.
package batching

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/penstock/penstock/control"
)

// Names of the rules.
const (
	SLAB  = string(control.BatchSLAB)
	AIMD  = string(control.BatchAIMD)
	One   = string(control.BatchOne)
	Fixed = string(control.BatchFixed) // see Config.Fixed and Config.Delay
)

// Config is a rule's configuration. It does not change while a State lives.
type Config struct {
	// SLO is the latency objective, from a request's first fragment to the end of its
	// batch.
	SLO time.Duration
	// Ladder has the prepared batch sizes, ascending. The first is 1, or the size of a
	// model with a fixed batch.
	Ladder []int
	// Fixed is the size of the rule Fixed. If that size is not prepared, the next smaller
	// prepared one counts. Delay is how long the oldest request waits for the batch to
	// fill.
	Fixed int
	Delay time.Duration
}

// Fit is a rule's judgement of the device share (paper 3.3.1). It changes nothing by
// itself: it makes the manager tune the share.
type Fit uint8

// fitUnder follows fitAfter successive misses at the smallest limit, fitOver fitAfter
// successive batches within the objective.
const (
	fitUnknown Fit = iota
	fitUnder
	fitOver
)

// fitAfter is how many successive occurrences make a Fit ("5 successive", paper 3.3.1).
const fitAfter = 5

// String returns the fit as a control.Fit.
func (f Fit) String() string {
	switch f {
	case fitUnder:
		return "under-provisioned"
	case fitOver:
		return "perhaps-over-provisioned"
	}
	return ""
}

// Observation is the result of one dispatch.
type Observation struct {
	// Batch is the number of real requests that ran; Padded is the size that ran. Both
	// are 0 if every candidate was late and nothing ran.
	Batch, Padded int
	// Full is set if the batch has as many requests as it may have.
	Full bool
	// Elapsed is gather + infer: batch start to batch end.
	Elapsed time.Duration
	// Ended is when the batch ended, in the clock of Request.Whole.
	Ended int64
	// Demoted is set if the batch ran at low priority, in the time that other work left
	// of the device. Elapsed then contains the time in which other work ran.
	Demoted bool
	// Aggregated is the time from the first fragment of the batch's oldest request until
	// that request was complete. The oldest is the one that was complete first.
	Aggregated time.Duration
	// Waited is the result of WaitForRunning for all requests pending before Pick.
	Waited time.Duration
	// Late is how many requests were answered as late, without inference, since the batch before began.
	Late int
}

// WaitForRunning returns how long the oldest pending request waited for the batch before.
// That batch ran from began to ended (nanoseconds of one clock; both 0 before the first).
// The result is never longer than that batch, even if the request was in a backlog before
// it. It is 0 if the device was idle.
//
// Pass all requests that are pending before a Pick, not only the picked batch. Requests
// that waited too long are late and not in the batch, so the batch's waits would always
// look short.
func WaitForRunning(pending []Request, began, ended int64) time.Duration {
	var longest int64
	for _, r := range pending {
		longest = max(longest, ended-max(r.Whole, began))
	}
	return time.Duration(longest)
}

// State is everything that a rule knows. It is a value: copy it, keep it, compare it.
type State struct {
	// Limit is the batch limit in requests. The batch that may run is Rule.Size, the
	// largest prepared size within it.
	Limit float64
	// Fit is the present judgement of the share.
	Fit Fit
	// Hits and Misses count the latest successive batches within and beyond the
	// objective; at most one of them is not 0. Misses are those at the smallest limit.
	Hits, Misses int

	model model

	// sat is the part of a running batch (0..1) that the oldest pending request waits
	// for, biased upwards (lean); 1 until there is an observation.
	sat float64
	// aggregated is the aggregation time in seconds, biased upwards (lean).
	aggregated float64
	// previous is the time in seconds of the last batch, 0 before the first.
	previous float64
	// overload is 1 when requests were answered late, and then fades (0..1).
	overload float64
	// contentBatches counts successive batches at the limit, all within the objective, that did
	// not raise the limit. patience is how many of them justify a probe.
	contentBatches, patience int
	// probe is the size of a trial: the limit was raised to it, and it has not run
	// twice yet. It is 0 if there is no trial.
	probe int
	// first is the first batch of a larger size (Rule.learn), until a second one ran.
	first struct {
		size int
		time float64 // in seconds
	}

	// ended is when the last batch ended, and demoted when the last demoted one did.
	ended, demoted int64
	// stretch is the recent ratio of a demoted batch's time to the model's expectation,
	// biased upwards (lean); at least 1.
	stretch float64
}

// Rule is one batching rule with its configuration. It is immutable: any number of
// goroutines may use it.
type Rule struct {
	name string
	cfg  Config
	// min is the smallest limit: 1, or the ladder's first step. A model with a fixed
	// batch has no smaller one, and fewer requests take as long.
	min  int
	max  int // the ladder's last step
	next func(*Rule, State, Observation, bool) State
}

// changes are the rules by name: how the limit changes after a batch.
var changes = map[string]func(*Rule, State, Observation, bool) State{SLAB: nextSLAB, AIMD: nextAIMD, One: nextSame, Fixed: nextSame}

// New returns the rule of that name: SLAB, AIMD, One or Fixed. It copies the
// configuration's ladder.
func New(name string, c Config) (*Rule, error) {
	r := &Rule{name: name, cfg: c, min: 1, next: changes[name]}
	ladder := slices.Clone(c.Ladder)
	ascends := slices.Equal(ladder, slices.Compact(slices.Sorted(slices.Values(ladder))))
	switch {
	case r.next == nil:
		return nil, fmt.Errorf("unknown batching rule %q: want %s, %s, %s or %s", name, SLAB, AIMD, One, Fixed)
	case c.SLO <= 0 || len(ladder) == 0 || ladder[0] < 1 || !ascends || name == Fixed && (c.Fixed < 1 || c.Delay < 0):
		return nil, fmt.Errorf("batching rule %s: wrong settings: %+v", name, c)
	}
	r.cfg.Ladder, r.max = ladder, ladder[len(ladder)-1]
	if name != One {
		r.min = ladder[0]
	}
	return r, nil
}

// Name returns the rule's name.
func (r *Rule) Name() string { return r.name }

// Start returns the state before any observation: the smallest limit, or the fixed one.
func (r *Rule) Start() State {
	limit := r.min
	if r.name == Fixed {
		limit = r.cfg.Fixed
	}
	return State{Limit: float64(limit), sat: 1, patience: firstPatience, model: newModel(), stretch: 1}
}

// Warm teaches the state the time of a batch of that size without requests (a warm-up).
// It does not change limit and fit. But a timed size is no longer unknown, so the limit
// may grow to it at once.
func (r *Rule) Warm(s State, padded int, elapsed time.Duration) State {
	if padded < 1 || elapsed <= 0 {
		return s
	}
	s.model = s.model.learn(float64(padded), elapsed.Seconds(), false)
	return s
}

// Grown returns the state for a rule that replaces before, a rule with fewer sizes. No
// batch of the new sizes was timed, and the line through the others says little about
// them: one size shows no slope. So if SLAB's limit was the largest size, the next full
// batch tries the step above it.
func (r *Rule) Grown(s State, before *Rule) State {
	if r.name != SLAB || s.probe > 0 || r.Size(s) < before.max {
		return s
	}
	if next := r.step(r.Size(s)); next > r.Size(s) {
		s.contentBatches, s.probe, s.Limit = 0, next, float64(next)
	}
	return s
}

// Size is the maximum number of requests in the next batch, at least 1: the largest
// prepared size within the limit. Only One goes below the smallest prepared size.
func (r *Rule) Size(s State) int {
	n := max(r.min, min(int(s.Limit), r.max))
	i, found := slices.BinarySearch(r.cfg.Ladder, n)
	if !found {
		i--
	}
	if i < 0 {
		return n
	}
	return r.cfg.Ladder[i]
}

// Ladder returns the prepared sizes, which the caller must not change.
func (r *Rule) Ladder() []int { return r.cfg.Ladder }

// Pad is the prepared size in which n requests run: the ladder's next step. More than
// the largest do not run at once; Pad then returns n.
func (r *Rule) Pad(n int) int {
	if i, _ := slices.BinarySearch(r.cfg.Ladder, n); i < len(r.cfg.Ladder) {
		return max(n, r.cfg.Ladder[i])
	}
	return n
}

// Expected is the tail estimate of gather + infer for a batch of n requests, padding
// included; 0 before any observation.
func (r *Rule) Expected(s State, n int) time.Duration {
	return seconds(s.model.at(float64(r.Pad(n))) * (1 + tailDeviations*min(s.model.deviation(), maxDeviation)))
}

// Typical is the mean time of gather + infer for a batch of n requests, while Expected is
// the tail.
func (r *Rule) Typical(s State, n int) time.Duration {
	return seconds(s.model.at(float64(r.Pad(n))))
}

// Next returns the state after an observation. It allocates nothing.
func (r *Rule) Next(s State, o Observation) State {
	if o.Batch < 1 || o.Padded < o.Batch || o.Elapsed <= 0 {
		return r.count(s, true) // all candidates were late
	}
	if o.Demoted {
		return r.nextDemoted(s, o)
	}
	s.ended = o.Ended
	t := o.Elapsed.Seconds()
	if s.previous > 0 {
		s.sat = lean(s.sat, min(1, o.Waited.Seconds()/s.previous))
	}
	s.aggregated = lean(s.aggregated, o.Aggregated.Seconds())
	s.previous = t
	left := r.cfg.SLO - o.Aggregated
	wrong := o.Elapsed <= left && r.Expected(s, o.Padded) > left // a probe proves it
	s = r.learn(s, o.Padded, t, wrong)

	if o.Late > 0 {
		s.overload = 1
	} else {
		s.overload -= s.overload / 64
	}
	miss := o.Aggregated+o.Waited+o.Elapsed > r.cfg.SLO
	s = r.count(s, miss || o.Late > 0)
	return r.next(r, s, o, miss)
}

// untimed reports whether only batches of the smallest size were timed. The line then has
// no slope.
func (r *Rule) untimed(s State) bool { return s.model.largest <= float64(r.min) }

// learn teaches the model the time t of a batch, in seconds. The first batch of a larger size
// gives the line its slope, and may be disturbed: a framework prepares some things only then.
// If much depends on it, because the size is much larger or requests are late, the model
// learns from the second one.
func (r *Rule) learn(s State, padded int, t float64, wrong bool) State {
	if r.untimed(s) && padded > r.min && (padded > maxGrowth*r.min || r.guesses(s)) {
		if s.first.size == 0 {
			s.first.size, s.first.time = padded, t
			return s
		}
		if padded <= s.first.size {
			t = min(t, s.first.time)
		}
		s.first.size = 0
	}
	s.model = s.model.learn(float64(padded), t, wrong)
	return s
}

// nextDemoted returns the state after a demoted batch. The batch's time says nothing
// about guaranteed ones, so model, limit and fit stay as they are.
//
// A batch that took longer than the objective counts as if it took the objective. Both
// predict that requests are late, and this way a stall is forgotten after a few probes.
func (r *Rule) nextDemoted(s State, o Observation) State {
	s.demoted = o.Ended
	expected := s.model.at(float64(o.Padded))
	if expected == 0 {
		return s
	}
	ratio := max(1, min(o.Elapsed, r.cfg.SLO).Seconds()/expected)
	if ratio > s.stretch {
		s.stretch += (ratio - s.stretch) / 2
	} else {
		s.stretch += (ratio - s.stretch) / 8
	}
	return s
}

// left is the part of the objective that remains after aggregation, in seconds.
func (r *Rule) left(s State) float64 { return max(0, r.cfg.SLO.Seconds()-s.aggregated) }

// count updates the fit, and the hits and misses behind it.
func (r *Rule) count(s State, miss bool) State {
	switch {
	case !miss:
		s.Misses = 0
		s.Hits = min(s.Hits+1, fitAfter)
	case r.Size(s) == r.min:
		s.Hits = 0
		s.Misses = min(s.Misses+1, fitAfter)
	default:
		s.Hits, s.Misses = 0, 0
	}
	switch {
	case s.Hits == fitAfter:
		s.Fit = fitOver
	case s.Misses == fitAfter:
		s.Fit = fitUnder
	default:
		s.Fit = fitUnknown
	}
	return s
}

// atLimit reports whether a batch says something about the limit: it used at least three
// quarters of it.
func (r *Rule) atLimit(s State, o Observation) bool { return 4*o.Batch >= 3*r.Size(s) }

const (
	// firstPatience is how many successful batches lead to the first probe. Patience
	// doubles with each probe, up to maxPatience. A probe that is too large costs a
	// batch. In the long run that is at most 1 batch in 1,024, a tenth of what a 99 %
	// objective allows.
	firstPatience  = 2
	secondPatience = 128
	maxPatience    = 1024
	// maxOverload is the maximum time of a batch in overload, as a part of left, the
	// rest of the objective. Twice the sustainable rate can fill such a batch. A batch of
	// the time t takes the requests of the last (left - t) before it, so they fill it if
	// rate · (left - t) = size. The sustainable rate has rate · left/2 = size.
	maxOverload = 2.0 / 3
	// maxGrowth is the maximum of the next limit, in multiples of the largest batch that
	// was ever timed.
	maxGrowth = 2
)

// nextSLAB moves the limit to the size whose mean time is the target. It raises the limit in
// proportion to the headroom, and lowers it in proportion to the overflow.
func nextSLAB(r *Rule, s State, o Observation, miss bool) State {
	if s.probe > 0 && (!miss && o.Padded < s.probe || o.Padded == s.first.size) {
		return s // the trial has not run twice yet
	}
	s.probe = 0
	size := r.Size(s)
	atLimit := r.atLimit(s, o)
	fits := s.model.sizeFor(r.target(s))
	if fits <= s.Limit {
		s.Limit = max(float64(r.min), fits)
	} else if atLimit {
		// Only a full batch shows that a larger limit would be used, and what batches
		// near it cost.
		reach := max(float64(max(maxGrowth*o.Batch, r.step(size))), s.model.largest)
		s.Limit = max(s.Limit, min(fits, reach, float64(r.max)))
	}
	if miss || r.Size(s) != size {
		s.contentBatches = 0
		return s
	}
	if !atLimit {
		return s
	}
	// The model is a line through the observations, and a device may be faster than its
	// line: observations of one size give no slope. So a limit that has fitted for long
	// tries the next step, less and less often.
	if s.contentBatches++; s.contentBatches >= s.patience && size < r.max {
		s.contentBatches = 0
		s.patience = min(max(2*s.patience, secondPatience), maxPatience)
		s.probe = r.step(size)
		s.Limit = float64(s.probe)
	}
	return s
}

// guesses reports whether requests are late, and a trial is the first of more than the
// smallest size. The line may predict that every request would be late in it. But without
// larger batches they stay late, so the trial runs nevertheless.
func (r *Rule) guesses(s State) bool {
	recently := s.overload > 0.5 // within the last 44 batches
	return s.probe > 0 && r.untimed(s) && recently
}

// target is how many seconds a batch may take on average. It is chosen so that the tail
// of wait and batch fits the rest of the objective after aggregation:
//
//	(SLO - aggregation) / (1 + sat + z·dev·sqrt(1 + sat²))
//
// The denominator is that tail in units of a batch's mean time: two batches with
// independent deviations. No request need then be late. If requests are late anyway, they
// arrive faster than such batches take them, for a moment or for long. The target then
// moves towards maxOverload.
func (r *Rule) target(s State) float64 {
	left := r.left(s)
	tail := tailDeviations * s.model.deviation()
	all := left / (1 + s.sat + tail*math.Sqrt(1+s.sat*s.sat))
	return all + s.overload*max(0, maxOverload*left-all)
}

// step is the next prepared size above n, at most the largest.
func (r *Rule) step(n int) int { return min(r.Pad(n+1), r.max) }

const (
	// aimdIncrease is what a full batch within the objective adds to the limit. In
	// GSLICE's published traces, Clipper with VGG-19 gets 18, 30 and 44 above the first
	// batch in 2.5, 5.2 and 9.5 s. Its batches take 33, 42 and 52 ms on average. That is
	// a quarter of a request per batch, each time.
	aimdIncrease = 0.25
	// aimdDecrease is the factor of a miss: "a small multiplicative backoff, reducing the
	// batch size by 10 %" (Clipper, section 4.3.1).
	aimdDecrease = 0.9
)

// nextAIMD is Clipper's rule on the same observations: additive increase while the
// objective is met, multiplicative decrease when it is missed.
func nextAIMD(r *Rule, s State, o Observation, miss bool) State {
	switch {
	case miss:
		s.Limit = max(float64(r.min), s.Limit*aimdDecrease)
	case r.atLimit(s, o):
		s.Limit = min(s.Limit+aimdIncrease, float64(r.max))
	}
	return s
}

// nextSame does not change the limit: one request per batch, or a fixed number.
func nextSame(_ *Rule, s State, _ Observation, _ bool) State { return s }

// lean follows x quickly upwards and slowly downwards. It settles high in the
// distribution of x but does not follow a single extreme.
func lean(v, x float64) float64 {
	if x > v {
		return v + (x-v)/4
	}
	return v + (x-v)/32
}

func seconds(s float64) time.Duration {
	return time.Duration(min(s*float64(time.Second), math.MaxInt64/2))
}
