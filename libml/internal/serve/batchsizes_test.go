package serve

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testing/functiontest"
	"github.com/penstock/penstock/models"
)

// grantRule grants a process this batching rule.
func grantRule(rule control.BatchingRule, size int, delay time.Duration) func(*control.Attached) {
	return func(a *control.Attached) {
		a.Batching = control.Batching{Rule: rule, Size: size, Delay: delay}
	}
}

// onBoth runs a test on a CPU and on a GPU.
func onBoth(t *testing.T, test func(t *testing.T, h *harness, f *functiontest.Fake)) {
	for name, newHarness := range map[string]func(testing.TB, *models.Card) *harness{"cpu": newHarness, "gpu": newGPUHarness} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, functiontest.Card())
			test(t, h, h.Fake())
		})
	}
}

// Every rule answers every request, with batches of at most its maximum size.
func TestBatchingRules(t *testing.T) {
	for _, rule := range control.BatchingRules {
		for _, streams := range []int{0, 2} {
			t.Run(fmt.Sprintf("%s, %d streams", rule, streams), func(t *testing.T) {
				onBoth(t, func(t *testing.T, h *harness, f *functiontest.Fake) {
					h.grant, h.streams = grantRule(rule, 4, 2*time.Millisecond), streams
					c := h.serving(f, 1)
					random := rand.New(rand.NewPCG(1, 2))
					for range 30 {
						n := uint32(1 + random.IntN(12))
						for slot := range n {
							h.Publish(slot, h.Picture(byte(slot)), nil)
							if random.IntN(4) == 0 {
								time.Sleep(time.Duration(random.IntN(1000)) * time.Microsecond)
							}
						}
						for _, slot := range h.Replies(int(n)) {
							h.Answered(slot, h.Picture(byte(slot)))
						}
					}
					h.Silent()
					sizes, _ := f.History()
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
	onBoth(t, func(t *testing.T, h *harness, f *functiontest.Fake) {
		h.grant = grantRule(control.BatchFixed, 4, time.Hour)
		c := h.serving(f, 1)
		random := rand.New(rand.NewPCG(3, 4))
		for range 100 {
			for slot := range uint32(4) {
				h.Publish(slot, h.Picture(byte(slot)), nil)
				if random.IntN(3) == 0 {
					time.Sleep(time.Duration(random.IntN(100)) * time.Microsecond)
				}
			}
			for _, slot := range h.Replies(4) {
				h.Answered(slot, h.Picture(byte(slot)))
			}
		}
		if sizes, _ := f.History(); len(sizes) != 100 || slices.Min(sizes) != 4 {
			t.Errorf("ran batches of %v, want 100 of 4", sizes)
		}
		c.drained()
	})
}

// A loop without work checks every 100 ms. A shorter delay wakes it, at least in one of many tries.
func TestFixedSizeDelay(t *testing.T) {
	onBoth(t, func(t *testing.T, h *harness, f *functiontest.Fake) {
		h.grant = grantRule(control.BatchFixed, 8, time.Millisecond)
		c := h.serving(f, 1)
		shortest := time.Duration(math.MaxInt64)
		for range 20 {
			h.Publish(0, h.Picture(1), nil)
			slot := h.Replies(1)[0]
			h.Answered(slot, h.Picture(1))
			shortest = min(shortest, time.Duration(h.Channel.Result(slot).Dispatched-h.Table.Request(slot).Complete))
		}
		if shortest >= 50*time.Millisecond {
			t.Errorf("none of 20 batches with a delay of 1 ms began in less than %v", shortest)
		}
		c.drained()
	})
}

// Requests that wait for a batch to fill belong to the next owner.
func TestFixedSizeDrain(t *testing.T) {
	h := newHarness(t, functiontest.Card())
	f := h.Fake()
	h.grant = grantRule(control.BatchFixed, 8, time.Hour)
	c := h.serving(f, 1)
	h.Publish(5, h.Picture(5), nil)
	h.Publish(6, h.Picture(6), nil)
	c.drained()
	h.Silent()
	h.grant = grantRule(control.BatchOne, 0, 0)
	next := h.Fake()
	d := h.serving(next, 2)
	for _, slot := range h.Replies(2) {
		h.Answered(slot, h.Picture(byte(slot)))
	}
	d.drained()
	if sizes, _ := next.History(); !slices.Equal(sizes, []int{1, 1}) {
		t.Errorf("ran batches of %v, want two of 1", sizes)
	}
}

// The grant decides whether the device copies packets instead of gathering them with a kernel.
func TestCopyGrant(t *testing.T) {
	for _, copies := range []bool{true, false} {
		h := newGPUHarness(t, functiontest.Card())
		h.grant = func(a *control.Attached) { a.Copy = copies }
		h.serving(h.Fake(), 1).drained()
		if h.copies != copies {
			t.Errorf("it is granted %v, and its device gets %v", copies, h.copies)
		}
	}
}
