package libml

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/shm"
	"github.com/penstock/penstock/wire"
)

// batching grants a process this batching rule.
func batching(rule control.BatchingRule, size int, delay time.Duration) func(*control.Attached) {
	return func(a *control.Attached) {
		a.Batching = control.Batching{Rule: rule, Size: size, Delay: delay}
	}
}

// onBoth runs a test on a CPU and on a GPU.
func onBoth(t *testing.T, test func(t *testing.T, b *bed, f *fake)) {
	for name, bed := range map[string]func(testing.TB, *models.Card) *bed{"cpu": newBed, "gpu": newGPUBed} {
		t.Run(name, func(t *testing.T) {
			b := bed(t, testCard())
			test(t, b, b.fake())
		})
	}
}

func TestEveryBatchingRuleAnswersEveryRequest(t *testing.T) {
	for _, rule := range control.BatchingRules {
		for _, streams := range []int{0, 2} {
			t.Run(fmt.Sprintf("%s, %d streams", rule, streams), func(t *testing.T) {
				onBoth(t, func(t *testing.T, b *bed, f *fake) {
					b.grant, b.streams = batching(rule, 4, 2*time.Millisecond), streams
					c := b.serving(f, 1)
					random := rand.New(rand.NewPCG(1, 2))
					for range 30 {
						n := uint32(1 + random.IntN(12))
						for slot := range n {
							b.publish(slot, b.picture(byte(slot)), nil)
							if random.IntN(4) == 0 {
								time.Sleep(time.Duration(random.IntN(1000)) * time.Microsecond)
							}
						}
						for _, slot := range b.replies(int(n)) {
							b.answered(slot, b.picture(byte(slot)))
						}
					}
					b.silent()
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
func TestAFullBatchOfAFixedSizeBeginsAtOnce(t *testing.T) {
	onBoth(t, func(t *testing.T, b *bed, f *fake) {
		b.grant = batching(control.BatchFixed, 4, time.Hour)
		c := b.serving(f, 1)
		random := rand.New(rand.NewPCG(3, 4))
		for range 100 {
			for slot := range uint32(4) {
				b.publish(slot, b.picture(byte(slot)), nil)
				if random.IntN(3) == 0 {
					time.Sleep(time.Duration(random.IntN(100)) * time.Microsecond)
				}
			}
			for _, slot := range b.replies(4) {
				b.answered(slot, b.picture(byte(slot)))
			}
		}
		if sizes, _ := f.history(); len(sizes) != 100 || slices.Min(sizes) != 4 {
			t.Errorf("ran batches of %v, want 100 of 4", sizes)
		}
		c.drained()
	})
}

// Until then the loop has nothing to do, and sleeps for the maximum time.
func TestABatchThatIsNotFullWaitsForItsDelayAsleep(t *testing.T) {
	const delay = 10 * time.Minute
	onBoth(t, func(t *testing.T, b *bed, f *fake) {
		b.grant = batching(control.BatchFixed, 8, delay)
		l := b.loop(f)
		began := shm.Now()
		for slot := range uint32(2) {
			b.publish(slot, b.picture(byte(slot)), nil)
		}
		if l.take(); l.mayBegin() {
			t.Error("a batch of 2 begins at once")
		}
		if until := l.waitUntil(); until < began+int64(waitAtMost) {
			t.Errorf("it looks again %v after the first request, want %v or more", time.Duration(until-began), waitAtMost)
		}
		b.publish(2, b.picture(2), func(r *shm.Request, _ []shm.Piece) { r.Whole -= int64(delay) })
		l.take()
		if until, due := l.waitUntil(), b.table.Request(2).Whole+int64(delay); until != due {
			t.Errorf("it looks again %v after the delay of the oldest request", time.Duration(until-due))
		}
		if !l.mayBegin() {
			t.Fatal("a batch does not begin after its delay")
		}
		if err := l.turn(); err != nil {
			t.Fatal(err)
		}
		for _, slot := range b.replies(3) {
			b.answered(slot, b.picture(byte(slot)))
		}
		if sizes, _ := f.history(); !slices.Equal(sizes, []int{4}) {
			t.Errorf("ran batches of %v, want one of 4, padded", sizes)
		}
	})
}

// A loop without work checks every waitAtMost. A shorter delay wakes it, at least in one
// of many tries.
func TestADelayEndsBeforeAnIdleLoopLooksRound(t *testing.T) {
	onBoth(t, func(t *testing.T, b *bed, f *fake) {
		b.grant = batching(control.BatchFixed, 8, time.Millisecond)
		c := b.serving(f, 1)
		shortest := time.Duration(math.MaxInt64)
		for range 20 {
			b.publish(0, b.picture(1), nil)
			slot := b.replies(1)[0]
			b.answered(slot, b.picture(1))
			shortest = min(shortest, time.Duration(b.channel.Result(slot).Dispatched-b.table.Request(slot).Whole))
		}
		if shortest >= waitAtMost/2 {
			t.Errorf("none of 20 batches with a delay of 1 ms began in less than %v", shortest)
		}
		c.drained()
	})
}

// Requests that wait for a batch to fill belong to the next owner.
func TestARequestThatWaitsForABatchIsNotLostInADrain(t *testing.T) {
	b := newBed(t, testCard())
	f := b.fake()
	b.grant = batching(control.BatchFixed, 8, time.Hour)
	c := b.serving(f, 1)
	b.publish(5, b.picture(5), nil)
	b.publish(6, b.picture(6), nil)
	c.drained()
	b.silent()
	b.grant = batching(control.BatchOne, 0, 0)
	next := b.fake()
	d := b.serving(next, 2)
	for _, slot := range b.replies(2) {
		b.answered(slot, b.picture(byte(slot)))
	}
	d.drained()
	if sizes, _ := next.history(); !slices.Equal(sizes, []int{1, 1}) {
		t.Errorf("ran batches of %v, want two of 1", sizes)
	}
}

func TestWhatIsLateIsRunWhereItIsGrantedSo(t *testing.T) {
	past := func(r *shm.Request, _ []shm.Piece) { r.Deadline = r.Whole - 1 }
	for _, rule := range control.BatchingRules {
		b, f := newBed(t, testCard()), newFake()
		b.grant = func(a *control.Attached) {
			batching(rule, 2, 0)(a)
			a.RunLate = true
		}
		c := b.serving(f, 1)
		for slot := range uint32(6) {
			b.publish(slot, b.picture(byte(slot)), past)
		}
		for _, slot := range b.replies(6) {
			b.answered(slot, b.picture(byte(slot)))
		}
		c.drained()
		b.grant = batching(rule, 2, 0)
		c = b.serving(b.fake(), 2)
		b.publish(7, b.picture(7), past)
		if got := b.status(b.replies(1)[0]); got != wire.StatusLate {
			t.Errorf("%s answers what is late %v, want late", rule, got)
		}
		c.drained()
	}
}

func TestADeviceIsToldWhoGathers(t *testing.T) {
	for _, copies := range []bool{true, false} {
		b := newGPUBed(t, testCard())
		b.grant = func(a *control.Attached) { a.Copy = copies }
		b.serving(b.fake(), 1).drained()
		if b.copies != copies {
			t.Errorf("it is granted %v, and its device is told %v", copies, b.copies)
		}
	}
}
