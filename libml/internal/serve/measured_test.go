package serve

import (
	"cmp"
	"os"
	"path/filepath"
	"testing"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/control/budget"
	"github.com/penstock/penstock/internal/testing/functiontest"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/wait"
	"github.com/penstock/penstock/wire"
)

// measurements returns what a member that serves has measured.
func (w *testWorker) measurements(member string) *control.Measurements {
	w.t.Helper()
	for {
		report, err := w.conns[member].ReadReport()
		must.OK(w.t, err)
		if report.Measurements != nil {
			return report.Measurements
		}
	}
}

// restart serves with a member until it has reported its measurements, and ends its worker. The next
// member of the function gets the measurements.
func restart(t *testing.T, h *harness, limits control.WorkerLimits, wake control.Order) (first control.Notice) {
	t.Helper()
	w := startWorkerWith(t, map[string]*functiontest.Fake{h.Card.Name: h.Fake()}, control.Start{WorkerLimits: limits})
	member := w.join(h, 1)
	wake.Member = member
	w.awaitState(member, control.Loaded)
	w.order(wake)
	first = w.await(member, func(n control.Notice) bool { return n.State == control.Ready })
	h.Channel.SetEpoch(1)
	w.awaitState(member, control.Active)
	measured := w.measurements(member)
	w.order(control.Order{Do: control.DoDrain})
	w.awaitExit(member)
	must.OK(t, w.end())
	h.grant = func(a *control.Attached) { a.Measurements = measured }
	return first
}

func TestMeasurements(t *testing.T) {
	limited := control.WorkerLimits{MemoryBytes: 1 << 20}
	tests := map[string]struct {
		gpu    bool
		limits control.WorkerLimits
		edit   func(*control.Measurements) // before the second start
		links  int                         // on a CPU, until the second member is ready
		infers bool                        // it warms up
		auto   int                         // the sizes that the first process chose; 0: the card names them
	}{
		"CPU":                   {links: 1},
		"CPU, limited memory":   {limits: limited},
		"GPU":                   {gpu: true, links: 1},
		"GPU, limited memory":   {gpu: true, limits: limited},
		"another file":          {edit: func(m *control.Measurements) { m.ModelFile += "x" }, links: 1, infers: true},
		"another file, limited": {limits: limited, edit: func(m *control.Measurements) { m.ModelFile = "" }, links: 1, infers: true},
		"a size is missing":     {edit: func(m *control.Measurements) { m.Batches = m.Batches[1:] }, links: 1, infers: true},
		"sizes left out":        {auto: 2, edit: func(m *control.Measurements) { m.Batches = m.Batches[:2] }, links: 1},
		"a time is missing":     {gpu: true, edit: func(m *control.Measurements) { m.Batches[0].AloneNanos = 0 }, links: 1, infers: true},
		"a size is negative":    {edit: func(m *control.Measurements) { m.WeightsBytes = -1 }, links: 1, infers: true},
	}
	for name, c := range tests {
		t.Run(name, func(t *testing.T) {
			card := functiontest.Card()
			card.Model, card.AutoBatches = filepath.Join(t.TempDir(), "model"), c.auto > 0
			must.OK(t, os.WriteFile(card.Model, []byte("weights"), 0o600))
			h := newHarness(t, card)
			wake := control.Order{Do: control.DoWake}
			if c.gpu {
				h = newGPUHarness(t, card)
				wake.SharePercent, wake.GuaranteePercent, wake.Level = 50, 50, budget.MinLevel
			}
			first := restart(t, h, c.limits, wake)
			if c.gpu {
				h.OpenGPU()
			}
			if c.edit != nil {
				attached, _ := h.attached()
				c.edit(attached.Measurements)
			}

			f := h.Fake()
			w := startWorkerWith(t, map[string]*functiontest.Fake{card.Name: f}, control.Start{WorkerLimits: c.limits})
			member := w.join(h, 2)
			wake.Member = member
			w.awaitState(member, control.Loaded)
			w.order(wake)
			second := w.await(member, func(n control.Notice) bool { return n.State == control.Ready })
			if n := f.Count("link"); !c.gpu && n != c.links { // on a GPU the loop may have begun to load
				t.Errorf("model is linked %d times until the member is ready, want %d", n, c.links)
			}
			if n := f.Count("infer"); (n > 0) != c.infers {
				t.Errorf("%d batches have run, warm-up wanted: %v", n, c.infers)
			}
			if second.PersistentBytes != first.PersistentBytes || second.EphemeralBytes != first.EphemeralBytes {
				t.Errorf("memory %d and %d, the first process had %d and %d", second.PersistentBytes, second.EphemeralBytes, first.PersistentBytes, first.EphemeralBytes)
			}
			h.Channel.SetEpoch(2)
			w.awaitState(member, control.Active)
			h.Publish(3, h.Picture(3), nil)
			h.Answered(h.Replies(1)[0], h.Picture(3))
			if got := w.measurements(member); len(got.Batches) != cmp.Or(c.auto, len(card.Batches)) || got.PersistentBytes != first.PersistentBytes {
				t.Errorf("measurements %+v", got)
			}
		})
	}
}

// TestRestartLoads restarts a limited worker. On a GPU it loads without a request, on a CPU with the
// first one. A load that fails answers requests with the reason, and is tried again.
func TestRestartLoads(t *testing.T) {
	limits := control.WorkerLimits{MemoryBytes: 1 << 20}
	begin := func(t *testing.T, h *harness, f *functiontest.Fake) (w *testWorker, member string) {
		w = startWorkerWith(t, map[string]*functiontest.Fake{h.Card.Name: f}, control.Start{WorkerLimits: limits})
		member = w.join(h, 2)
		w.awaitState(member, control.Loaded)
		w.order(control.Order{Do: control.DoWake, Member: member, SharePercent: 50})
		w.awaitState(member, control.Ready)
		h.Channel.SetEpoch(2)
		w.awaitState(member, control.Active)
		return w, member
	}
	t.Run("GPU", func(t *testing.T) {
		h := newGPUHarness(t, functiontest.Card())
		restart(t, h, limits, control.Order{Do: control.DoWake, SharePercent: 50})
		h.OpenGPU()
		f := h.Fake()
		begin(t, h, f)
		wait.For(t, "the model is loaded", func() bool { return f.Count("configure") == len(h.Card.Batches) })
	})
	t.Run("load fails", func(t *testing.T) {
		h, f := functionNamed(t, "face")
		restart(t, h, limits, control.Order{Do: control.DoWake})
		f.Fail(func(step string) error {
			if step == "link" {
				return functiontest.ErrFake
			}
			return nil
		})
		w, member := begin(t, h, f)
		h.Publish(1, h.Picture(1), nil)
		h.Replies(1)
		if n := w.await(member, func(n control.Notice) bool { return n.Reason != "" }); n.State != control.Active {
			t.Errorf("notice %+v, want a member that goes on", n)
		}
		f.Fail(nil)
		wait.For(t, "a right answer", func() bool {
			h.Publish(2, h.Picture(2), nil)
			return h.Status(h.Replies(1)[0]) == wire.StatusOK
		})
	})
}
