// Package floor measures the min time that waking another process takes on this
// machine now: one futex, nothing around it. Benchmarks compare it with what
// Penstock does with the same call, so that a noisy machine does not matter.
//
//	 parent                              child (the same program, re-executed)
//	 ──────                              ─────
//	                                  1. sleeps in the kernel on the bell
//	2. waits a while, stamps the time,
//	   rings the bell  ───────────────> 3. stamps the time, rings back
//	4. the sample is the difference
package floor

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/penstock/penstock/internal/futex"
	"github.com/penstock/penstock/shm"
	"github.com/penstock/penstock/shm/cpuset"
)

// childVariable marks the re-executed program as the child, and holds the
// number of samples.
const childVariable = "PENSTOCK_FLOOR_CHILD"

// cpuVariable is the CPU to which the child pins itself, or -1 for any.
const cpuVariable = "PENSTOCK_FLOOR_CPU"

// wakeGap is the pause before each wake, so that the sleeper and its CPU really
// sleep.
const wakeGap = 200 * time.Microsecond

// patience is how long either side waits before it considers the other dead.
const patience = 10 * time.Second

// maxSamples bounds n: a child reads it from its environment.
const maxSamples = 1 << 20

// regionBytes is the shared region: the bell, its answer and the child's stamp,
// each on its own cache line.
const regionBytes = 3 * 64

// errNoAnswer is returned by MeasureWake when the child does not answer. One
// cause is a program that does not call MaybeChild.
var errNoAnswer = errors.New("woken process did not answer")

// words are the words of the region.
type words struct {
	bell, answer *atomic.Uint32
	stamp        *atomic.Int64 // when the child woke, nanoseconds of shm.Now
}

// MaybeChild makes this process the woken side of a measurement if it was
// started as such, and then does not return. main calls it before anything
// else.
func MaybeChild() {
	text, ok := os.LookupEnv(childVariable)
	if !ok {
		return
	}
	n, err := strconv.Atoi(text)
	if err == nil {
		err = answer(n)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "floor:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// childFD is the descriptor of the inherited region, the first after standard
// input, output and error.
const childFD = 3

// answer runs in the child.
func answer(n int) error {
	if n < 0 || n > maxSamples {
		return fmt.Errorf("%d samples: want at most %d", n, maxSamples)
	}
	region, err := shm.Map(os.NewFile(childFD, "region"), regionBytes, true)
	if err != nil {
		return err
	}
	w := wordsIn(region.Bytes())
	runtime.LockOSThread()
	if cpu, err := strconv.Atoi(os.Getenv(cpuVariable)); err == nil && cpu >= 0 {
		if err := cpuset.PinThread(0, []int{cpu}); err != nil {
			return err
		}
	}
	// The first answer only shows that the child runs.
	for i := range uint32(n + 1) {
		for w.bell.Load() == i {
			if futex.Wait(w.bell, i, shm.Now()+int64(patience)) {
				return errNoAnswer
			}
		}
		w.stamp.Store(shm.Now())
		futex.Ring(w.answer)
	}
	return nil
}

// MeasureWake wakes a sleeping process n times, wakeGap apart, and returns the
// duration of each wake. It counts from before the wake call to the woken
// process's first instruction. Both are Go programs with locked threads. The
// calling program must call MaybeChild first thing in main.
func MeasureWake(n int) (samples []time.Duration, err error) { return measure(n, wakeGap, -1) }

// MeasureWakeAcross is MeasureWake with another gap, and with each side pinned
// to its own CPU if there are two. The longer a CPU has slept, the longer it
// may take to wake. Two processes that share a CPU never find it asleep.
func MeasureWakeAcross(n int, gap time.Duration) (samples []time.Duration, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cpus, err := cpuset.Allowed()
	if err != nil {
		return nil, fmt.Errorf("measure wake: %w", err)
	}
	if len(cpus) < 2 {
		return measure(n, gap, -1)
	}
	if err := cpuset.PinThread(0, cpus[:1]); err != nil {
		return nil, fmt.Errorf("measure wake: %w", err)
	}
	defer func() { err = errors.Join(err, cpuset.PinThread(0, cpus)) }()
	return measure(n, gap, cpus[1])
}

// measure pins the child to cpu, unless that is -1.
func measure(n int, gap time.Duration, cpu int) (samples []time.Duration, err error) {
	if n < 0 || n > maxSamples {
		return nil, fmt.Errorf("measure wake: %d samples: want at most %d", n, maxSamples)
	}
	region, err := shm.Create("penstock-floor", regionBytes, shm.Options{Writable: true})
	if err != nil {
		return nil, fmt.Errorf("measure wake: %w", err)
	}
	defer func() { err = errors.Join(err, region.Close()) }()

	// The kernel kills the child when the thread that started it ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	child := exec.Command("/proc/self/exe")
	child.Env = append(os.Environ(), childVariable+"="+strconv.Itoa(n), cpuVariable+"="+strconv.Itoa(cpu))
	child.ExtraFiles = []*os.File{region.File()}
	child.Stderr = os.Stderr
	child.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := child.Start(); err != nil {
		return nil, fmt.Errorf("measure wake: start child: %w", err)
	}
	samples, err = wakes(wordsIn(region.Bytes()), n, gap)
	if err != nil {
		_ = child.Process.Kill()
	}
	if ended := child.Wait(); err == nil {
		err = ended
	}
	if err != nil {
		return nil, fmt.Errorf("measure wake: %w", err)
	}
	return samples, nil
}

// wakes runs in the parent.
func wakes(w words, n int, gap time.Duration) ([]time.Duration, error) {
	samples := make([]time.Duration, 0, n)
	for i := range uint32(n + 1) {
		time.Sleep(gap)
		before := shm.Now()
		futex.Ring(w.bell)
		for w.answer.Load() == i {
			if futex.Wait(w.answer, i, before+int64(patience)) {
				return nil, errNoAnswer
			}
		}
		if i > 0 {
			samples = append(samples, time.Duration(w.stamp.Load()-before))
		}
	}
	return samples, nil
}
