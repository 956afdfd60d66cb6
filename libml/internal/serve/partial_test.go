package serve

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/internal/testing/functiontest"
	"github.com/penstock/penstock/internal/testing/wait"
	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/libml/internal/loop"
)

// startPartial starts a process that owns the ring with its smallest batch size. It waits in the
// next ConfigureBatch until proceed is called; after that, steps fail with its argument.
func (h *harness) startPartial(f *functiontest.Fake, groups ...int) (c *child, proceed func(failing func(step string) error)) {
	h.TB.Helper()
	gate := make(chan func(string) error)
	configures := h.holdConfigure(f, gate)
	c = h.start(1, f.Build, nil)
	c.order(control.Order{Do: control.DoWake, SharePercent: 50, SMGroups: groups, PartialWarmUp: true})
	ready := c.await(control.Ready)
	if !slices.Equal(ready.Batches, []int{1}) || !ready.WarmingUp || ready.EphemeralBytes != 20 {
		h.TB.Errorf("the process reports %+v, want it ready with batches of 1 in two slots", ready)
	}
	f.Serve()
	h.Channel.SetEpoch(1)
	c.await(control.Active)
	select {
	case <-configures: // a drained process never gets there
	case <-time.After(functiontest.Patience):
		h.TB.Fatal("the process configures no larger batch")
	}
	return c, func(failing func(string) error) { gate <- failing }
}

// holdConfigure makes the third ConfigureBatch wait: the first two are for the smallest
// size, in both slots. The returned channel is closed when it waits.
func (h *harness) holdConfigure(f *functiontest.Fake, gate chan func(string) error) <-chan struct{} {
	calls, configures := 0, make(chan struct{})
	f.Failing = func(step string) error {
		if step != "configure" {
			return nil
		}
		if calls++; calls == 3 {
			close(configures)
			failing := <-gate
			f.Fail(failing)
			if failing != nil {
				return failing(step)
			}
		}
		return nil
	}
	return configures
}

// awaitBatches waits until the process reports that it runs these sizes, and returns the notice.
func (c *child) awaitBatches(batches ...int) control.Notice {
	c.t.Helper()
	return c.awaitNotice(fmt.Sprintf("batches of %v", batches), func(n control.Notice) bool { return slices.Equal(n.Batches, batches) })
}

// Requests arrive all the time, and each gets its right answer while the process adds its
// batch sizes. Then the process uses them.
func TestPartialWarmUp(t *testing.T) {
	h := newGPUHarness(t, functiontest.Card())
	f := h.Fake()
	c, proceed := h.startPartial(f)
	answers := func(round int) {
		for slot := range uint32(16) {
			h.Publish(slot, h.Picture(byte(round%100)+byte(slot)), nil)
		}
		for _, slot := range h.Replies(16) {
			h.Answered(slot, h.Picture(byte(round%100)+byte(slot)))
		}
	}
	for round := range 10 {
		answers(round)
	}
	if sizes, _ := f.History(); slices.Max(sizes) != 1 {
		t.Errorf("ran batches of %v before there are larger ones", slices.Compact(sizes))
	}
	go proceed(nil)
	for round := range 10 {
		answers(round)
	}
	n := c.awaitBatches(1, 2, 4, 8)
	if n.WarmingUp || n.Reason != "" || n.EphemeralBytes != 160 {
		t.Errorf("the process reports %+v, want all sizes, with 160 bytes of batches", n)
	}
	for end := time.Now().Add(functiontest.Patience); ; {
		answers(0)
		if sizes, _ := f.History(); slices.Contains(sizes, 8) {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the largest batch is never used")
		}
	}
	c.drained()
}

// Without an order for partial warm-up, a process has all sizes before it is ready. On a
// CPU there is no partial warm-up.
func TestCompleteWarmUp(t *testing.T) {
	for name, c := range map[string]struct {
		b     *harness
		early bool
	}{"on a GPU": {newGPUHarness(t, functiontest.Card()), false}, "on a CPU": {newHarness(t, functiontest.Card()), true}} {
		t.Run(name, func(t *testing.T) {
			p := c.b.start(1, c.b.Fake().Build, nil)
			p.order(control.Order{Do: control.DoWake, SharePercent: 50, PartialWarmUp: c.early})
			if n := p.await(control.Ready); n.WarmingUp || !slices.Equal(n.Batches, functiontest.Card().Batches) {
				t.Errorf("the process reports %+v, want every batch size", n)
			}
			p.drained()
		})
	}
}

// A move waits until all batch sizes are there.
func TestPartialMove(t *testing.T) {
	h := newGPUHarness(t, functiontest.Card())
	f := h.Fake()
	c, proceed := h.startPartial(f, 0)
	c.moveTo(2)
	c.checkStays(20*time.Millisecond, 2)
	proceed(nil)
	n := c.awaitBatches(1, 2, 4, 8)
	if n.SMs != 0 || n.SMGroups != nil {
		t.Errorf("the process reports %+v want no groups", n)
	}
	c.awaitGroups(2)
	for slot := range uint32(8) {
		h.Publish(slot, h.Picture(byte(slot)), nil)
	}
	for _, slot := range h.Replies(8) {
		h.Answered(slot, h.Picture(byte(slot)))
	}
	f.Mu.Lock()
	if f.Batches[functiontest.Key{2, 8}] == nil {
		t.Error("the largest batch was not brought along")
	}
	f.Mu.Unlock()
	c.drained()
}

// If a size fails, the process ends in order: it answers the requests in flight, and the
// next process gets the waiting ones.
func TestPartialFails(t *testing.T) {
	h := newGPUHarness(t, functiontest.Card())
	f := h.Fake()
	c, proceed := h.startPartial(f)
	h.Publish(1, h.Picture(1), nil)
	h.Answered(h.Replies(1)[0], h.Picture(1))
	release := h.Hold()
	h.Publish(2, h.Picture(2), nil)
	wait.For(t, "a batch in flight", func() bool { sizes, _ := f.History(); return len(sizes) == 2 })
	proceed(functiontest.Only("configure", functiontest.ErrFake))
	time.Sleep(5 * time.Millisecond)
	release()
	h.Answered(h.Replies(1)[0], h.Picture(2))
	if err := c.end(); !errors.Is(err, functiontest.ErrFake) || loop.IsLost(err) || !strings.HasPrefix(err.Error(), "configure batch 2 of test") {
		t.Errorf("the process ends with %v", err)
	}
	h.Publish(3, h.Picture(3), nil)
	h.GPU = newGPUHarness(t, functiontest.Card()).GPU
	next := h.serving(h.Fake(), 2)
	h.Answered(h.Replies(1)[0], h.Picture(3))
	next.drained()
}

// Small batches are better than none. A process without memory for larger ones serves
// small ones, and still moves.
func TestPartialOutOfMemory(t *testing.T) {
	h := newGPUHarness(t, functiontest.Card())
	f := h.Fake()
	c, proceed := h.startPartial(f)
	calls := 0
	proceed(func(step string) error {
		// Two calls for batch 2, then one for batch 4.
		if step == "configure" {
			if calls++; calls == 4 {
				return fmt.Errorf("four: %w", cuda.ErrOutOfMemory)
			}
		}
		return nil
	})
	c.awaitBatches(1, 2)
	n := c.awaitBatches(1, 2)
	if n.WarmingUp || !strings.Contains(n.Reason, "batches of at most 2") || !strings.Contains(n.Reason, "four") {
		t.Errorf("the process reports %+v, want no change, and the reason", n)
	}
	for range 20 {
		for slot := range uint32(8) {
			h.Publish(slot, h.Picture(byte(slot)), nil)
		}
		for _, slot := range h.Replies(8) {
			h.Answered(slot, h.Picture(byte(slot)))
		}
	}
	if sizes, _ := f.History(); slices.Max(sizes) != 2 {
		t.Errorf("ran batches of %v, want 2 at most", slices.Compact(sizes))
	}
	c.moveTo(1)
	if n := c.awaitGroups(1); !strings.Contains(n.Reason, "batches of at most 2") {
		t.Errorf("after the move the process reports %+v, want the reason of its small batches", n)
	}
	c.drained()
}

// If a larger size shows that the process cannot serve, the process ends and says why.
func TestPartialEnds(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		want control.Notice // of these fields
	}{
		"wrong answers": {fmt.Errorf("two: %w", device.ErrWrongAnswers), control.Notice{WrongAnswers: true}},
		"unfit groups":  {errUnfit, control.Notice{InfeasibleGroups: []int{2}}},
		"device lost":   {fmt.Errorf("two: %w", device.ErrLost), control.Notice{DeviceLost: true}},
	} {
		t.Run(name, func(t *testing.T) {
			h := newGPUHarness(t, functiontest.Card())
			p, proceed := h.startPartial(h.Fake(), 2)
			proceed(functiontest.Only("configure", c.err))
			got := p.await(control.Failed)
			if got.WrongAnswers != c.want.WrongAnswers || got.DeviceLost != c.want.DeviceLost || !slices.Equal(got.InfeasibleGroups, c.want.InfeasibleGroups) ||
				!strings.Contains(got.Reason, c.err.Error()) {
				t.Errorf("the process reports %+v, want %+v and the reason", got, c.want)
			}
			if err := p.end(); !errors.Is(err, c.err) {
				t.Errorf("the process ends with %v", err)
			}
		})
	}
}

// A drained process does not wait for a framework that links for long, and does not
// report that the device is lost.
func TestPartialDrain(t *testing.T) {
	for name, late := range map[string]bool{"which it stops": false, "which takes too long": true} {
		t.Run(name, func(t *testing.T) {
			h := newGPUHarness(t, functiontest.Card())
			f := h.Fake()
			c, proceed := h.startPartial(f)
			h.Publish(1, h.Picture(1), nil)
			h.Answered(h.Replies(1)[0], h.Picture(1))
			c.order(control.Order{Do: control.DoDrain})
			c.await(control.Draining)
			if !late {
				proceed(nil)
			}
			c.await(control.Stopped)
			if err := c.end(); err != nil {
				t.Errorf("a drained process ends with %v", err)
			}
			if late {
				proceed(nil)
			}
		})
	}
}

// TestPartialWarmUpInWorker starts a second member while the first has its smallest batch size. The first one's
// larger sizes wait until the second is ready.
func TestPartialWarmUpInWorker(t *testing.T) {
	var fakes [2]*functiontest.Fake
	var functions [2]*harness
	byName := map[string]*functiontest.Fake{}
	for i, name := range []string{"first", "second"} {
		card := functiontest.Card()
		card.Name = name
		functions[i] = newGPUHarness(t, card)
		fakes[i] = functions[i].Fake()
		byName[name] = fakes[i]
	}
	configured := make(chan struct{}, 100)
	fakes[0].Failing = func(step string) error {
		if step == "configure" {
			configured <- struct{}{}
		}
		return nil
	}
	links, proceed := make(chan struct{}), make(chan struct{})
	fakes[1].Failing = func(step string) error {
		if step == "link" {
			close(links)
			<-proceed
		}
		return nil
	}
	w := startWorker(t, byName)
	first, second := w.join(functions[0], 1), w.join(functions[1], 1)
	for _, member := range []string{second, first} {
		w.awaitState(member, control.Loaded)
		w.order(control.Order{Do: control.DoWake, Member: member, SharePercent: 50, PartialWarmUp: true})
		if member == second {
			<-links
		}
	}
	w.awaitState(first, control.Ready)
	functions[0].Channel.SetEpoch(1)
	w.awaitState(first, control.Active)
	time.Sleep(10 * startPoll)
	if n := len(configured); n != 1 {
		t.Errorf("while the second member starts, the first has configured %d batch sizes, want only its smallest", n)
	}
	close(proceed)
	if n := w.await(first, func(n control.Notice) bool { return !n.WarmingUp && len(n.Batches) > 1 }); !slices.Equal(n.Batches, functiontest.Card().Batches) {
		t.Errorf("the first member reports batches of %v", n.Batches)
	}
	w.order(control.Order{Do: control.DoDrain})
	w.awaitExit(first)
	w.awaitExit(second)
	if err := w.end(); err != nil {
		t.Error(err)
	}
}
