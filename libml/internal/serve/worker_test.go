package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testing/functiontest"
	"github.com/penstock/penstock/internal/testing/wait"
	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/libml/framework"
	"github.com/penstock/penstock/libml/gate"
	"github.com/penstock/penstock/libml/gpu"
	"github.com/penstock/penstock/libml/internal/worker"
	"github.com/penstock/penstock/libml/lane"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/shm"
)

// testWorker is a worker that runs inside the test process. The test plays orchestrator and manager.
type testWorker struct {
	t      *testing.T
	parent *control.Parent
	ended  <-chan error
	fakes  map[string]*functiontest.Fake // by the name of the model's card
	last   map[string]control.Notice
	conns  map[string]*control.AttachConn // by member

	mu        sync.Mutex // guards what follows
	functions map[string]*harness
}

// open is the opener of the members.
func (w *testWorker) open(start control.Start, in models.Input, o gpu.Options) (device.Device, error) {
	w.mu.Lock()
	h := w.functions[start.IF]
	w.mu.Unlock()
	return h.open(start, in, o)
}

// startWorker starts a worker for the harnesses' functions.
func startWorker(t *testing.T, fakes map[string]*functiontest.Fake) *testWorker {
	t.Helper()
	return startWorkerWith(t, fakes, control.Start{})
}

// startWorkerWith starts a worker with limits.
func startWorkerWith(t *testing.T, fakes map[string]*functiontest.Fake, limits control.Start) *testWorker {
	t.Helper()
	w := startWorkerBuilding(t, limits, func(card *models.Card) (framework.Framework, error) { return fakes[card.Name].Build(card) })
	w.fakes = fakes
	return w
}

// startWorkerBuilding starts a worker with other frameworks.
func startWorkerBuilding(t *testing.T, limits control.Start, build framework.Build) *testWorker {
	t.Helper()
	w := &testWorker{t: t, last: map[string]control.Notice{}, conns: map[string]*control.AttachConn{}, functions: map[string]*harness{}}
	w.parent, w.ended = connect(t, func(link *control.Child) error {
		return serveMembers(context.Background(), slog.New(slog.DiscardHandler), link, w.open, build)
	})
	limits.Worker, limits.CPUs, limits.Device, limits.Lanes = "cold", 1, framework.DeviceCPU, 1
	w.order(control.Order{Do: control.DoStart, Start: &limits})
	return w
}

func (w *testWorker) order(o control.Order) {
	w.t.Helper()
	if err := w.parent.Order(o); err != nil {
		w.t.Fatal(err)
	}
}

// join starts a generation of a harness's function in the worker.
func (w *testWorker) join(h *harness, generation uint32) (member string) {
	w.t.Helper()
	identity := h.identity(generation)
	identity.IF = h.Card.Name
	w.mu.Lock()
	w.functions[identity.IF] = h
	w.mu.Unlock()
	accept := h.listen(&identity)
	member = fmt.Sprintf("%s/0#%d", h.Card.Name, generation)
	w.order(control.Order{Do: control.DoStart, Member: member, Start: &identity})
	w.conns[member] = accept(nil)
	return member
}

// await reads notices until one of the member fits.
func (w *testWorker) await(member string, fits func(control.Notice) bool) control.Notice {
	w.t.Helper()
	hangs := time.AfterFunc(functiontest.Patience, func() { w.parent.Close() })
	defer hangs.Stop()
	for deadline := time.Now().Add(functiontest.Patience); time.Now().Before(deadline); {
		if n, ok := w.last[member]; ok && fits(n) {
			return n
		}
		n, err := w.parent.ReadNotice()
		if err != nil {
			w.t.Fatalf("read notice: %v; last of %s: %+v", err, member, w.last[member])
		}
		w.last[n.Member] = n
	}
	w.t.Fatalf("last notice of %s: %+v", member, w.last[member])
	return control.Notice{}
}

func (w *testWorker) awaitState(member string, state control.State) {
	w.t.Helper()
	w.await(member, func(n control.Notice) bool { return n.State == state && !n.Exited })
}

func (w *testWorker) awaitExit(member string) control.Notice {
	w.t.Helper()
	return w.await(member, func(n control.Notice) bool { return n.Exited })
}

func (w *testWorker) end() error {
	w.t.Helper()
	select {
	case err := <-w.ended:
		return err
	case <-time.After(functiontest.Patience):
		w.t.Fatal("worker does not end")
		return nil
	}
}

// functionNamed returns a harness of a function whose model has that name, and its framework.
func functionNamed(t *testing.T, name string) (*harness, *functiontest.Fake) {
	card := functiontest.Card()
	card.Name = name
	h := newHarness(t, card)
	return h, functiontest.NewFake()
}

func TestWorker(t *testing.T) {
	face, faceModel := functionNamed(t, "face")
	fashion, fashionModel := functionNamed(t, "fashion")
	w := startWorker(t, map[string]*functiontest.Fake{"face": faceModel, "fashion": fashionModel})
	serve := func(h *harness, member string, generation uint32) {
		t.Helper()
		w.awaitState(member, control.Loaded)
		w.order(control.Order{Do: control.DoWake, Member: member})
		w.awaitState(member, control.Ready)
		h.Channel.SetEpoch(generation)
		w.awaitState(member, control.Active)
	}
	ask := func(h *harness, slot uint32) {
		t.Helper()
		h.Publish(slot, h.Picture(byte(slot)), nil)
		h.Answered(h.Replies(1)[0], h.Picture(byte(slot)))
	}
	a, b := w.join(face, 1), w.join(fashion, 1)
	serve(face, a, 1)
	serve(fashion, b, 1)
	ask(face, 1)
	ask(fashion, 2)

	// A member hands over to another in the same worker; the other function does not notice.
	faceModel = functiontest.NewFake()
	w.fakes["face"] = faceModel
	second := w.join(face, 2)
	w.awaitState(second, control.Loaded)
	w.order(control.Order{Do: control.DoWake, Member: second})
	w.awaitState(second, control.Ready)
	face.Channel.SetEpoch(2)
	if n := w.awaitExit(a); n.State != control.Stopped || n.Reason != "" {
		t.Errorf("first generation exited with %+v, want stopped", n)
	}
	w.awaitState(second, control.Active)
	ask(face, 3)
	ask(fashion, 4)

	// A member that fails leaves the other.
	broken, brokenModel := functionNamed(t, "broken")
	brokenModel.Fail(func(step string) error {
		if step == "load" {
			return functiontest.ErrFake
		}
		return nil
	})
	w.fakes["broken"] = brokenModel
	if n := w.awaitExit(w.join(broken, 1)); n.State != control.Failed || n.Reason != "load model broken: the fake fails" {
		t.Errorf("broken model exited with %+v", n)
	}
	ask(face, 5)
	ask(fashion, 6)

	// The worker drains its members.
	w.order(control.Order{Do: control.DoDrain})
	w.awaitExit(second)
	w.awaitExit(b)
	if err := w.end(); err != nil {
		t.Errorf("drained worker ended with %v", err)
	}
	if owner := face.Channel.Owner() | fashion.Channel.Owner(); owner != 0 {
		t.Errorf("generation %d still owns a ring", owner)
	}
}

// TestWorkerOrdersAfterDrain sends a member, which links while it is drained, more orders than it may leave unread.
func TestWorkerOrdersAfterDrain(t *testing.T) {
	face, faceModel := functionNamed(t, "face")
	fashion, fashionModel := functionNamed(t, "fashion")
	linking, link := make(chan struct{}), make(chan struct{})
	fashionModel.Fail(func(step string) error {
		if step == "link" {
			close(linking)
			<-link
		}
		return nil
	})
	w := startWorker(t, map[string]*functiontest.Fake{"face": faceModel, "fashion": fashionModel})
	drained, other := w.join(fashion, 1), w.join(face, 1)
	w.awaitState(drained, control.Loaded)
	w.order(control.Order{Do: control.DoWake, Member: drained})
	<-linking
	w.order(control.Order{Do: control.DoDrain, Member: drained})
	const unread = 64 // that a member may leave, in package control
	for range unread + 16 {
		w.order(control.Order{Do: control.DoShare, SharePercent: 30, Member: drained})
		time.Sleep(2 * time.Millisecond)
	}
	w.awaitState(other, control.Loaded)
	close(link)
	w.awaitState(drained, control.Stopped)
	w.order(control.Order{Do: control.DoWake, Member: other})
	w.awaitState(other, control.Ready)
	w.order(control.Order{Do: control.DoDrain})
	if err := w.end(); err != nil {
		t.Error(err)
	}
}

// TestWorkerEnds ends a worker with its orchestrator, and with a device.
func TestWorkerEnds(t *testing.T) {
	t.Run("orchestrator ends", func(t *testing.T) {
		face, model := functionNamed(t, "face")
		w := startWorker(t, map[string]*functiontest.Fake{"face": model})
		w.awaitState(w.join(face, 1), control.Loaded)
		w.parent.Close()
		if err := w.end(); !errors.Is(err, worker.ErrOrchestratorGone) {
			t.Errorf("worker ended with %v, want %v", err, worker.ErrOrchestratorGone)
		}
	})
	t.Run("device fails", func(t *testing.T) {
		face, model := functionNamed(t, "face")
		model.Fail(func(step string) error {
			if step == "link" {
				return fmt.Errorf("launch kernel: %w", device.ErrLost)
			}
			return nil
		})
		w := startWorker(t, map[string]*functiontest.Fake{"face": model})
		member := w.join(face, 1)
		w.awaitState(member, control.Loaded)
		w.order(control.Order{Do: control.DoWake, Member: member})
		if err := w.end(); !errors.Is(err, device.ErrLost) || !strings.HasPrefix(err.Error(), "member face/0#1: ") {
			t.Errorf("worker ended with %v, want the member and %v", err, device.ErrLost)
		}
	})
}

// joinLane returns a member's place. Nothing wakes the member.
func joinLane(t *testing.T, s *gate.Lanes) *gate.Place {
	t.Helper()
	place, err := s.Join(lane.Model{}, func() {})
	if err != nil {
		t.Fatal(err)
	}
	return place
}

// TestWarmUpTurn warms up a member next to one that serves. Its work waits for its turn, and is left out
// if the member must end.
func TestWarmUpTurn(t *testing.T) {
	s, err := gate.NewLanes(1, lane.EDF, gate.Unlimited)
	if err != nil {
		t.Fatal(err)
	}
	a, b := joinLane(t, s), joinLane(t, s)
	p := &process{place: b, start: control.Start{Device: "GPU-fake"}}
	var running, ran atomic.Int32
	work := func() error {
		if running.Add(1) != 1 {
			t.Error("warm-up runs next to another member's batch")
		}
		ran.Add(1)
		running.Add(-1)
		return nil
	}
	take := func() {
		wait.For(t, "the turn", func() bool {
			return a.Take(shm.Now(), lane.Job{Deadline: shm.Now() + int64(time.Second), Batch: time.Microsecond, Requests: 1})
		})
		running.Add(1)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 100 {
			if err := p.inTurn(0, work); err != nil {
				t.Error(err)
			}
		}
	}()
	for range 100 {
		take()
		time.Sleep(10 * time.Microsecond)
		running.Add(-1)
		a.End(shm.Now())
	}
	<-done
	if ran.Load() != 100 {
		t.Errorf("%d runs of the warm-up, want 100", ran.Load())
	}

	take()
	p.exit.request()
	if err := p.inTurn(0, work); err != nil || ran.Load() != 100 {
		t.Errorf("%d runs of a member that must end, %v; want no more", ran.Load()-100, err)
	}
	running.Add(-1)
	a.End(shm.Now())
	take() // b does not wait any more
	a.End(shm.Now())
}
