package runclock

import (
	"context"
	"errors"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// hand is a monotonic clock that a test moves.
type hand struct {
	mu  sync.Mutex
	now time.Duration
}

func (h *hand) elapsed() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.now
}

func (h *hand) move(d time.Duration) {
	h.mu.Lock()
	h.now += d
	h.mu.Unlock()
}

func TestClock(t *testing.T) {
	type step struct {
		pass  time.Duration // on the monotonic clock
		ticks bool          // the ticker fires then
		want  time.Duration // expected time of the clock afterwards
	}
	for _, row := range []struct {
		name  string
		steps []step
	}{
		{"runs on between ticks", []step{{30 * time.Millisecond, false, 30 * time.Millisecond}, {20 * time.Millisecond, true, 50 * time.Millisecond}}},
		{"counts a late tick whole", []step{{90 * time.Millisecond, true, 90 * time.Millisecond}, {50 * time.Millisecond, true, 140 * time.Millisecond}}},
		{"is read before the ticker after a stop", []step{{40 * time.Millisecond, false, 40 * time.Millisecond}, {time.Hour, false, 100 * time.Millisecond}, {0, true, 100 * time.Millisecond}, {10 * time.Millisecond, false, 110 * time.Millisecond}}},
		{"is read after the ticker after a stop", []step{{time.Hour, true, 100 * time.Millisecond}, {0, false, 100 * time.Millisecond}, {50 * time.Millisecond, true, 150 * time.Millisecond}}},
		{"adds one step per stop", []step{{time.Minute, true, 100 * time.Millisecond}, {time.Minute, true, 200 * time.Millisecond}, {time.Minute, true, 300 * time.Millisecond}}},
	} {
		t.Run(row.name, func(t *testing.T) {
			var h hand
			c := New(h.elapsed)
			for i, s := range row.steps {
				h.move(s.pass)
				if s.ticks {
					c.Tick()
				}
				if got := c.Now(); got != s.want {
					t.Fatalf("step %d: clock says %v, want %v", i, got, s.want)
				}
			}
		})
	}
}

func TestClockReaders(t *testing.T) {
	var h hand
	c := New(h.elapsed)
	var readers sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			for last := time.Duration(0); last < 10*time.Second; {
				now := c.Now()
				if now < last {
					t.Errorf("clock went back from %v to %v", last, now)
					return
				}
				last = now
			}
		})
	}
	for range 101 {
		h.move(time.Hour) // a stop before each tick
		c.Tick()
	}
	readers.Wait()
}

func TestClockAllocates(t *testing.T) {
	if n := testing.AllocsPerRun(100, func() { Now() }); n > 0 {
		t.Errorf("Now allocates %v times per call", n)
	}
}

// TestUntil simulates a deadline after a stop: it has passed, even if data has arrived.
func TestUntil(t *testing.T) {
	late := os.ErrDeadlineExceeded
	for _, row := range []struct {
		name    string
		stopped []time.Duration // time that passes in each call of op, in one jump
		arrives int             // the call in which op succeeds; 0: never
		calls   int
		err     error
	}{
		{"answer at once", nil, 1, 1, nil},
		{"answer arrived during a stop", []time.Duration{time.Hour}, 2, 2, nil},
		{"answer found by the last call", []time.Duration{time.Hour, time.Hour, time.Hour}, 4, 4, nil},
		{"no answer", []time.Duration{time.Hour, time.Hour, time.Hour}, 0, 4, late},
	} {
		t.Run(row.name, func(t *testing.T) {
			var h hand
			c := New(h.elapsed)
			calls := 0
			// Each stop counts as 100 ms.
			err := c.Until(250*time.Millisecond, func(time.Time) error { return nil }, func() error {
				calls++
				if calls == row.arrives {
					return nil
				}
				if calls <= len(row.stopped) {
					h.move(row.stopped[calls-1])
					c.Tick()
				}
				return late
			})
			if !errors.Is(err, row.err) || calls != row.calls {
				t.Errorf("got %v after %d calls, want %v after %d", err, calls, row.err, row.calls)
			}
		})
	}
	t.Run("other error", func(t *testing.T) {
		broken := errors.New("broken pipe")
		c := New(new(hand).elapsed)
		if err := c.Until(time.Hour, func(time.Time) error { return nil }, func() error { return broken }); err != broken {
			t.Errorf("got %v, want %v", err, broken)
		}
	})
}

func TestWithTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h hand
		c := New(h.elapsed)
		ctx, cancel := c.WithTimeout(t.Context(), 250*time.Millisecond)
		defer cancel()
		if limit, ok := Limit(ctx); !ok || limit != 250*time.Millisecond {
			t.Errorf("limit is %v, %v; want 250 ms", limit, ok)
		}

		h.move(time.Hour) // stopped: counts as 100 ms, although the timer fires
		time.Sleep(240 * time.Millisecond)
		c.Tick()
		synctest.Wait()
		if ctx.Err() != nil {
			t.Fatalf("ended after a stop: %v", context.Cause(ctx))
		}

		for range 4 {
			time.Sleep(50 * time.Millisecond)
			h.move(50 * time.Millisecond)
			c.Tick()
		}
		time.Sleep(250 * time.Millisecond)
		synctest.Wait()
		if context.Cause(ctx) != context.DeadlineExceeded {
			t.Errorf("ended with %v after 300 ms of running, want %v", context.Cause(ctx), context.DeadlineExceeded)
		}
	})
}
