package shm

import (
	"runtime"
	"time"
)

// Spin is how long a side looks for work before it sleeps in the kernel. Waking
// a sleeper costs the waker some 2 µs and takes 5 to 50; looking costs the CPU
// that somebody else could use. With four CPUs or more, 5 µs bridge the gaps of
// a busy stream; with fewer, the other side needs this very CPU to make
// progress, and 1 µs only catches what is being written right now.
//
// It is a variable for the configuration's busy_poll and for benchmarks; a process sets
// it before it uses any channel.
var Spin = defaultSpin(runtime.NumCPU())

func defaultSpin(cpus int) time.Duration {
	if cpus >= 4 {
		return 5 * time.Microsecond
	}
	return time.Microsecond
}

// spinLooks is how many looks go between two readings of the clock, which costs
// as much as some dozens of them.
const spinLooks = 32

// longestSleep bounds one sleep in the kernel. Waits are ended by wakes; this is
// for a peer that wrote over a doorbell just as it rang.
const longestSleep = int64(time.Second)

// A wait that is ended again and again with nothing to show for it backs off:
// after maxFruitless such rounds each next one sleeps for backoff, so that a
// peer that rings for ever cannot have this side's CPU.
const (
	maxFruitless = 16
	backoff      = time.Millisecond
)

// sleeps are those of one wait.
type sleeps struct{ fruitless int }

// sleep sleeps until the deadline (0 for none) at most: by wait, which reports whether
// it slept for the whole time, or without it after too many fruitless rounds.
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

// pause sleeps until a time of Now, whatever the doorbells say.
func pause(until int64) { time.Sleep(time.Duration(until - Now())) }
