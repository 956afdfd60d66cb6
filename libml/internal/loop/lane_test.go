package loop

import (
	"math"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/testing/functiontest"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/libml/gate"
	"github.com/penstock/penstock/libml/lane"
	"github.com/penstock/penstock/shm"
)

// loopIn returns a loop with an account, in that lane. The test turns it.
func loopIn(t *testing.T, s *gate.Lanes, h *harness, f *functiontest.Fake) *Loop {
	t.Helper()
	l := accounted(h, f)
	l.refillBalance()
	var err error
	if l.Gate.Place, err = s.Join(lane.Model{}, l.Ring.Interrupt); err != nil {
		t.Fatal(err)
	}
	l.Gate.Place.SetDevice(l.Device, nil)
	return l
}

// mayTake publishes a request, and reports whether its batch has a turn.
func (l *Loop) mayTake(h *harness) bool {
	h.TB.Helper()
	h.Publish(1, h.Picture(1), nil)
	l.take()
	l.pick()
	return l.Gate.Place.Take(shm.Now(), lane.Job{Deadline: math.MaxInt64, Batch: time.Millisecond, Requests: 1, Demoted: l.choice.Demoted})
}

// TestQueuedBatchTime counts the time of a queued batch from the end of the one before it. Its function is
// charged for the batch alone, and its known times do not become shorter.
func TestQueuedBatchTime(t *testing.T) {
	s, err := gate.NewLanes(1, lane.FIFO, gate.Unlimited)
	must.OK(t, err)
	first, second := newGPUHarness(t, functiontest.Card()), newGPUHarness(t, functiontest.Card())
	a, b := loopIn(t, s, first, first.Fake()), loopIn(t, s, second, second.Fake())
	const known = 20 * time.Millisecond
	second.setAccount(b, gate.Config{Objective: time.Hour, Times: times(8, known, 0)})
	b.refillBalance()
	cost := b.Gate.Account.Cost(1)

	release := first.Hold()
	if !a.mayTake(first) || a.begin() != nil {
		t.Fatal("the first batch does not begin")
	}
	a.Gate.Place.Launch(0, shm.Now(), 0, 0) // about to end
	if !b.mayTake(second) || b.begin() != nil || !b.flights.oldest().followed {
		t.Fatal("the second batch is not queued")
	}
	time.Sleep(2 * known)
	released := shm.Now()
	release()
	for _, l := range []*Loop{a, b} {
		must.OK(t, l.finish())
	}
	second.Answered(second.Replies(1)[0], second.Picture(1))
	if b.flights.ended.began < released {
		t.Errorf("queued batch counts from %v before the end of the first", time.Duration(released-b.flights.ended.began))
	}
	if got := b.Gate.Account.Time(1); got != known {
		t.Errorf("after a queued batch a batch takes %v, want %v as before", got, known)
	}
	if got := b.Gate.Account.Figures().Charged; got != cost {
		t.Errorf("charged %v, want %v", got, cost)
	}
}

// TestQueuedBatchDemoted queues no demoted batch, and none behind one.
func TestQueuedBatchDemoted(t *testing.T) {
	for _, c := range []struct {
		name        string
		empty, want [2]bool
	}{
		{"neither", [2]bool{}, [2]bool{true, true}},
		{"running", [2]bool{true, false}, [2]bool{true, false}},
		{"queued", [2]bool{false, true}, [2]bool{true, false}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, err := gate.NewLanes(1, lane.FIFO, gate.Unlimited)
			must.OK(t, err)
			var all [2]*Loop
			for i := range all {
				h := newGPUHarness(t, functiontest.Card())
				l := loopIn(t, s, h, h.Fake())
				all[i] = l
				if c.empty[i] {
					l.emptyBalance()
				}
				if got := l.mayTake(h); got != c.want[i] {
					t.Fatalf("member %d may begin: %v, want %v", i, got, c.want[i])
				}
				if !c.want[i] {
					break
				}
				must.OK(t, l.begin())
				if !c.empty[i] {
					l.Gate.Place.Launch(0, shm.Now(), 0, 0) // about to end
				}
			}
			for _, l := range all {
				if l.flights.count > 0 {
					must.OK(t, l.finish())
				}
			}
		})
	}
}
