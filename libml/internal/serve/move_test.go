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
	"github.com/penstock/penstock/internal/testing/devicetest"
	"github.com/penstock/penstock/internal/testing/functiontest"
	"github.com/penstock/penstock/internal/testing/wait"
	"github.com/penstock/penstock/libml/device"
)

func (c *child) moveTo(groups ...int) {
	c.t.Helper()
	c.order(control.Order{Do: control.DoShare, SharePercent: 50, SMGroups: groups})
}

// awaitGroups waits until the process reports that it holds these groups, and returns the notice.
func (c *child) awaitGroups(groups ...int) control.Notice {
	c.t.Helper()
	return c.awaitNotice(fmt.Sprintf("groups %v", groups), func(n control.Notice) bool { return slices.Equal(n.SMGroups, groups) })
}

// checkStays checks that for a while the process does not report that it holds these groups.
func (c *child) checkStays(d time.Duration, groups ...int) {
	c.t.Helper()
	limit := time.After(d)
	for {
		select {
		case n := <-c.notices:
			if slices.Equal(n.SMGroups, groups) {
				c.t.Errorf("the process gave up where a batch of its own was running")
			}
		case <-limit:
			return
		}
	}
}

// awaitReport waits for the report with this number of hand-overs and moves.
func (c *child) awaitReport(handovers uint64) control.Report {
	c.t.Helper()
	reports := make(chan control.Report, 1)
	go func() {
		defer close(reports)
		for {
			r, err := c.manager.ReadReport()
			if err != nil {
				return
			}
			if r.Handovers >= handovers {
				reports <- r
				return
			}
		}
	}()
	select {
	case r, ok := <-reports:
		if !ok {
			c.t.Fatalf("no report of %d hand-overs", handovers)
		}
		return r
	case <-time.After(functiontest.Patience):
		c.t.Fatalf("no report of %d hand-overs", handovers)
		return control.Report{}
	}
}

// A process warms up on the groups of its wake.
func TestWakeOnGroups(t *testing.T) {
	h := newGPUHarness(t, functiontest.Card())
	f := h.Fake()
	c := h.start(1, f.Build, nil)
	c.order(control.Order{Do: control.DoWake, SharePercent: 50, SMGroups: []int{1, 3}})
	ready := c.await(control.Ready)
	if ready.SMs != 8+12 || !slices.Equal(ready.SMGroups, []int{1, 3}) {
		t.Errorf("ready on %d multiprocessors, groups %v; want 20, groups 1 and 3", ready.SMs, ready.SMGroups)
	}
	for slot := range 2 {
		if got := h.GPU.Groups(slot); !slices.Equal(got, []int{1, 3}) {
			t.Errorf("slot %d runs on groups %v", slot, got)
		}
		if got, want := f.Batches[functiontest.Key{slot, 8}].Stream, h.GPU.Stream(slot); got != want {
			t.Errorf("batches of slot %d are configured for stream %#x, want %#x", slot, got, want)
		}
	}
	c.drained()
}

// Requests arrive all the time, and each gets its right answer while the process moves back and
// forth.
func TestMoveUnderLoad(t *testing.T) {
	const moves = 40
	h := newGPUHarness(t, functiontest.Card())
	f := h.Fake()
	c := h.serving(f, 1)
	h.GPU.Late.Store(int64(100 * time.Microsecond))
	stop, ended := make(chan struct{}), make(chan int)
	go func() {
		answered := 0
		defer func() { ended <- answered }()
		for round := 0; ; round++ {
			select {
			case <-stop:
				return
			default:
			}
			for slot := range uint32(6) {
				h.Publish(slot, h.Picture(byte(round%100)+byte(slot)), nil)
			}
			for _, slot := range h.Replies(6) {
				h.Answered(slot, h.Picture(byte(round%100)+byte(slot)))
				answered++
			}
		}
	}()
	for i := range moves {
		to := []int{i % 4}
		c.moveTo(to...)
		n := c.awaitGroups(to...)
		if want := functiontest.Groups[to[0]]; n.SMs != want || n.State != control.Active || n.Reason != "" {
			t.Errorf("after the move the process reports %+v, want %d multiprocessors", n, want)
		}
		before, _ := f.History()
		wait.For(t, "a batch in each lane", func() bool { now, _ := f.History(); return len(now) >= len(before)+2 })
	}
	r := c.awaitReport(1 + moves)
	if r.Handovers != 1+moves {
		t.Errorf("%d hand-overs and moves, want %d", r.Handovers, 1+moves)
	}
	close(stop)
	if n := <-ended; n == 0 {
		t.Error("nothing was answered meanwhile")
	}
	_, slots := f.History()
	for slot := range device.Slots / 2 {
		if !slices.Contains(slots, 2*slot) {
			t.Errorf("no batch ran in slot %d", 2*slot)
		}
	}
	c.drained()
}

// While one move is being made, only the last order counts.
func TestMoveOrders(t *testing.T) {
	h := newGPUHarness(t, functiontest.Card())
	f := h.Fake()
	c := h.serving(f, 1)
	h.Publish(1, h.Picture(1), nil)
	h.Answered(h.Replies(1)[0], h.Picture(1))
	entered, gate := make(chan struct{}, 1), make(chan struct{})
	f.Fail(func(step string) error {
		if step == "configure" {
			select {
			case entered <- struct{}{}:
			default:
			}
			<-gate
		}
		return nil
	})
	c.moveTo(0)
	<-entered
	for _, g := range []int{1, 2, 3} {
		c.moveTo(g)
	}
	c.moveTo(1, 3)
	// The orders are read one after the other: the answer to this one shows that the last move has
	// arrived.
	c.order(control.Order{Do: control.DoReport})
	wait.For(t, "the orders are read", func() bool { return (<-c.notices).Woken })
	f.Fail(nil)
	close(gate)
	c.awaitGroups(0)
	n := c.awaitGroups(1, 3)
	if n.SMs != 20 {
		t.Errorf("the process counts %d multiprocessors, want 20", n.SMs)
	}
	if r := c.awaitReport(3); r.Handovers != 3 {
		t.Errorf("%d hand-overs, want one and two moves", r.Handovers)
	}
	c.drained()
}

// A process that cannot move reports that and its groups, and continues to serve there. It follows
// the next order.
func TestMoveFails(t *testing.T) {
	for _, c := range []struct {
		name  string
		spoil func(h *harness, f *functiontest.Fake)
		to    int
		want  error
	}{
		{"no memory for a partition", func(h *harness, _ *functiontest.Fake) { h.GPU.FailRepartition.Store(1) }, 2, devicetest.ErrMemory},
		{"no memory for a batch", func(_ *harness, f *functiontest.Fake) { f.Fail(functiontest.Only("configure", devicetest.ErrMemory)) }, 2, devicetest.ErrMemory},
		{"groups that there are not", func(*harness, *functiontest.Fake) {}, 4, devicetest.ErrGroups},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newGPUHarness(t, functiontest.Card())
			f := h.Fake()
			p := h.serving(f, 1)
			p.moveTo(0, 1)
			p.awaitGroups(0, 1)
			c.spoil(h, f)
			p.moveTo(c.to)
			n := p.awaitGroups(0, 1)
			if !strings.Contains(n.Reason, c.want.Error()) || n.State != control.Active || n.SMs != 16 {
				t.Errorf("the process reports %+v, want that it holds 16 multiprocessors and why", n)
			}
			f.Fail(nil)
			h.Publish(1, h.Picture(1), nil)
			h.Answered(h.Replies(1)[0], h.Picture(1))
			p.moveTo(3)
			if n := p.awaitGroups(3); n.Reason != "" || n.SMs != 12 {
				t.Errorf("the process reports %+v, want 12 multiprocessors and no reason", n)
			}
			h.Publish(2, h.Picture(2), nil)
			h.Answered(h.Replies(1)[0], h.Picture(2))
			p.drained()
		})
	}
}

// errUnfit is the error of a kernel that does not fit on its multiprocessors.
var errUnfit = fmt.Errorf("slot 2: %w", &cuda.Error{Op: "cuGraphInstantiateWithFlags", Code: cuda.InvalidClusterSize})

// Only a try shows whether a model runs on few multiprocessors. If it does not, the process reports
// those groups, continues to serve on its old groups, and can quickly be ordered back.
func TestMoveToUnfitGroups(t *testing.T) {
	h := newGPUHarness(t, functiontest.Card())
	f := h.Fake()
	p := h.serving(f, 1)
	p.moveTo(0, 1)
	p.awaitGroups(0, 1)
	f.Fail(functiontest.Only("configure", errUnfit))
	p.moveTo(0)
	n := p.awaitGroups(0, 1)
	if !slices.Equal(n.InfeasibleGroups, []int{0}) || n.State != control.Active || n.SMs != 16 || !strings.Contains(n.Reason, "(912)") {
		t.Errorf("the process reports %+v, want that it stays on 16 multiprocessors and that group 0 is unfit", n)
	}
	h.Publish(1, h.Picture(1), nil)
	h.Answered(h.Replies(1)[0], h.Picture(1))
	// A move to its present groups needs no configuration.
	p.moveTo(0, 1)
	if n := p.awaitGroups(0, 1); n.InfeasibleGroups != nil || n.Reason != "" || n.SMs != 16 {
		t.Errorf("back in its old place the process reports %+v", n)
	}
	f.Fail(nil)
	p.moveTo(1, 2)
	p.awaitGroups(1, 2)
	h.Publish(2, h.Picture(2), nil)
	h.Answered(h.Replies(1)[0], h.Picture(2))
	p.drained()
}

// If the model does not fit the groups of the wake, the process ends and names them.
func TestWakeOnUnfitGroups(t *testing.T) {
	for _, c := range []struct {
		name   string
		step   string
		err    error
		groups []int
		want   []int
	}{
		{"it links", "link", errUnfit, []int{3}, []int{3}},
		{"it configures a batch", "configure", errUnfit, []int{0, 1}, []int{0, 1}},
		{"it warms up", "infer", errUnfit, []int{1}, []int{1}},
		{"it has the whole device", "configure", errUnfit, nil, nil},
		{"something else is wrong", "configure", functiontest.ErrFake, []int{1}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newGPUHarness(t, functiontest.Card())
			f := h.Fake()
			p := h.start(1, f.Build, nil)
			f.Fail(functiontest.Only(c.step, c.err))
			p.order(control.Order{Do: control.DoWake, SharePercent: 50, SMGroups: c.groups})
			var reported []int
			for n := range p.notices {
				if n.State == control.Failed {
					reported = n.InfeasibleGroups
				}
			}
			if !slices.Equal(reported, c.want) {
				t.Errorf("the process reports that groups %v are unfit, want %v", reported, c.want)
			}
			if err := p.end(); !errors.Is(err, c.err) {
				t.Errorf("the process ends with %v", err)
			}
			if last := f.Calls[len(f.Calls)-1]; last != "deinit" {
				t.Errorf("the last call is %s: the framework was not given back", last)
			}
		})
	}
}

// A process that is ready moves before it serves.
func TestMoveReady(t *testing.T) {
	h := newGPUHarness(t, functiontest.Card())
	f := h.Fake()
	c := h.start(1, f.Build, nil)
	c.order(control.Order{Do: control.DoWake, SharePercent: 50, SMGroups: []int{0}})
	c.await(control.Ready)
	c.moveTo(1, 2)
	if n := c.awaitGroups(1, 2); n.State != control.Ready || n.SMs != 16 {
		t.Errorf("the process reports %+v, want ready on 16 multiprocessors", n)
	}
	f.Serve()
	h.Channel.SetEpoch(1)
	h.Publish(1, h.Picture(1), nil)
	h.Answered(h.Replies(1)[0], h.Picture(1))
	if _, slots := f.History(); !slices.Equal(slots, []int{2}) {
		t.Errorf("batches ran in slots %v, want 2", slots)
	}
	c.moveTo() // to all groups
	wait.For(t, "the process is on the whole device", func() bool { n := <-c.notices; return n.SMs == 36 && n.SMGroups == nil })
	c.drained()
}

// A device that is lost in a move ends the process.
func TestMoveDeviceLost(t *testing.T) {
	h := newGPUHarness(t, functiontest.Card())
	f := h.Fake()
	c := h.serving(f, 1)
	h.GPU.Lose()
	c.moveTo(1)
	if failed := c.await(control.Failed); !failed.DeviceLost {
		t.Errorf("the process reports %+v, want that its device is lost", failed)
	}
	if err := c.end(); !errors.Is(err, device.ErrLost) {
		t.Errorf("the process ends with %v", err)
	}
	if last := f.Calls[len(f.Calls)-1]; last == "deinit" {
		t.Error("the framework was called on a lost device")
	}
}

// A process that is drained while it prepares a move ends.
func TestMoveDrain(t *testing.T) {
	h := newGPUHarness(t, functiontest.Card())
	f := h.Fake()
	c := h.serving(f, 1)
	entered, gate := make(chan struct{}, 64), make(chan struct{})
	f.Fail(func(step string) error {
		if step == "configure" {
			entered <- struct{}{}
			<-gate
		}
		return nil
	})
	c.moveTo(1)
	<-entered
	c.order(control.Order{Do: control.DoDrain})
	c.await(control.Draining)
	close(gate)
	if err := c.end(); err != nil {
		t.Errorf("a drained process ends with %v", err)
	}
}

// A group's index is valid only if both sides count the same groups. Otherwise two processes would
// share multiprocessors without knowing it.
func TestGroupSizes(t *testing.T) {
	h := newGPUHarness(t, functiontest.Card())
	h.split = []int{8, 16, 12}
	f := h.Fake()
	c := h.serving(f, 1)
	c.moveTo(0)
	c.awaitGroups(0)
	c.moveTo(1)
	if n := c.awaitGroups(0); n.SMs != 8 || !strings.Contains(n.Reason, "split it differently") {
		t.Errorf("the process reports %+v, want that it stays and why", n)
	}
	c.drained()

	again := newGPUHarness(t, functiontest.Card())
	again.split = h.split
	born := again.start(1, again.Fake().Build, nil)
	born.order(control.Order{Do: control.DoWake, SharePercent: 50, SMGroups: []int{1}})
	if err := born.end(); err == nil || !strings.Contains(err.Error(), "split it differently") {
		t.Errorf("the process ends with %v", err)
	}
}
