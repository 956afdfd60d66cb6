// Package runclock measures the time in which this process ran. SIGSTOP, a debugger,
// the freezer or a paused virtual machine may stop a process. After a stop it must not
// judge its peers by the time that passed meanwhile: they may have answered while it
// could not read.
//
// A ticker adds the time since the last tick to the clock, but never more than two
// ticks. A stop of any length therefore counts as at most two ticks, and so does each
// tick that a starved process runs late. This clock also orders events: after a stop,
// nearly the whole timeout is left for reading what has arrived, whichever timer fires
// first.
package runclock

import (
	"context"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// TickEvery is the interval at which a running process advances its clock.
const TickEvery = 50 * time.Millisecond

// maxStep is the most that one tick adds. On a busy machine a tick may be late by one
// period before its clock loses time.
const maxStep = 2 * TickEvery

// Clock is a clock that stands still while its process is stopped. Only one goroutine
// may call Tick; any goroutine may call the other methods, which do not allocate.
type Clock struct {
	elapsed func() time.Duration // monotonic, whether the process runs or not

	// A sequence lock: turn is odd while ran and at change.
	sequence    atomic.Uint64
	runningTime atomic.Int64 // running time at the last tick
	at          atomic.Int64 // elapsed() at the last tick
}

// New returns a clock over elapsed, a monotonic clock that continues during a stop. The
// caller has to call Tick every TickEvery.
func New(elapsed func() time.Duration) *Clock {
	c := &Clock{elapsed: elapsed}
	c.at.Store(int64(elapsed()))
	return c
}

// Tick advances the clock: the process runs.
func (c *Clock) Tick() {
	now := int64(c.elapsed())
	step := min(now-c.at.Load(), int64(maxStep))

	c.sequence.Add(1)
	c.runningTime.Add(step)
	c.at.Store(now)
	c.sequence.Add(1)
}

// Now returns how long the process has been running since New.
func (c *Clock) Now() time.Duration {
	for {
		turn := c.sequence.Load()
		ran, at := c.runningTime.Load(), c.at.Load()
		if turn%2 == 0 && c.sequence.Load() == turn {
			return time.Duration(ran + min(int64(c.elapsed())-at, int64(maxStep)))
		}
	}
}

// epoch is an arbitrary instant, so that no result of Time is the zero time.
var epoch = time.Unix(0, 0)

// Time returns Now as a time.Time, for code that keeps instants. Compare it only with
// other results of Time.
func (c *Clock) Time() time.Time { return epoch.Add(c.Now()) }

// Until calls op with an I/O deadline, until op returns anything but a deadline error,
// or Now reaches end. setDeadline sets the deadline of the connection that op reads or
// writes. After a deadline, op must be able to continue.
//
// The last call begins after end and may take TickEvery: it finds data that arrived
// during a stop just before end.
func (c *Clock) Until(end time.Duration, setDeadline func(time.Time) error, op func() error) error {
	for {
		left := end - c.Now()
		if err := setDeadline(time.Now().Add(max(left, TickEvery))); err != nil {
			return err
		}

		err := op()
		if !errors.Is(err, os.ErrDeadlineExceeded) || left <= 0 {
			return err
		}
	}
}

// WithTimeout returns a context that ends with the cause context.DeadlineExceeded
// (context.Cause) once limit of running time has passed.
func (c *Clock) WithTimeout(parent context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(context.WithValue(parent, limitKey{}, limit))
	end := c.Now() + limit
	go func() {
		for left := limit; left > 0; left = end - c.Now() {
			select {
			case <-time.After(left):
			case <-ctx.Done():
				return
			}
		}
		cancel(context.DeadlineExceeded)
	}()
	return ctx, func() { cancel(context.Canceled) }
}

type limitKey struct{}

// Limit returns the limit of the innermost WithTimeout that ctx is derived from. Such a
// context has no Deadline, since a stop would move it.
func Limit(ctx context.Context) (limit time.Duration, ok bool) {
	limit, ok = ctx.Value(limitKey{}).(time.Duration)
	return limit, ok
}

// Process returns the clock of this process. It ticks from the first call to the end
// of the process.
var Process = sync.OnceValue(func() *Clock {
	start := time.Now()
	c := New(func() time.Duration { return time.Since(start) })
	go func() {
		for range time.Tick(TickEvery) {
			c.Tick()
		}
	}()
	return c
})

// Now is Clock.Now of this process.
func Now() time.Duration { return Process().Now() }

// Time is Clock.Time of this process.
func Time() time.Time { return Process().Time() }

// Until is Clock.Until with the clock of this process.
func Until(end time.Duration, setDeadline func(time.Time) error, op func() error) error {
	return Process().Until(end, setDeadline, op)
}

// Within is Until with limit of running time from now.
func Within(limit time.Duration, setDeadline func(time.Time) error, op func() error) error {
	return Until(Now()+limit, setDeadline, op)
}
