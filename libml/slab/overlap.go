package slab

// Overlap reports whether a second batch should be begun while one runs, on a device
// where two can be in flight: waiting requests are there for it, and size is the most
// that a batch may have (Rule.Size).
//
// The second fills what the first leaves idle, and its gather, launch and results
// cost nobody any time; but it shares the device with the first, which it slows down,
// and it is as large as what waits now. So it must be worth a batch: half of one at
// least, or what waits is better off in a fuller one after the first.
func Overlap(waiting, size int) bool { return 2*waiting >= max(1, size) }
