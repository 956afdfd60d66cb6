package slab

import "time"

// On a device where two batches can be in flight, the loop asks whether to begin a
// second one beside the one that runs. The second fills what the first leaves idle; but
// what the two share slows both down, and a batch that begins later is fuller. Which of
// the two rules is better depends on how much a batch leaves idle (overlap_test.go has
// both on simulated devices, from ones that do two batches at once more slowly than one
// after the other to ones that do them in two thirds of the time).

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
