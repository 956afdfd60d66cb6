package shm

import _ "unsafe" // for go:linkname

// pin keeps Go's scheduler from taking the CPU from the calling goroutine, until unpin.
// Nothing that may block or make a system call may come between them.
//
// Go preempts whoever has run for 10 ms. A goroutine that is locked to its thread then
// gives up its thread, another thread finds it runnable, and wakes the first: two
// wakes by threads that have to wait for a CPU themselves. In the middle of a hand-over
// that was measured to cost 0.1 to 12 ms, one time in ten.
//
//go:linkname pin runtime.procPin
func pin() int

//go:linkname unpin runtime.procUnpin
func unpin()
