package batching

import "time"

// If a device can have two batches in flight, the loop decides when to begin a second one
// next to the first. The second batch fills the idle part of the device. But both slow down
// where they share the device, and a batch that begins later is fuller. The model decides
// which of the two rules below answers more requests, so Overlap measures it.

// NearEnd reports whether to begin the next batch so that its inference can start as soon
// as the first one's ends. That is so if requests wait and the rest of the first batch
// takes no longer than lead. left is that rest: Rule.Typical less the time since the batch
// began, and less the time in which its requests are answered. lead is the time from a batch's
// dispatch until it is gathered. NearEnd hides gather, launch and answers, and delays nothing: on no simulated device does it answer fewer
// requests in time than one batch at a time.
func NearEnd(waiting int, left, lead time.Duration) bool {
	return waiting > 0 && left <= lead
}

// HalfFull reports whether the waiting requests fill half of the largest batch (Rule.Size),
// at any time. It answers more than NearEnd if one batch leaves a good part of the device
// idle, and fewer otherwise. With two in flight a request waits for more, so batches must
// be smaller to meet the objective.
func HalfFull(waiting, size int) bool {
	return waiting > 0 && 2*waiting >= size
}

// Overlap chooses between NearEnd and HalfFull. It compares the requests per second that
// guaranteed batches answer while requests wait. Overlap is a value; its zero
// value uses NearEnd.
//
// After some saturated windows the other rule decides for one window, as a trial. It is chosen
// if it answers minGain times as many. Trials become rarer while they fail.
//
// A window is saturated if requests were late, or if every batch was full. Late requests alone
// do not show it: clients with a limited number in flight wait for their answers, and never send
// more than a slow device can take. Below saturation both rules answer all requests, so a trial
// would cost latency and show nothing.
type Overlap struct {
	half, trial    bool    // HalfFull is chosen; the other rule is on trial
	rate           float64 // of the chosen rule in its last window, in requests per nanosecond
	windows        int     // saturated windows of the chosen rule since the last trial
	failed         int     // successive failed trials
	batches        int     // of this window, negative while the batch limit follows a change
	requests, late int     // of these batches
	full           int     // of these batches
	began, ended   int64   // end of the batch before the window, and of the last batch
}

const (
	windowBatches = 48
	// settleBatches are not counted after a change of the rule.
	settleBatches = 16
	// minGain is more than the noise of two windows.
	minGain = 1.05
	// maxFailed bounds the windows between two trials to 2^maxFailed. A trial that fails
	// costs about a third of the requests of one window.
	maxFailed = 8
)

// HalfFull reports whether HalfFull decides when the next batch begins, instead of NearEnd.
func (v Overlap) HalfFull() bool { return v.half != v.trial }

// Next returns the choice after a batch. A pause of the device for lack of requests, or a
// demoted batch, begins a new window and ends a trial.
func (v Overlap) Next(o Observation) Overlap {
	paused := o.Waited <= 0 && o.Ended-int64(o.Elapsed) > v.ended
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
	if o.Full {
		v.full++
	}
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
	case v.late > 0 || v.full == v.batches:
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
	v.batches, v.requests, v.late, v.full, v.began = -settle, 0, 0, 0, v.ended
	return v
}
