package loadgen

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/penstock/penstock/shm"
	"golang.org/x/sys/unix"
)

// Clock tells the time and wakes sleepers. Times are nanoseconds since the
// clock's own epoch. Any goroutine may use it.
type Clock interface {
	Now() int64
	// Alarm returns a sleeper. Its sleep ends early when ctx ends.
	Alarm(ctx context.Context) (Alarm, error)
}

// Alarm puts one goroutine to sleep.
type Alarm interface {
	// Wait sleeps until the given time and reports true. It reports false as
	// soon as the alarm's context has ended.
	Wait(until int64) bool
	Close() error
}

// SystemClock is CLOCK_MONOTONIC, the clock of package shm.
//
// Its alarms are timer descriptors, which the Go runtime polls as it polls
// sockets. They are exact to tens of microseconds; the runtime's own timers are
// rounded up to the millisecond of its poll. A sleeper holds neither a thread
// nor a processor, so nothing needs to spin.
type SystemClock struct{}

func (SystemClock) Now() int64 { return shm.Now() }

// Alarm opens a timer descriptor.
func (SystemClock) Alarm(ctx context.Context) (Alarm, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("create timer descriptor: %w", err)
	}
	a := &alarm{ctx: ctx, fd: fd, file: os.NewFile(uintptr(fd), "timerfd")}
	// A deadline in the past wakes a blocked read and fails all later reads.
	a.stop = context.AfterFunc(ctx, func() { a.file.SetReadDeadline(time.Unix(1, 0)) })
	return a, nil
}

type alarm struct {
	ctx  context.Context
	fd   int
	file *os.File
	stop func() bool
	// expirations is the buffer for a read of the descriptor.
	expirations [8]byte
}

func (a *alarm) Wait(until int64) bool {
	for a.ctx.Err() == nil && shm.Now() < until {
		at := unix.ItimerSpec{Value: unix.NsecToTimespec(until)}
		if err := unix.TimerfdSettime(a.fd, unix.TFD_TIMER_ABSTIME, &at, nil); err != nil {
			panic("loadgen: set timer: " + err.Error()) // the arguments are valid
		}
		if _, err := a.file.Read(a.expirations[:]); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			panic("loadgen: read timer: " + err.Error()) // closed while in use
		}
	}
	return a.ctx.Err() == nil
}

func (a *alarm) Close() error {
	a.stop()
	return a.file.Close()
}
