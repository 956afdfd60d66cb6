package slab

import "time"

// If a device can have two batches in flight, the loop asks whether to begin a second one
// while one runs. The second fills what the first leaves idle. But what the two share slows
// both down, and a batch that begins later is fuller. Which of the two rules below answers
// more requests depends on the model, so Overlap measures it.

// NearEnd reports whether the next batch should begin so that it can be inferred as soon
// as the first has been: requests wait, and what is left of the first (Rule.Typical, less
// what it has run) is no more than lead, the time from a batch's dispatch to where it is
// gathered. It hides gather and launch and holds nothing up: on no simulated device does
// it answer fewer in time than one batch at a time.
func NearEnd(waiting int, left, lead time.Duration) bool {
	return waiting > 0 && left <= lead
}

// HalfFull reports whether as many requests wait as make half of the most that a batch
// may have (Rule.Size), whenever that is. It answers more than NearEnd where one batch
// leaves a good part of the device idle, and fewer where it does not: two in flight make
// a request wait for more, so batches must be smaller to keep the objective.
func HalfFull(waiting, size int) bool {
	return waiting > 0 && 2*waiting >= size
}

// Overlap chooses between NearEnd and HalfFull by the requests per second that guaranteed
// batches answer while the device has no pause. It is a value; its zero uses NearEnd.
//
// If requests are late for some windows, the other rule decides for one window, as a trial.
// It is chosen if it answers minGain times as many. Trials get rarer while they fail.
type Overlap struct {
	half, trial    bool    // HalfFull is chosen; the other rule is on trial
	rate           float64 // of the chosen rule in its last window, in requests per nanosecond
	windows        int     // with late requests, of the chosen rule since the last trial
	failed         int     // successive trials
	batches        int     // of this window, negative while the batch limit follows a change
	requests, late int     // of these batches
	began, ended   int64   // end of the batch before the window, and of the last batch
}

const (
	windowBatches = 48
	// settleBatches are not counted after a change of the rule.
	settleBatches = 16
	// minGain is above the noise of two windows.
	minGain = 1.05
	// maxFailed bounds the windows between two trials to 2^maxFailed. A trial that fails
	// costs about a third of the requests of one window.
	maxFailed = 8
)

// HalfFull reports whether HalfFull decides when the next batch begins, instead of NearEnd.
func (v Overlap) HalfFull() bool { return v.half != v.trial }

// Next is the choice after a batch. A pause of the device, or a demoted batch, begins a new
// window and ends a trial.
func (v Overlap) Next(o Observation) Overlap {
	paused := o.Ended-int64(o.Elapsed) > v.ended
	v.ended = o.Ended
	if o.Demoted || paused {
		v.trial = false
		return v.restart(0)
	}
	if v.batches++; v.batches <= 0 {
		v.began = v.ended
		return v
	}
	v.requests += o.Batch
	v.late += o.Late
	if v.batches < windowBatches {
		return v
	}

	rate := float64(v.requests) / float64(max(1, v.ended-v.began))
	switch {
	case v.trial && rate > minGain*v.rate:
		v.half, v.trial, v.rate, v.failed = !v.half, false, rate, 0
		return v.restart(0)
	case v.trial:
		v.trial, v.failed = false, min(v.failed+1, maxFailed)
		return v.restart(settleBatches)
	case v.late > 0:
		v.windows++
	}
	v.rate = rate
	if v.windows < 1<<v.failed {
		return v.restart(0)
	}
	v.trial, v.windows = true, 0
	return v.restart(settleBatches)
}

func (v Overlap) restart(settle int) Overlap {
	v.batches, v.requests, v.late, v.began = -settle, 0, 0, v.ended
	return v
}
