package shm

import _ "unsafe" // for go:linkname

// pin keeps Go's scheduler from preempting the calling goroutine, until unpin. No call that
// may block or make a system call may come between them.
//
// Go preempts a goroutine that has run for 10 ms. If the goroutine is locked to its thread,
// it gives up that thread. Another thread then finds it runnable and wakes the first: two
// wakes by threads that must wait for a CPU themselves. In the middle of a hand-over this was
// measured to cost 0.1 to 12 ms, one time in ten.
//
//go:linkname pin runtime.procPin
func pin() int

//go:linkname unpin runtime.procUnpin
func unpin()
