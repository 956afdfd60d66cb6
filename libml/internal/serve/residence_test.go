package serve

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testing/functiontest"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/wait"
	"github.com/penstock/penstock/libml/framework"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/wire"
)

// modelBytes is what a fake returns from LinkModel.
const modelBytes = 100

// scarceWorker is a worker whose memory holds one model, with the functions' members that serve.
type scarceWorker struct {
	*testWorker
	functions map[string]*harness
	fakes     map[string]*functiontest.Fake
	members   map[string]string
}

func startScarce(t *testing.T, edit func(name string, f *functiontest.Fake), names ...string) *scarceWorker {
	t.Helper()
	return startScarceWith(t, nil, edit, names...)
}

// startScarceWith is startScarce with the models' files.
func startScarceWith(t *testing.T, files map[string]string, edit func(name string, f *functiontest.Fake), names ...string) *scarceWorker {
	t.Helper()
	w := &scarceWorker{functions: map[string]*harness{}, fakes: map[string]*functiontest.Fake{}, members: map[string]string{}}
	for _, name := range names {
		w.functions[name], w.fakes[name] = functionNamed(t, name)
		w.functions[name].Card.Model = files[name]
		if edit != nil {
			edit(name, w.fakes[name])
		}
	}
	w.testWorker = startWorkerWith(t, w.fakes, control.Start{WorkerLimits: control.WorkerLimits{MemoryBytes: 3 * modelBytes / 2}})
	for _, name := range names {
		w.serve(name)
	}
	return w
}

// serve starts a function's member, which then has the ring.
func (w *scarceWorker) serve(name string) {
	w.t.Helper()
	member := w.join(w.functions[name], 1)
	w.members[name] = member
	w.awaitState(member, control.Loaded)
	w.order(control.Order{Do: control.DoWake, Member: member})
	w.awaitState(member, control.Ready)
	w.functions[name].Channel.SetEpoch(1)
	w.awaitState(member, control.Active)
}

// ask sends a request and returns the status of its answer, which must be right.
func (w *scarceWorker) ask(name string, slot uint32) wire.Status {
	w.t.Helper()
	h := w.functions[name]
	h.Publish(slot, h.Picture(byte(slot)), nil)
	slot = h.Replies(1)[0]
	status := h.Status(slot)
	if status == wire.StatusOK {
		h.Answered(slot, h.Picture(byte(slot)))
	}
	return status
}

// evict asks for fashion until face is evicted.
func (w *scarceWorker) evict() {
	w.t.Helper()
	face := w.fakes["face"]
	for deadline := time.Now().Add(functiontest.Patience); face.Count("link") > face.Count("deinit"); {
		if s := w.ask("fashion", 0); s != wire.StatusOK {
			w.t.Fatalf("answer %v", s)
		}
		if time.Now().After(deadline) {
			w.t.Fatal("face is not evicted")
		}
	}
}

// TestScarceMemory has memory for one of three models.
func TestScarceMemory(t *testing.T) {
	names := []string{"face", "fashion", "detect"}
	w := startScarce(t, nil, names...)
	for i := range uint32(30) {
		if s := w.ask(names[i%3], i); s != wire.StatusOK {
			t.Fatalf("request %d is answered %v", i, s)
		}
	}
	w.order(control.Order{Do: control.DoDrain}) // a model may be loading again: the requests are regular
	if err := w.end(); err != nil {
		t.Errorf("drained worker ended with %v", err)
	}
	for _, name := range names {
		f := w.fakes[name]
		builds, loads, ends := f.Count("build"), f.Count("link"), f.Count("deinit")
		if loads < 10 || builds != ends || builds < loads {
			t.Errorf("%s was built %d times, loaded %d times and ended %d times; want a framework for each load, at least 10, and its end", name, builds, loads, ends)
		}
	}
}

// TestScarceMemoryConcurrent asks all functions at once.
func TestScarceMemoryConcurrent(t *testing.T) {
	names := []string{"face", "fashion", "detect", "pose"}
	w := startScarce(t, nil, names...)
	for _, name := range names {
		h := w.functions[name]
		for slot := range uint32(20) {
			h.Publish(slot, h.Picture(byte(slot)), nil)
		}
	}
	for _, name := range names {
		h := w.functions[name]
		for _, slot := range h.Replies(20) {
			h.Answered(slot, h.Picture(byte(slot)))
		}
	}
}

// TestModelFileChanged changes a model's file while the model is evicted. Its requests fail until the old
// bytes are back.
func TestModelFileChanged(t *testing.T) {
	file := filepath.Join(t.TempDir(), "model")
	write := func(text string, at time.Time) {
		t.Helper()
		must.OK(t, errors.Join(os.WriteFile(file, []byte(text), 0o600), os.Chtimes(file, at, at)))
	}
	first := time.Unix(1e9, 0)
	write("first", first)
	w := startScarceWith(t, map[string]string{"face": file}, nil, "face", "fashion")
	slot := uint32(0)
	for name, change := range map[string]func(){
		"size":    func() { write("second", first) },
		"byte":    func() { write("fir5t", first) },
		"removed": func() { os.Remove(file) },
	} {
		slot++
		w.ask("fashion", slot) // face is evicted
		change()
		for deadline := time.Now().Add(functiontest.Patience); w.ask("face", slot) != wire.StatusFailed; {
			w.ask("fashion", slot) // face was loaded ahead before the change
			if time.Now().After(deadline) {
				t.Fatalf("%s: the changed model is loaded", name)
			}
		}
		w.await(w.members["face"], func(n control.Notice) bool { return strings.Contains(n.Reason, file) })
		write("first", time.Now())
		for w.ask("face", slot) != wire.StatusOK {
		}
	}
}

// TestLoadFails fails a load. The requests fail with the reason in the notice, other functions do not
// notice, and a later request tries again.
func TestLoadFails(t *testing.T) {
	for _, step := range []string{"build", "init", "load", "link", "configure"} {
		t.Run(step, func(t *testing.T) {
			w := startScarce(t, nil, "face", "fashion")
			w.evict()
			w.fakes["face"].Fail(func(s string) error {
				if s == step {
					return functiontest.ErrFake
				}
				return nil
			})
			for slot := range uint32(5) {
				if s := w.ask("face", slot); s != wire.StatusFailed {
					t.Errorf("request for a model that cannot load is answered %v, want failed", s)
				}
				if s := w.ask("fashion", slot); s != wire.StatusOK {
					t.Errorf("request of another function is answered %v", s)
				}
			}
			w.await(w.members["face"], func(n control.Notice) bool {
				return strings.HasSuffix(n.Reason, functiontest.ErrFake.Error()) && n.State == control.Active
			})
			w.fakes["face"].Fail(nil)
			slot := uint32(9)
			wait.For(t, "the model to be loaded again", func() bool {
				slot++
				return w.ask("face", slot%64) == wire.StatusOK
			})
			w.await(w.members["face"], func(n control.Notice) bool { return n.Reason == "" })
		})
	}
}

// TestEvictFails has a framework that cannot clean up. Its memory still counts as free.
func TestEvictFails(t *testing.T) {
	w := startScarce(t, func(_ string, f *functiontest.Fake) {
		f.Fail(func(step string) error {
			if step == "deinit" {
				return functiontest.ErrFake
			}
			return nil
		})
	}, "face", "fashion")
	for i := range uint32(10) {
		if s := w.ask([]string{"face", "fashion"}[i%2], i); s != wire.StatusOK {
			t.Errorf("request %d is answered %v", i, s)
		}
	}
}

// TestDrainWithoutModel drains members in each state of their model.
func TestDrainWithoutModel(t *testing.T) {
	exits := func(t *testing.T, w *scarceWorker, name string) {
		t.Helper()
		if n := w.awaitExit(w.members[name]); n.State != control.Stopped || n.Reason != "" {
			t.Errorf("member exited with %+v, want stopped", n)
		}
	}
	t.Run("evicted", func(t *testing.T) {
		w := startScarce(t, nil, "face", "fashion")
		w.evict()
		w.order(control.Order{Do: control.DoDrain, Member: w.members["face"]})
		exits(t, w, "face")
		w.ask("fashion", 1)
	})
	t.Run("loading", func(t *testing.T) {
		w := startScarce(t, nil, "face", "fashion")
		w.evict()
		entered, gate := make(chan struct{}), make(chan struct{})
		open := sync.OnceFunc(func() { close(gate) })
		t.Cleanup(open)
		w.fakes["face"].Fail(func(step string) error {
			if step == "link" {
				entered <- struct{}{}
				<-gate
			}
			return nil
		})
		h := w.functions["face"]
		h.Publish(1, h.Picture(1), nil)
		<-entered
		w.order(control.Order{Do: control.DoDrain, Member: w.members["face"]})
		open()
		exits(t, w, "face")
		// The request waits in the ring for the next process.
		if n := h.Channel.Owner(); n != 0 {
			t.Errorf("generation %d still owns the ring", n)
		}
		if s := w.ask("fashion", 2); s != wire.StatusOK {
			t.Errorf("request of another function is answered %v", s)
		}
	})
	t.Run("waiting to start", func(t *testing.T) {
		w := startScarce(t, nil, "face")
		entered, gate := make(chan struct{}), make(chan struct{})
		open := sync.OnceFunc(func() { close(gate) })
		t.Cleanup(open)
		block := func(step string) error {
			if step == "link" {
				entered <- struct{}{}
				<-gate
			}
			return nil
		}
		var members []string
		for _, name := range []string{"fashion", "detect"} {
			h, f := functionNamed(t, name)
			f.Fail(block)
			w.testWorker.fakes[name] = f
			member := w.join(h, 1)
			w.awaitState(member, control.Loaded)
			w.order(control.Order{Do: control.DoWake, Member: member})
			members = append(members, member)
			if name == "fashion" {
				<-entered
			}
		}
		w.order(control.Order{Do: control.DoDrain, Member: members[1]})
		if n := w.awaitExit(members[1]); n.State != control.Stopped {
			t.Errorf("member exited with %+v, want stopped", n)
		}
		open()
		w.awaitState(members[0], control.Ready)
	})
}

// TestWorkerMemoryTooSmall refuses a member that does not fit, with the terms.
func TestWorkerMemoryTooSmall(t *testing.T) {
	face, model := functionNamed(t, "face")
	w := startWorkerWith(t, map[string]*functiontest.Fake{"face": model}, control.Start{WorkerLimits: control.WorkerLimits{MemoryBytes: modelBytes - 1}})
	member := w.join(face, 1)
	w.awaitState(member, control.Loaded)
	w.order(control.Order{Do: control.DoWake, Member: member})
	if n := w.awaitExit(member); n.State != control.Failed || !strings.HasPrefix(n.Reason, "join worker cold: not enough memory: fixed 0 + scratch 0 + weights 1 = 1 MiB, capacity 0 MiB; raise its memory") {
		t.Errorf("member exited with %+v, want the terms", n)
	}
}

// evictable is a fake that keeps everything but its weights.
type evictable struct {
	*functiontest.Fake
	evictErr, loadErr error
}

func (e *evictable) EvictableBytes() int64 { return modelBytes }

func (e *evictable) Evict() error {
	if err := e.Step("evict"); err != nil {
		return err
	}
	return e.evictErr
}

func (e *evictable) Load() error {
	if err := e.Step("reload"); err != nil {
		return err
	}
	return e.loadErr
}

func TestEvictable(t *testing.T) {
	tests := map[string]struct {
		evictErr, loadErr error
		builds, evicts    int // of 10 requests, at least
		fails             bool
	}{
		"works":       {nil, nil, 1, 9, false},
		"evict fails": {functiontest.ErrFake, nil, 10, 10, false},
		"load fails":  {nil, functiontest.ErrFake, 1, 1, true},
	}
	for name, c := range tests {
		t.Run(name, func(t *testing.T) {
			w := &scarceWorker{functions: map[string]*harness{}, fakes: map[string]*functiontest.Fake{}, members: map[string]string{}}
			for _, name := range []string{"face", "fashion"} {
				w.functions[name], w.fakes[name] = functionNamed(t, name)
			}
			start := control.Start{WorkerLimits: control.WorkerLimits{MemoryBytes: 3 * modelBytes / 2}}
			w.testWorker = startWorkerBuilding(t, start, func(card *models.Card) (framework.Framework, error) {
				f := w.fakes[card.Name]
				if _, err := f.Build(card); err != nil || card.Name != "face" {
					return f, err
				}
				return &evictable{f, c.evictErr, c.loadErr}, nil
			})
			w.serve("face")
			w.serve("fashion")
			var failed int
			for i := range uint32(10) {
				if s := w.ask("fashion", i); s != wire.StatusOK {
					t.Errorf("request %d of the other function is answered %v", i, s)
				}
				if s := w.ask("face", i); s == wire.StatusFailed {
					failed++
				}
			}
			f := w.fakes["face"]
			if builds, evicts := f.Count("build"), f.Count("evict"); builds < c.builds || evicts < c.evicts || c.builds == 1 && !c.fails && builds != 1 {
				t.Errorf("%d frameworks, %d evictions; want %d and %d", builds, evicts, c.builds, c.evicts)
			}
			if (failed > 0) != c.fails {
				t.Errorf("%d requests failed", failed)
			}
		})
	}
}

// TestLoadAtFirstPacket begins to load while a request still arrives.
func TestLoadAtFirstPacket(t *testing.T) {
	w := startScarce(t, nil, "face", "fashion")
	w.evict()
	face := w.fakes["face"]
	loaded := face.Count("link") + 1
	wait.For(t, "the model to be loaded for the first packet", func() bool {
		// The loop watches soon after it has evicted the model.
		w.functions["face"].Channel.Announce()
		return face.Count("link") >= loaded
	})
	if s := w.ask("face", 1); s != wire.StatusOK {
		t.Errorf("answer %v", s)
	}
	if n := face.Count("link"); n != loaded {
		t.Errorf("model was loaded %d times, want %d", n, loaded)
	}
}

// withPrivate is a framework on a GPU whose weights are private, and larger, once private is set.
type withPrivate struct {
	*functiontest.Fake
	private *atomic.Int64
}

func (w withPrivate) LinkModel() (int64, error) {
	if err := w.Step("link"); err != nil {
		return 0, err
	}
	if bytes := w.private.Load(); bytes > 0 {
		return bytes, nil
	}
	return modelBytes, nil
}

func (w withPrivate) EvictableBytes() int64 {
	if w.private.Load() > 0 {
		return 0
	}
	return modelBytes
}

func (w withPrivate) Evict() error { return w.Step("evict") }

func (w withPrivate) Load() error {
	if w.private.Load() > 0 {
		return functiontest.ErrFake
	}
	return w.Step("reload")
}

// TestPrivateWeights replaces the weights of an evicted model by private copies. They count at once: other
// models are evicted, or the load fails if the worker has not enough memory.
func TestPrivateWeights(t *testing.T) {
	w := &scarceWorker{functions: map[string]*harness{}, fakes: map[string]*functiontest.Fake{}, members: map[string]string{}}
	names := []string{"face", "fashion", "detect"}
	for _, name := range names {
		card := functiontest.Card()
		card.Name = name
		w.functions[name] = newGPUHarness(t, card)
		w.fakes[name] = w.functions[name].Fake()
	}
	private := map[string]*atomic.Int64{"face": {}, "fashion": {}, "detect": {}}
	card := functiontest.Card()
	memory := int64(len(names)*card.TensorBytes()+functiontest.ScratchBytes*card.MaxBatch()) + 5*modelBytes/2
	w.testWorker = startWorkerBuilding(t, control.Start{WorkerLimits: control.WorkerLimits{MemoryBytes: memory}}, func(card *models.Card) (framework.Framework, error) {
		f := w.fakes[card.Name]
		_, err := f.Build(card)
		return withPrivate{f, private[card.Name]}, err
	})
	for _, name := range names {
		w.serve(name)
	}
	resident := func(name string) bool {
		f := w.fakes[name]
		return 1+f.Count("reload") > f.Count("evict")
	}
	ask := func(name string) {
		t.Helper()
		wait.For(t, name+" answers", func() bool { return w.ask(name, 1) == wire.StatusOK })
	}
	for resident("face") {
		ask("fashion")
		ask("detect")
	}

	private["face"].Store(2 * modelBytes)
	ask("face")
	wait.For(t, "the others are evicted", func() bool { return !resident("fashion") && !resident("detect") })

	ask("fashion") // face leaves
	private["face"].Store(memory)
	if s := w.ask("face", 2); s != wire.StatusFailed {
		t.Errorf("model that does not fit is answered %v, want failed", s)
	}
	w.await(w.members["face"], func(n control.Notice) bool { return strings.HasSuffix(n.Reason, "raise its memory") })
	private["face"].Store(0)
	ask("face")
}
