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
	"github.com/penstock/penstock/internal/testing/must"
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
	case <-time.After(patience):
		c.t.Fatalf("no report of %d hand-overs", handovers)
		return control.Report{}
	}
}

func TestMoves(t *testing.T) {
	f := newFlights(2, 1)
	var m moves
	settled := func() bool {
		_, settled := m.settle(&f)
		return settled
	}
	if m.begin(&f, 1); m.ordered() || m.made() || m.incomplete() || f.base != 0 {
		t.Fatal("a move without an order")
	}
	f.add() // in the old place
	order := &move{base: 2, settled: make(chan struct{})}
	m.next.Store(order)
	if !m.ordered() || m.made() {
		t.Error("an ordered move is not there, or made already")
	}
	if m.begin(&f, 7); m.ordered() || !m.incomplete() || f.base != 2 || m.begun != 7 {
		t.Errorf("the move is not made: %+v, base %d", &m, f.base)
	}
	if settled() {
		t.Error("settled before a batch began in the new place")
	}
	m.complete(5)
	m.complete(6) // a later batch
	f.add()
	if m.incomplete() || settled() {
		t.Error("settled while a batch runs in the old place")
	}
	f.remove(f.oldest())
	if idle, settled := m.settle(&f); !settled || idle != 5 || m.made() {
		t.Errorf("settled %v, idle for %d ns, want 5", settled, idle)
	}
	<-order.settled
	if settled() {
		t.Error("settled twice")
	}
}

// A process warms up on the groups of its wake.
func TestWakeOnGroups(t *testing.T) {
	h := newGPUHarness(t, testCard())
	f := h.fake()
	c := h.start(1, f.build, nil)
	c.order(control.Order{Do: control.DoWake, SharePercent: 50, SMGroups: []int{1, 3}})
	ready := c.await(control.Ready)
	if ready.SMs != 8+12 || !slices.Equal(ready.SMGroups, []int{1, 3}) {
		t.Errorf("ready on %d multiprocessors, groups %v; want 20, groups 1 and 3", ready.SMs, ready.SMGroups)
	}
	for slot := range 2 {
		if got := h.gpu.Groups(slot); !slices.Equal(got, []int{1, 3}) {
			t.Errorf("slot %d runs on groups %v", slot, got)
		}
		if got, want := f.batches[fakeKey{slot, 8}].stream, h.gpu.Stream(slot); got != want {
			t.Errorf("batches of slot %d are configured for stream %#x, want %#x", slot, got, want)
		}
	}
	c.drained()
}

// Requests arrive all the time, and each gets its right answer while the process moves back and
// forth.
func TestMoveUnderLoad(t *testing.T) {
	const moves = 40
	h := newGPUHarness(t, testCard())
	f := h.fake()
	c := h.serving(f, 1)
	h.gpu.Late.Store(int64(100 * time.Microsecond))
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
				h.publish(slot, h.picture(byte(round%100)+byte(slot)), nil)
			}
			for _, slot := range h.replies(6) {
				h.answered(slot, h.picture(byte(round%100)+byte(slot)))
				answered++
			}
		}
	}()
	for i := range moves {
		to := []int{i % 4}
		c.moveTo(to...)
		n := c.awaitGroups(to...)
		if want := testGroups[to[0]]; n.SMs != want || n.State != control.Active || n.Reason != "" {
			t.Errorf("after the move the process reports %+v, want %d multiprocessors", n, want)
		}
		before, _ := f.history()
		wait.For(t, "a batch in each lane", func() bool { now, _ := f.history(); return len(now) >= len(before)+2 })
	}
	r := c.awaitReport(1 + moves)
	if r.Handovers != 1+moves {
		t.Errorf("%d hand-overs and moves, want %d", r.Handovers, 1+moves)
	}
	close(stop)
	if n := <-ended; n == 0 {
		t.Error("nothing was answered meanwhile")
	}
	_, slots := f.history()
	for slot := range device.Slots / 2 {
		if !slices.Contains(slots, 2*slot) {
			t.Errorf("no batch ran in slot %d", 2*slot)
		}
	}
	c.drained()
}

// With at most one batch in flight the loop moves between two batches. If work was waiting, the
// ring was idle from the end of the last batch to the begin of the next.
func TestMoveIdle(t *testing.T) {
	h := newGPUHarness(t, testCard())
	h.streams = 1
	f := h.fake()
	l := h.loop(f)
	l.served = true
	h.publish(1, h.picture(1), nil)
	must.OK(t, l.turn())
	h.replies(1)
	for _, c := range []struct {
		name   string
		before bool // a request is pending before the move
	}{{"work waited", true}, {"no work waited", false}} {
		t.Run(c.name, func(t *testing.T) {
			order := &move{base: standby(l.flights.base), settled: make(chan struct{})}
			for i := range l.flights.places {
				if _, err := l.p.configureSlot(order.base + i); err != nil {
					t.Fatal(err)
				}
			}
			l.moves.next.Store(order)
			handovers := l.reporter.handovers.count
			if c.before {
				h.publish(2, h.picture(2), nil)
			}
			l.take()
			l.startMove()
			if l.flights.base != order.base {
				t.Fatal("the loop did not move")
			}
			if !c.before {
				h.publish(2, h.picture(2), nil)
			}
			must.OK(t, l.turn())
			h.answered(h.replies(1)[0], h.picture(2))
			r := l.reporter.published.Load()
			if r == nil || r.count != handovers+1 || (r.idleNanos >= 0) != c.before {
				t.Errorf("report is %+v, want one move more", r)
			}
			select {
			case <-order.settled:
			default:
				t.Error("the mover was not notified")
			}
			if _, slots := f.history(); slots[len(slots)-1]/2 != order.base/2 {
				t.Errorf("the batch ran in slot %d, want %d or the next", slots[len(slots)-1], order.base)
			}
		})
	}
}

// If requests are pending and nothing is in flight, one more batch begins in the old place, and the
// loop moves next to it.
func TestMoveNextToBatch(t *testing.T) {
	h := newGPUHarness(t, testCard())
	f := h.fake()
	l := h.loop(f)
	l.served = true
	order := &move{base: standby(l.flights.base), settled: make(chan struct{})}
	for i := range l.flights.places {
		if _, err := l.p.configureSlot(order.base + i); err != nil {
			t.Fatal(err)
		}
	}
	begin := func() {
		t.Helper()
		if l.take(); !l.mayBegin() {
			t.Fatal("no batch may begin")
		}
		l.pick()
		must.OK(t, l.begin())
	}
	release := h.hold()
	l.moves.next.Store(order)
	h.publish(1, h.picture(1), nil)
	l.take()
	if l.startMove(); l.flights.base == order.base {
		t.Fatal("the loop moved, and left the device without work")
	}
	begin()
	l.startMove()
	h.publish(2, h.picture(2), nil)
	begin()
	release()
	for l.flights.count > 0 {
		must.OK(t, l.finish())
	}
	for _, slot := range h.replies(2) {
		h.answered(slot, h.picture(byte(slot)))
	}
	if _, slots := f.history(); !slices.Equal(slots, []int{0, 3}) {
		t.Errorf("batches ran in slots %v, want one here and one in the other lane there", slots)
	}
	if r := l.reporter.published.Load(); r == nil || r.idleNanos > 0 {
		t.Errorf("report is %+v, want no pause", r)
	}
	select {
	case <-order.settled:
	default:
		t.Error("the mover was not notified")
	}
}

// The next batch begins in the new place while the last one in the old place still runs. The old
// place is not given up before that batch has ended.
func TestMoveOverlap(t *testing.T) {
	// The order to move reaches the loop just after its last visible effect. Work that arrives in
	// between begins in the old place, and the try proves nothing.
	for range 100 {
		if moveWithWork(t) {
			return
		}
	}
	t.Error("no batch began in the new place next to one in the old")
}

// moveWithWork moves a process that has a batch in flight and requests waiting. It returns false if
// a second batch began before the move was made.
func moveWithWork(t *testing.T) (made bool) {
	h := newGPUHarness(t, testCard())
	h.streams = 2
	f := h.fake()
	c := h.serving(f, 1)
	release := h.hold()
	begun := func(n int) func() bool {
		return func() bool { sizes, _ := f.history(); return len(sizes) == n }
	}
	h.publish(0, h.picture(0), nil)
	wait.For(t, "a batch in flight", begun(1))
	c.moveTo(2)
	wait.For(t, "the slots that stand by are configured", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.batches[fakeKey{3, 8}] != nil && slices.Equal(h.gpu.Groups(3), []int{2})
	})
	for slot := uint32(1); slot < 6; slot++ {
		h.publish(slot, h.picture(byte(slot)), nil)
	}
	wait.For(t, "a second batch", begun(2))
	_, slots := f.history()
	if made = slices.Equal(slots, []int{0, 3}); !made && !slices.Equal(slots, []int{0, 1}) {
		t.Errorf("batches began in slots %v, want one in the old set and one in the other lane", slots)
	}
	h.silent()
	c.checkStays(5*time.Millisecond, 2)
	release()
	c.awaitGroups(2)
	for _, slot := range h.replies(6) {
		h.answered(slot, h.picture(byte(slot)))
	}
	if _, slots := f.history(); made && slices.Min(slots[1:]) < 2 {
		t.Errorf("batches ran in slots %v, want all but the first in the new set", slots)
	}
	if r := c.awaitReport(2); made && r.IdleNanos > 0 {
		t.Errorf("report is %+v, want a device that had work all the time", r)
	}
	c.drained()
	return made
}

// While one move is being made, only the last order counts.
func TestMoveOrders(t *testing.T) {
	h := newGPUHarness(t, testCard())
	f := h.fake()
	c := h.serving(f, 1)
	h.publish(1, h.picture(1), nil)
	h.answered(h.replies(1)[0], h.picture(1))
	entered, gate := make(chan struct{}, 1), make(chan struct{})
	f.fail(func(step string) error {
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
	f.fail(nil)
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
		spoil func(h *harness, f *fake)
		to    int
		want  error
	}{
		{"no memory for a partition", func(h *harness, _ *fake) { h.gpu.FailRepartition.Store(1) }, 2, devicetest.ErrMemory},
		{"no memory for a batch", func(_ *harness, f *fake) { f.fail(only("configure", devicetest.ErrMemory)) }, 2, devicetest.ErrMemory},
		{"groups that there are not", func(*harness, *fake) {}, 4, devicetest.ErrGroups},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newGPUHarness(t, testCard())
			f := h.fake()
			p := h.serving(f, 1)
			p.moveTo(0, 1)
			p.awaitGroups(0, 1)
			c.spoil(h, f)
			p.moveTo(c.to)
			n := p.awaitGroups(0, 1)
			if !strings.Contains(n.Reason, c.want.Error()) || n.State != control.Active || n.SMs != 16 {
				t.Errorf("the process reports %+v, want that it holds 16 multiprocessors and why", n)
			}
			f.fail(nil)
			h.publish(1, h.picture(1), nil)
			h.answered(h.replies(1)[0], h.picture(1))
			p.moveTo(3)
			if n := p.awaitGroups(3); n.Reason != "" || n.SMs != 12 {
				t.Errorf("the process reports %+v, want 12 multiprocessors and no reason", n)
			}
			h.publish(2, h.picture(2), nil)
			h.answered(h.replies(1)[0], h.picture(2))
			p.drained()
		})
	}
}

// errUnfit is the error of a kernel that does not fit on its multiprocessors.
var errUnfit = fmt.Errorf("slot 2: %w", &cuda.Error{Op: "cuGraphInstantiateWithFlags", Code: cuda.InvalidClusterSize})

// Only a try shows whether a model runs on few multiprocessors. If it does not, the process reports
// those groups, continues to serve on its old groups, and can quickly be ordered back.
func TestMoveToUnfitGroups(t *testing.T) {
	h := newGPUHarness(t, testCard())
	f := h.fake()
	p := h.serving(f, 1)
	p.moveTo(0, 1)
	p.awaitGroups(0, 1)
	f.fail(only("configure", errUnfit))
	p.moveTo(0)
	n := p.awaitGroups(0, 1)
	if !slices.Equal(n.InfeasibleGroups, []int{0}) || n.State != control.Active || n.SMs != 16 || !strings.Contains(n.Reason, "(912)") {
		t.Errorf("the process reports %+v, want that it stays on 16 multiprocessors and that group 0 is unfit", n)
	}
	h.publish(1, h.picture(1), nil)
	h.answered(h.replies(1)[0], h.picture(1))
	// A move to its present groups needs no configuration.
	p.moveTo(0, 1)
	if n := p.awaitGroups(0, 1); n.InfeasibleGroups != nil || n.Reason != "" || n.SMs != 16 {
		t.Errorf("back in its old place the process reports %+v", n)
	}
	f.fail(nil)
	p.moveTo(1, 2)
	p.awaitGroups(1, 2)
	h.publish(2, h.picture(2), nil)
	h.answered(h.replies(1)[0], h.picture(2))
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
		{"something else is wrong", "configure", errFake, []int{1}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newGPUHarness(t, testCard())
			f := h.fake()
			p := h.start(1, f.build, nil)
			f.fail(only(c.step, c.err))
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
			if last := f.calls[len(f.calls)-1]; last != "deinit" {
				t.Errorf("the last call is %s: the framework was not given back", last)
			}
		})
	}
}

// A process that is ready moves before it serves.
func TestMoveReady(t *testing.T) {
	h := newGPUHarness(t, testCard())
	f := h.fake()
	c := h.start(1, f.build, nil)
	c.order(control.Order{Do: control.DoWake, SharePercent: 50, SMGroups: []int{0}})
	c.await(control.Ready)
	c.moveTo(1, 2)
	if n := c.awaitGroups(1, 2); n.State != control.Ready || n.SMs != 16 {
		t.Errorf("the process reports %+v, want ready on 16 multiprocessors", n)
	}
	f.serve()
	h.channel.SetEpoch(1)
	h.publish(1, h.picture(1), nil)
	h.answered(h.replies(1)[0], h.picture(1))
	if _, slots := f.history(); !slices.Equal(slots, []int{2}) {
		t.Errorf("batches ran in slots %v, want 2", slots)
	}
	c.moveTo() // to all groups
	wait.For(t, "the process is on the whole device", func() bool { n := <-c.notices; return n.SMs == 36 && n.SMGroups == nil })
	c.drained()
}

// A device that is lost in a move ends the process.
func TestMoveDeviceLost(t *testing.T) {
	h := newGPUHarness(t, testCard())
	f := h.fake()
	c := h.serving(f, 1)
	h.gpu.Lose()
	c.moveTo(1)
	if failed := c.await(control.Failed); !failed.DeviceLost {
		t.Errorf("the process reports %+v, want that its device is lost", failed)
	}
	if err := c.end(); !errors.Is(err, device.ErrLost) {
		t.Errorf("the process ends with %v", err)
	}
	if last := f.calls[len(f.calls)-1]; last == "deinit" {
		t.Error("the framework was called on a lost device")
	}
}

// A process that is drained while it prepares a move ends.
func TestMoveDrain(t *testing.T) {
	h := newGPUHarness(t, testCard())
	f := h.fake()
	c := h.serving(f, 1)
	entered, gate := make(chan struct{}, 64), make(chan struct{})
	f.fail(func(step string) error {
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
	h := newGPUHarness(t, testCard())
	h.split = []int{8, 16, 12}
	f := h.fake()
	c := h.serving(f, 1)
	c.moveTo(0)
	c.awaitGroups(0)
	c.moveTo(1)
	if n := c.awaitGroups(0); n.SMs != 8 || !strings.Contains(n.Reason, "split it differently") {
		t.Errorf("the process reports %+v, want that it stays and why", n)
	}
	c.drained()

	again := newGPUHarness(t, testCard())
	again.split = h.split
	born := again.start(1, again.fake().build, nil)
	born.order(control.Order{Do: control.DoWake, SharePercent: 50, SMGroups: []int{1}})
	if err := born.end(); err == nil || !strings.Contains(err.Error(), "split it differently") {
		t.Errorf("the process ends with %v", err)
	}
}
