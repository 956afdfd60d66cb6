package serve

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testing/functiontest"
	"github.com/penstock/penstock/libml/internal/worker"
)

// A process goes through all states from starting to stopped.
func TestLife(t *testing.T) {
	h, f := newHarness(t, functiontest.Card()), functiontest.NewFake()
	c := h.start(1, f.Build, nil)
	c.await(control.Starting)
	c.await(control.Loaded)
	if want := []string{"build", "init", "load"}; !slices.Equal(f.Calls, want) {
		t.Errorf("a shadow that sleeps has called %v, want %v", f.Calls, want)
	}
	c.order(control.Order{Do: control.DoWake, SharePercent: 50})
	c.await(control.Linking)
	ready := c.await(control.Ready)
	if ready.PersistentBytes != 100 || ready.EphemeralBytes != 80 {
		t.Errorf("ready with %d and %d bytes, want 100 and the largest batch's 80", ready.PersistentBytes, ready.EphemeralBytes)
	}
	f.Serve()
	h.Channel.SetEpoch(1)
	c.await(control.Active)
	h.Publish(3, h.Picture(3), nil)
	h.Answered(h.Replies(1)[0], h.Picture(3))
	c.order(control.Order{Do: control.DoDrain})
	c.await(control.Draining)
	c.await(control.Stopped)
	if err := c.end(); err != nil {
		t.Errorf("a drained process ends with %v", err)
	}
	if owner := h.Channel.Owner(); owner != 0 {
		t.Errorf("generation %d still owns the ring", owner)
	}
}

// The old process stops at a batch boundary. The new one gets the requests that
// the old one had taken and not started.
func TestHandover(t *testing.T) {
	h := newHarness(t, functiontest.Card())
	old := functiontest.NewFake()
	old.Entered, old.Gate = make(chan struct{}), make(chan struct{})
	first := h.serving(old, 1)
	h.Publish(0, h.Picture(0), nil)
	<-old.Entered // the batch of slot 0 runs

	shadow := functiontest.NewFake()
	second := h.start(2, shadow.Build, nil)
	second.order(control.Order{Do: control.DoWake, SharePercent: 50})
	second.await(control.Ready)
	shadow.Serve()
	for slot := uint32(1); slot < 6; slot++ {
		h.Publish(slot, h.Picture(byte(slot)), nil)
	}
	h.Channel.SetEpoch(2)
	h.Silent()
	close(old.Gate)
	first.await(control.Draining)
	first.await(control.Stopped)
	if err := first.end(); err != nil {
		t.Errorf("the old process ends with %v", err)
	}
	if want := []int{1}; !slices.Equal(old.Ran, want) {
		t.Errorf("the old process ran batches of %v, want %v", old.Ran, want)
	}
	for _, slot := range h.Replies(6) {
		h.Answered(slot, h.Picture(byte(slot)))
	}
	h.Silent()
	if r := second.awaitReport(1); r.Generation != 2 || r.Handovers != 1 || r.IdleNanos < 0 {
		t.Errorf("report is %+v, want generation 2 with one hand-over and work that waited", r)
	}
}

// A process ends if the orchestrator or the manager has exited.
func TestPeerGone(t *testing.T) {
	for _, c := range []struct {
		name  string
		leave func(*child)
		want  error
	}{
		{"orchestrator", func(c *child) { c.parent.Close() }, worker.ErrOrchestratorGone},
		{"manager", func(c *child) { c.manager.Close() }, errManagerGone},
	} {
		for _, state := range []control.State{control.Loaded, control.Ready, control.Active} {
			t.Run(c.name+" gone while "+string(state), func(t *testing.T) {
				h, f := newHarness(t, functiontest.Card()), functiontest.NewFake()
				p := h.start(1, f.Build, nil)
				if state != control.Loaded {
					p.order(control.Order{Do: control.DoWake, SharePercent: 50})
				}
				if state == control.Active {
					h.Channel.SetEpoch(1)
				}
				p.await(state)
				c.leave(p)
				if err := p.end(); !errors.Is(err, c.want) {
					t.Errorf("the process ends with %v, want %v", err, c.want)
				}
				if last := f.Calls[len(f.Calls)-1]; last != "deinit" {
					t.Errorf("its last call was %s, want deinit", last)
				}
			})
		}
	}
}

// A process that cannot start ends with one line about the reason.
func TestStartFails(t *testing.T) {
	for _, step := range []string{"build", "init", "load", "link", "configure", "infer"} {
		t.Run(step, func(t *testing.T) {
			h, f := newHarness(t, functiontest.Card()), functiontest.NewFake()
			f.Failing = func(s string) error {
				if s == step {
					return functiontest.ErrFake
				}
				return nil
			}
			c := h.start(1, f.Build, nil)
			// The process may be gone before the order arrives.
			_ = c.parent.Order(control.Order{Do: control.DoWake, SharePercent: 50})
			if err := c.end(); !errors.Is(err, functiontest.ErrFake) || strings.Contains(err.Error(), "\n") {
				t.Errorf("the process ends with %q, want one line about %v", err, functiontest.ErrFake)
			}
			if last := f.Calls[len(f.Calls)-1]; step != "build" && last != "deinit" {
				t.Errorf("its last call was %s, want deinit", last)
			}
		})
	}
}

// A process refuses a grant that does not fit, and ends with the reason.
func TestInvalidGrant(t *testing.T) {
	for _, c := range []struct {
		name   string
		tamper func(*control.Attached)
		want   string
	}{
		{"tensors too small", func(a *control.Attached) { a.TensorBytes-- }, "map tensors"},
		{"a slab too few", func(a *control.Attached) { a.SlabBytes = nil }, "file descriptors"},
		{"a slab that is smaller than granted", func(a *control.Attached) { a.SlabBytes[0] += 1 << 20 }, "map slab"},
		{"another geometry", func(a *control.Attached) { a.Geometry = []byte(`{"slots":128,"max_pieces":2,"result_bytes":256}`) }, "attach to channel"},
		{"no card", func(a *control.Attached) { a.Card = []byte(`"none"`) }, "read card"},
		{"an unknown rule", func(a *control.Attached) { a.Batching.Rule = "guess" }, "guess"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h, f := newHarness(t, functiontest.Card()), functiontest.NewFake()
			p := h.start(1, f.Build, c.tamper)
			_ = p.parent.Order(control.Order{Do: control.DoWake, SharePercent: 50})
			if err := p.end(); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("the process ends with %v, want something of %q", err, c.want)
			}
		})
	}
}
