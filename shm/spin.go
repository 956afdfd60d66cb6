package shm

import (
	"runtime"
	"time"
)

// Spin is how long a side polls for work before it sleeps in the kernel. Waking
// a sleeper costs the waker some 2 µs and takes 5 to 50 µs. Polling uses CPU
// time that other threads could use. With four CPUs or more, 5 µs bridge the
// gaps of a busy stream. With fewer, the other side needs this very CPU to make
// progress, and 1 µs only catches what it is writing right now.
//
// It is a variable for the configuration's busy_poll and for benchmarks. A
// process sets it before it uses any channel.
var Spin = defaultSpin(runtime.NumCPU())

func defaultSpin(cpus int) time.Duration {
	if cpus >= 4 {
		return 5 * time.Microsecond
	}
	return time.Microsecond
}

// spinPolls is the number of polls between two readings of the clock. One
// reading costs as much as some dozens of polls.
const spinPolls = 32

// longestSleep bounds one sleep in the kernel. Normally a wake ends a wait. The
// bound is for a peer that overwrote a doorbell just as it rang.
const longestSleep = int64(time.Second)

// A wait that ends repeatedly without result backs off: after maxFruitless such
// rounds, each further round sleeps for backoff. A peer that rings forever
// therefore cannot take this side's CPU.
const (
	maxFruitless = 16
	backoff      = time.Millisecond
)

// sleeps counts the fruitless sleeps of one wait.
type sleeps struct{ fruitless int }

// sleep sleeps at most until the deadline (0 for none). It calls wait, which
// reports whether it slept until end. After too many fruitless rounds it sleeps
// without wait.
func (s *sleeps) sleep(now, deadline int64, wait func(end int64) (timedOut bool)) {
	end := nextSleepEnd(now, deadline)
	if s.fruitless >= maxFruitless {
		pause(min(end, now+int64(backoff)))
		return
	}
	s.fruitless++
	if wait(end) {
		s.fruitless = 0
	}
}

// nextSleepEnd is when a sleep must end: at the deadline (0 for none), or after
// longestSleep.
func nextSleepEnd(now, deadline int64) int64 {
	end := now + longestSleep
	if deadline != 0 && deadline < end {
		return deadline
	}
	return end
}

// pause sleeps until a time of Now, regardless of the doorbells.
func pause(until int64) { time.Sleep(time.Duration(until - Now())) }
