// Package guarantee decides how much of a device's time each function may count on
// (docs/sharing.md). It is pure.
//
//	Demand    what clients ask of a function: Observe
//	  need    rate × cost per request × a margin for bursts
//	Decide    whole needs while they fit, by priority and size; the others divide what is left
//	Action    guarantee, allowance, level, and whether the objective can be kept
//
// A guarantee reserves nothing: processes and drivers enforce it with priorities
// (package control/budget), and time that a function does not use belongs to the
// others. That is why an idle function keeps its need, and why a change of guarantee
// costs nothing.
package guarantee

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/penstock/penstock/control/budget"
)

// Guaranteed is the part of the device that is handed out. The rest covers what no
// function is charged for: the data path, launches, switches between processes.
const Guaranteed = 0.9

// hysteresis is by how much the need of a function that is kept may exceed what is left to it. The noise of a rate
// would otherwise change which functions are kept.
const hysteresis = 1.1

// headroom times its need is what a function within its guarantee may use at its level. With
// more, it would run small batches at the expense of lower levels (docs/adr/0022-guarantees.md).
const headroom = 1.6

// A rate follows a rise in half a second and a fall in ten: a rate that fell may rise again, and a
// guarantee that is too large costs nothing.
const (
	riseTime = 500 * time.Millisecond
	fallTime = 10 * time.Second
)

// A sample of a rate ends after sampleTime, or up to maxSampleTime if it has less than sampleSize
// requests. With shorter samples bursts of 0.1 s would count as rises.
const (
	sampleSize    = 100
	sampleTime    = 400 * time.Millisecond
	maxSampleTime = time.Second
)

// rise is by which factor a sample must raise a rate to make a new decision urgent.
const rise = 1.1

// Demand follows the rate of a function's requests. The zero value has seen none.
type Demand struct {
	rate float64 // requests per second
	// The sample that is being taken began at from, after that many arrivals.
	began    bool
	from     time.Duration
	arrivals int
}

// Observe takes in how many requests have arrived in total up to now. It reports whether the rate rose, so
// that guarantees should be decided again. Silence changes nothing: an idle function takes part with its last
// need.
func (d *Demand) Observe(arrivals int, now time.Duration) (rose bool) {
	if !d.began {
		d.began, d.from, d.arrivals = true, now, arrivals
		return false
	}
	n, elapsed := arrivals-d.arrivals, now-d.from
	if elapsed < sampleTime || n < sampleSize && elapsed < maxSampleTime {
		return false
	}
	if d.from, d.arrivals = now, arrivals; n <= 0 {
		return false
	}
	before, sample := d.rate, float64(n)/elapsed.Seconds()
	switch {
	case before == 0:
		d.rate = sample
	case sample > before:
		d.rate = follow(before, sample, elapsed, riseTime)
	default:
		d.rate = follow(before, sample, elapsed, fallTime)
	}
	return d.rate > rise*before
}

// follow returns a mean after it was sample for the time that has elapsed.
func follow(mean, sample float64, elapsed, over time.Duration) float64 {
	return mean + (sample-mean)*-math.Expm1(-elapsed.Seconds()/over.Seconds())
}

// Rate returns requests per second.
func (d *Demand) Rate() float64 { return d.rate }

// Function is what Decide knows of one instance of a function. Device times are of the
// whole device, as if the work had it alone.
type Function struct {
	Name      string
	Objective time.Duration // the node's part of it
	Rate      float64       // requests per second; 0: none came yet
	// A batch of n takes Fixed + n * Cost. Both are 0 if they are not known yet. Cost alone is 0 if
	// batches of all sizes take equally long.
	Fixed, Cost time.Duration
	Batch       float64 // requests per batch when the device is short (Batch)
	// LongestBatch is the device time of its largest batch (CapBatches); 0 if it is not known.
	LongestBatch time.Duration
	// SharePercent is the guarantee that the operator set, 0 if none.
	SharePercent float64
	// Priority says whose need comes first if not all fit: higher goes first.
	Priority uint8
	// Kept is what the last decision said of it (Action).
	Kept bool
}

// Batch is how many requests share a batch when the device is short: as many as arrive in a
// third of the objective, at most limit. The second third is for the batch to run, the last
// for bursts: a batch that becomes larger takes longer, and more requests wait for the next.
func Batch(rate float64, objective time.Duration, limit float64) float64 {
	return min(max(1, rate*objective.Seconds()/3), max(1, limit))
}

// Worker describes a process that serves all its members: one function with the
// guarantee that the operator set. It has the shortest objective, the highest priority, and the
// demand of all. A member counts for the cost as much as its requests do. There must be a member.
func Worker(name string, sharePercent float64, members []Function) Function {
	w := Function{Name: name, SharePercent: sharePercent, Objective: members[0].Objective}
	var work, requests, batches float64 // of the members whose costs are known
	for i := range members {
		f := &members[i]
		w.Objective = min(w.Objective, f.Objective)
		w.LongestBatch = max(w.LongestBatch, f.LongestBatch)
		w.Priority = max(w.Priority, f.Priority)
		w.Rate += f.Rate
		if !f.costKnown() {
			continue
		}
		rate := f.Rate
		if rate == 0 {
			rate = 1 / f.Objective.Seconds() // one batch per objective, until requests tell
		}
		work += rate * f.batchCost().Seconds() / max(1, f.Batch)
		requests += rate
		batches += rate * max(1, f.Batch)
	}
	if requests > 0 {
		w.Cost = time.Duration(work / requests * float64(time.Second))
		w.Batch = batches / requests
	}
	return w
}

// costKnown reports whether the cost of a batch is known.
func (f *Function) costKnown() bool { return f.Fixed > 0 || f.Cost > 0 }

// batchCost is the device time of one batch.
func (f *Function) batchCost() time.Duration {
	return f.Fixed + time.Duration(max(1, f.Batch)*float64(f.Cost))
}

// need is the part of the device that the function needs to keep up with its rate. Its cost must be
// known.
func (f *Function) need() float64 {
	if f.Rate == 0 {
		// One batch per objective, until requests tell.
		return min(1, f.batchCost().Seconds()/f.Objective.Seconds())
	}
	return min(1, f.Rate*f.batchCost().Seconds()/max(1, f.Batch)*burstMargin(f.Batch))
}

// burstMargin times its mean is what a random stream's rate counts as. The number of
// arrivals during a batch of n varies by the square root of n, so large batches need less. A
// device that is busy two thirds of the time makes a single request wait for one other on
// average (M/D/1). Batches' times vary too, by some 5 %.
func burstMargin(batch float64) float64 { return 1.05 + 0.45/math.Sqrt(max(1, batch)) }

// Action is what a function gets.
type Action struct {
	// Kept: the guarantee is the function's need, or little less.
	Kept      bool
	Need      float64 // part of the device; 0 if not known
	Guarantee float64 // part of the device
	Allowance float64 // part of the device that it may use at its level, at least the guarantee
	Level     budget.Level
	Saved     time.Duration // device time that the balance may hold
	// LongestBatch is how long a batch may take; 0: as long as its function likes (CapBatches).
	LongestBatch time.Duration
	// Infeasible says why the objective is not guaranteed, in a sentence; empty if it is.
	Infeasible string
}

// Decide returns an Action for each function, in the same order. Guarantees that the
// operator set come first. The others get their whole needs while these fit: first the highest
// priority, then the smallest need. Those of unknown cost come last. As many as possible are kept, instead of all
// being late. Functions that do not fit divide what is left. If all fit, all do. A function of unknown cost needs an equal part.
//
// A function that is not kept comes after others of its objective: it
// always has work, and would fill the queue of its level.
func Decide(functions []Function) []Action {
	actions := make([]Action, len(functions))
	left := Guaranteed
	var open []int
	for i := range functions {
		f, a := &functions[i], &actions[i]
		a.Level = budget.LevelOf(f.Objective)
		a.Need = Guaranteed / float64(len(functions))
		if f.costKnown() {
			a.Need = f.need()
		}
		if f.SharePercent > 0 {
			a.Guarantee = min(1, f.SharePercent/100)
			a.Kept = f.claim(a.Need) <= a.Guarantee
			left -= a.Guarantee
			continue
		}
		open = append(open, i)
	}
	divide(max(0, left), open, functions, actions)
	for i := range functions {
		a := &actions[i]
		if !a.Kept && a.Level > budget.MinLevel {
			a.Level--
		}
	}
	allow(functions, actions)
	for i := range actions {
		actions[i].Saved = budget.Capacity(actions[i].Allowance, functions[i].Objective, functions[i].batchCost())
	}
	for i := range functions {
		actions[i].Infeasible = infeasible(functions, actions, i, 0)
	}
	return actions
}

// allow lets functions that need no more than their guarantees use more at their levels, at most
// headroom times their needs. The needs assume full batches. If the balance ran out at the need,
// requests would wait for such batches although the device may be free.
//
// Functions beyond their guarantees come after others of their level, so what is left to
// them is no concern here, unless their objectives are shorter than another's. Guarantees that
// the operator set stay as they are.
func allow(functions []Function, actions []Action) {
	within := func(i int) bool { return functions[i].SharePercent == 0 && actions[i].Kept }
	needs, room, lowest := 0.0, Guaranteed, budget.MaxLevel
	for i, a := range actions {
		if within(i) {
			needs += a.Need
			lowest = min(lowest, a.Level)
		}
	}
	for i, a := range actions {
		if functions[i].SharePercent > 0 || !a.Kept && a.Level > lowest {
			room -= a.Guarantee
		}
	}
	for i := range actions {
		a := &actions[i]
		if a.Allowance = a.Guarantee; within(i) && needs > 0 {
			a.Allowance = max(a.Guarantee, a.Need*min(headroom, room/needs))
		}
	}
}

// claim is how much of its need must fit for the function to be kept.
func (f *Function) claim(need float64) float64 {
	if f.Kept {
		return need / hysteresis
	}
	return need
}

// divide gives what is left of the device to the open functions. Their actions must have Need. A function joins
// those that are kept if all their needs fit, and stays if all their claims do.
func divide(left float64, open []int, functions []Function, actions []Action) {
	unknown := func(f *Function) int {
		if f.costKnown() {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(open, func(i, j int) int {
		f, g := &functions[i], &functions[j]
		return cmp.Or(cmp.Compare(g.Priority, f.Priority), cmp.Compare(unknown(f), unknown(g)), cmp.Compare(f.claim(actions[i].Need), g.claim(actions[j].Need)))
	})
	needs, claims := 0.0, 0.0 // of those that are kept
	receivers := slices.Clone(open)
	for _, i := range open {
		f, a := &functions[i], &actions[i]
		claim := f.claim(a.Need)
		const rounding = 1e-9 // equal parts may add up to a little more than the whole
		if a.Kept = needs+a.Need <= left+rounding || f.Kept && claims+claim <= left; a.Kept {
			needs, claims = needs+a.Need, claims+claim
		}
	}
	receivers = slices.DeleteFunc(receivers, func(i int) bool { return actions[i].Kept })
	if len(receivers) == 0 {
		receivers = open
	}
	for _, i := range open {
		if a := &actions[i]; a.Kept {
			a.Guarantee = a.Need * left / max(left, needs)
		}
	}
	for _, i := range receivers {
		actions[i].Guarantee += max(0, left-needs) / float64(len(receivers))
	}
}

// earlier is the work of equal and higher levels before a batch of function i: the need of each
// for as long as the objective, and one batch that waits.
func earlier(functions []Function, actions []Action, i int) (work time.Duration) {
	for j := range functions {
		if j != i && actions[j].Level >= actions[i].Level {
			need := min(actions[j].Need, actions[j].Guarantee)
			work += time.Duration(need*float64(functions[i].Objective)) + functions[j].batchCost()
		}
	}
	return work
}

// infeasible says why the objective of function i cannot be kept, or nothing: it has no more than a part of its need, or
// fails the response-time test.
// The sum of three times must not exceed the objective: the function's own batch, the work of equal and
// higher levels, and the blocking time of lower levels. With MPS a lower level blocks a higher one for as
// long as its running kernel. That time is not known, so Decide leaves it out (docs/adr/0022-guarantees.md).
func infeasible(functions []Function, actions []Action, i int, blocking time.Duration) string {
	f := &functions[i]
	if !f.costKnown() {
		return ""
	}
	own, others := f.batchCost(), earlier(functions, actions, i)
	if own > f.Objective {
		return fmt.Sprintf("one batch takes %v, and the objective allows %v", brief(own), brief(f.Objective))
	}
	if a := &actions[i]; !a.Kept {
		return fmt.Sprintf("it needs %.0f %% of the device's time, and its guarantee is %.0f %%", 100*a.Need, 100*a.Guarantee)
	}
	if own+blocking+others <= f.Objective {
		return ""
	}
	runs := ""
	if blocking > 0 {
		runs = fmt.Sprintf(", one that already runs %v", brief(blocking))
	}
	return fmt.Sprintf("one batch takes %v, earlier batches of equal or shorter objectives %v%s; the objective allows %v",
		brief(own), brief(others), runs, brief(f.Objective))
}

// brief rounds to three digits.
func brief(d time.Duration) time.Duration {
	grain := time.Duration(1)
	for d >= 1000*grain {
		grain *= 10
	}
	return d.Round(grain)
}
