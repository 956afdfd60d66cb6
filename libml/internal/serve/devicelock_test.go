package serve

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testing/functiontest"
	"github.com/penstock/penstock/internal/testing/must"
)

// testLock returns a lock that no other test has.
func testLock(t *testing.T) *deviceLock {
	return newDeviceLock(fmt.Sprintf("%s-%d", t.Name(), os.Getpid()), functiontest.Patience)
}

func running() bool { return false }

func TestDeviceLock(t *testing.T) {
	const goroutines, rounds = 4, 25
	own := testLock(t)
	var holders, acquired atomic.Int32
	var all sync.WaitGroup
	for range goroutines {
		all.Go(func() {
			l := deviceLock{name: own.name, patience: functiontest.Patience}
			for range rounds {
				release, err := l.acquire(running)
				if err != nil {
					t.Error(err)
				}
				if holders.Add(1) != 1 {
					t.Error("two holders")
				}
				acquired.Add(1)
				holders.Add(-1)
				release()
			}
		})
	}
	all.Wait()
	if acquired.Load() != goroutines*rounds {
		t.Errorf("acquired %d times, want %d", acquired.Load(), goroutines*rounds)
	}
}

func TestDeviceLockHeld(t *testing.T) {
	own := testLock(t)
	release, err := own.acquire(running)
	must.OK(t, err)
	other := deviceLock{name: own.name, patience: time.Millisecond}
	for range 2 { // the second time without patience
		unlock, err := other.acquire(running)
		if unlock(); !errors.Is(err, errLocked) {
			t.Errorf("acquire gives %v, want %v", err, errLocked)
		}
	}
	if other.patience != 0 {
		t.Errorf("patience of %v left", other.patience)
	}
	stopped := deviceLock{name: own.name, patience: time.Hour}
	unlock, err := stopped.acquire(func() bool { return true })
	if unlock(); err != nil {
		t.Errorf("a process that ends gets %v", err)
	}
	release()
	unlock, err = other.acquire(running)
	if unlock(); err != nil {
		t.Errorf("a free lock gives %v", err)
	}
	var none *deviceLock
	unlock, err = none.acquire(running)
	if unlock(); err != nil {
		t.Errorf("no lock gives %v", err)
	}
}

// sharedDevice runs the batches of several processes one after the other. Its clock advances by the time of
// each batch, so what a process measures depends on the other batches that run meanwhile, and on nothing else.
type sharedDevice struct {
	mu  sync.Mutex
	now int64
}

func (d *sharedDevice) run(n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.now += int64(time.Duration(n) * time.Millisecond)
	time.Sleep(100 * time.Microsecond) // other batches queue up meanwhile
}

func (d *sharedDevice) clock() int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.now
}

// Processes that warm up together measure the same as one alone.
func TestWarmUpsTogether(t *testing.T) {
	const processes = 3
	device := new(sharedDevice)
	reports := make(chan control.Report, processes)
	var ready []*child
	for range processes {
		h := newGPUHarness(t, functiontest.Card())
		h.timing.now = device.clock
		f := h.Fake()
		f.Work = device.run
		c := h.start(1, f.Build, nil)
		c.await(control.Loaded)
		ready = append(ready, c)
		h.Channel.SetEpoch(1)
	}
	for _, c := range ready {
		c.order(control.Order{Do: control.DoWake, Level: 3, GuaranteePercent: 30})
	}
	for _, c := range ready {
		c.await(control.Active)
		go func() {
			r, err := c.manager.ReadReport()
			if err != nil {
				t.Error(err)
			}
			reports <- r
		}()
	}
	for range processes {
		// A batch of n takes n ms alone.
		r := <-reports
		if r.FixedNanos != 0 || r.EachNanos != int64(time.Millisecond) {
			t.Errorf("a batch of n costs %v + n * %v, want n * 1ms", time.Duration(r.FixedNanos), time.Duration(r.EachNanos))
		}
	}
	for _, c := range ready {
		c.drained()
	}
}

// A process that hangs while it holds the lock delays no other process for long.
func TestWarmUpWithoutLock(t *testing.T) {
	h := newGPUHarness(t, functiontest.Card())
	h.timing.patience = time.Millisecond
	owner := newDeviceLock(h.GPU.Name(), functiontest.Patience)
	release, err := owner.acquire(running)
	must.OK(t, err)
	defer release()
	c := h.start(1, h.Fake().Build, nil)
	c.order(control.Order{Do: control.DoWake, Level: 3, GuaranteePercent: 30})
	n := c.await(control.Ready)
	if !slices.Equal(n.Batches, h.Card.Batches) {
		t.Errorf("ready with batches of %v, want %v", n.Batches, h.Card.Batches)
	}
	c.drained()
}
