package serve

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/shm"
	"github.com/penstock/penstock/wire"
)

// grantRule grants a process this batching rule.
func grantRule(rule control.BatchingRule, size int, delay time.Duration) func(*control.Attached) {
	return func(a *control.Attached) {
		a.Batching = control.Batching{Rule: rule, Size: size, Delay: delay}
	}
}

// onBoth runs a test on a CPU and on a GPU.
func onBoth(t *testing.T, test func(t *testing.T, h *harness, f *fake)) {
	for name, newHarness := range map[string]func(testing.TB, *models.Card) *harness{"cpu": newHarness, "gpu": newGPUHarness} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, testCard())
			test(t, h, h.fake())
		})
	}
}

// Every rule answers every request, with batches of at most its maximum size.
func TestBatchingRules(t *testing.T) {
	for _, rule := range control.BatchingRules {
		for _, streams := range []int{0, 2} {
			t.Run(fmt.Sprintf("%s, %d streams", rule, streams), func(t *testing.T) {
				onBoth(t, func(t *testing.T, h *harness, f *fake) {
					h.grant, h.streams = grantRule(rule, 4, 2*time.Millisecond), streams
					c := h.serving(f, 1)
					random := rand.New(rand.NewPCG(1, 2))
					for range 30 {
						n := uint32(1 + random.IntN(12))
						for slot := range n {
							h.publish(slot, h.picture(byte(slot)), nil)
							if random.IntN(4) == 0 {
								time.Sleep(time.Duration(random.IntN(1000)) * time.Microsecond)
							}
						}
						for _, slot := range h.replies(int(n)) {
							h.answered(slot, h.picture(byte(slot)))
						}
					}
					h.silent()
					sizes, _ := f.history()
					most := map[control.BatchingRule]int{control.BatchSLAB: 8, control.BatchAIMD: 8, control.BatchOne: 1, control.BatchFixed: 4}[rule]
					if slices.Max(sizes) > most {
						t.Errorf("ran batches of %d, want %d at most", slices.Max(sizes), most)
					}
					c.drained()
				})
			})
		}
	}
}

// A request arrives while the loop is about to sleep, asleep, or still busy: a missed wake
// would cost an hour.
func TestFixedSizeFull(t *testing.T) {
	onBoth(t, func(t *testing.T, h *harness, f *fake) {
		h.grant = grantRule(control.BatchFixed, 4, time.Hour)
		c := h.serving(f, 1)
		random := rand.New(rand.NewPCG(3, 4))
		for range 100 {
			for slot := range uint32(4) {
				h.publish(slot, h.picture(byte(slot)), nil)
				if random.IntN(3) == 0 {
					time.Sleep(time.Duration(random.IntN(100)) * time.Microsecond)
				}
			}
			for _, slot := range h.replies(4) {
				h.answered(slot, h.picture(byte(slot)))
			}
		}
		if sizes, _ := f.history(); len(sizes) != 100 || slices.Min(sizes) != 4 {
			t.Errorf("ran batches of %v, want 100 of 4", sizes)
		}
		c.drained()
	})
}

// Until then the loop has nothing to do, and sleeps for the maximum time.
func TestFixedSizeSleep(t *testing.T) {
	const delay = 10 * time.Minute
	onBoth(t, func(t *testing.T, h *harness, f *fake) {
		h.grant = grantRule(control.BatchFixed, 8, delay)
		l := h.loop(f)
		began := shm.Now()
		for slot := range uint32(2) {
			h.publish(slot, h.picture(byte(slot)), nil)
		}
		if l.take(); l.mayBegin() {
			t.Error("a batch of 2 begins at once")
		}
		if until := l.waitUntil(); until < began+int64(maxWait) {
			t.Errorf("it checks again %v after the first request, want %v or more", time.Duration(until-began), maxWait)
		}
		h.publish(2, h.picture(2), func(r *shm.Request, _ []shm.Fragment) { r.Complete -= int64(delay) })
		l.take()
		if until, due := l.waitUntil(), h.table.Request(2).Complete+int64(delay); until != due {
			t.Errorf("it checks again %v after the delay of the oldest request", time.Duration(until-due))
		}
		if !l.mayBegin() {
			t.Fatal("a batch does not begin after its delay")
		}
		must.OK(t, l.turn())
		for _, slot := range h.replies(3) {
			h.answered(slot, h.picture(byte(slot)))
		}
		if sizes, _ := f.history(); !slices.Equal(sizes, []int{4}) {
			t.Errorf("ran batches of %v, want one of 4, padded", sizes)
		}
	})
}

// A loop without work checks every maxWait. A shorter delay wakes it, at least in one
// of many tries.
func TestFixedSizeDelay(t *testing.T) {
	onBoth(t, func(t *testing.T, h *harness, f *fake) {
		h.grant = grantRule(control.BatchFixed, 8, time.Millisecond)
		c := h.serving(f, 1)
		shortest := time.Duration(math.MaxInt64)
		for range 20 {
			h.publish(0, h.picture(1), nil)
			slot := h.replies(1)[0]
			h.answered(slot, h.picture(1))
			shortest = min(shortest, time.Duration(h.channel.Result(slot).Dispatched-h.table.Request(slot).Complete))
		}
		if shortest >= maxWait/2 {
			t.Errorf("none of 20 batches with a delay of 1 ms began in less than %v", shortest)
		}
		c.drained()
	})
}

// Requests that wait for a batch to fill belong to the next owner.
func TestFixedSizeDrain(t *testing.T) {
	h := newHarness(t, testCard())
	f := h.fake()
	h.grant = grantRule(control.BatchFixed, 8, time.Hour)
	c := h.serving(f, 1)
	h.publish(5, h.picture(5), nil)
	h.publish(6, h.picture(6), nil)
	c.drained()
	h.silent()
	h.grant = grantRule(control.BatchOne, 0, 0)
	next := h.fake()
	d := h.serving(next, 2)
	for _, slot := range h.replies(2) {
		h.answered(slot, h.picture(byte(slot)))
	}
	d.drained()
	if sizes, _ := next.history(); !slices.Equal(sizes, []int{1, 1}) {
		t.Errorf("ran batches of %v, want two of 1", sizes)
	}
}

// A process runs late requests if its grant allows that.
func TestRunLate(t *testing.T) {
	past := func(r *shm.Request, _ []shm.Fragment) { r.Deadline = r.Complete - 1 }
	for _, rule := range control.BatchingRules {
		h, f := newHarness(t, testCard()), newFake()
		h.grant = func(a *control.Attached) {
			grantRule(rule, 2, 0)(a)
			a.RunLate = true
		}
		c := h.serving(f, 1)
		for slot := range uint32(6) {
			h.publish(slot, h.picture(byte(slot)), past)
		}
		for _, slot := range h.replies(6) {
			h.answered(slot, h.picture(byte(slot)))
		}
		c.drained()
		h.grant = grantRule(rule, 2, 0)
		c = h.serving(h.fake(), 2)
		h.publish(7, h.picture(7), past)
		if got := h.status(h.replies(1)[0]); got != wire.StatusLate {
			t.Errorf("%s answers what is late %v, want late", rule, got)
		}
		c.drained()
	}
}

// The grant decides whether the device copies packets instead of gathering them with a kernel.
func TestCopyGrant(t *testing.T) {
	for _, copies := range []bool{true, false} {
		h := newGPUHarness(t, testCard())
		h.grant = func(a *control.Attached) { a.Copy = copies }
		h.serving(h.fake(), 1).drained()
		if h.copies != copies {
			t.Errorf("it is granted %v, and its device gets %v", copies, h.copies)
		}
	}
}

// A batch is full if it has as many requests as the rule and the order allow.
func TestFullBatch(t *testing.T) {
	for _, c := range []struct {
		limit             float64
		ordered, requests int
		want              bool
	}{{1, 0, 2, true}, {8, 0, 2, false}, {8, 2, 2, true}, {4, 0, 4, true}} {
		h := newGPUHarness(t, testCard())
		l := h.loop(h.fake())
		l.p.orders.share.Store(&shareOrder{maxBatch: c.ordered})
		l.queue.State.Limit = c.limit
		l.queue.Expected = func(int) time.Duration { return time.Microsecond }
		for slot := range uint32(c.requests) {
			h.publish(slot, h.picture(byte(slot)), nil)
		}
		l.beginOne(t)
		if f := l.flights.oldest(); f.full != c.want {
			t.Errorf("limit %v, order %d: a batch of %d is full: %v, want %v", c.limit, c.ordered, len(f.batch), f.full, c.want)
		}
		must.OK(t, l.finish())
	}
}
