package serve

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"github.com/penstock/penstock/batching"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/control/budget"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/wait"
	"github.com/penstock/penstock/libml/gate"
	"github.com/penstock/penstock/libml/internal/worker"
	"github.com/penstock/penstock/shm"
)

// newBusyHarness returns a harness on a GPU whose processes take turns, and show guests when they use it.
func newBusyHarness(t *testing.T) *harness {
	t.Helper()
	h := newTurnHarness(t)
	h.busyPath = filepath.Join(t.TempDir(), "busy")
	f, err := os.OpenFile(h.busyPath, os.O_CREATE|os.O_RDWR, 0o600)
	must.OK(t, err)
	if h.busy, err = shm.OpenBusyFile(f); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.busy.Close() })
	return h
}

// busyWord is what guests read.
func (h *harness) busyWord() uint64 {
	h.TB.Helper()
	file, err := os.ReadFile(h.busyPath)
	must.OK(h.TB, err)
	return binary.NativeEndian.Uint64(file)
}

// busyFiles returns the files of the busy word for a process, which closes them.
func (h *harness) busyFiles() []*os.File {
	h.TB.Helper()
	word, locks, err := h.busy.Files()
	must.OK(h.TB, err)
	h.TB.Cleanup(func() { locks.Close() })
	return []*os.File{h.Dup(word), locks}
}

func TestBusy(t *testing.T) {
	h := newBusyHarness(t)
	f := h.Fake()
	f.Entered, f.Gate = make(chan struct{}, 1), make(chan struct{})
	c := h.takingTurns(f)
	for range 2 {
		if word := h.busyWord(); word != 0 {
			t.Fatalf("the busy word of an idle process is %#x", word)
		}
		h.Publish(0, h.Picture(1), nil)
		<-f.Entered
		if word := h.busyWord(); word != 1 {
			t.Errorf("the busy word during a batch is %#x, want 1", word)
		}
		f.Gate <- struct{}{}
		h.Answered(h.Replies(1)[0], h.Picture(1))
	}
	c.drained()
}

// TestBusyLost loses the device with a batch in flight.
func TestBusyLost(t *testing.T) {
	h := newBusyHarness(t)
	f := h.Fake()
	f.Entered, f.Gate = make(chan struct{}, 1), make(chan struct{})
	c := h.takingTurns(f)
	h.Publish(0, h.Picture(1), nil)
	<-f.Entered
	h.GPU.Lose()
	close(f.Gate)
	h.Replies(1)
	wait.For(t, "guests to go on", func() bool { return h.busyWord() == 0 })
	c.await(control.Failed)
}

// TestBusyWorker has two members of a worker, of which the first ends.
func TestBusyWorker(t *testing.T) {
	h := newBusyHarness(t)
	w := &worker.Worker{}
	first, second := &process{worker: w}, &process{worker: w}
	files := h.busyFiles()
	first.busy, second.busy = first.takeBusyBit(files), second.takeBusyBit(h.busyFiles())
	if first.busy == nil || second.busy != first.busy {
		t.Fatalf("the members have bits %p and %p, want one", first.busy, second.busy)
	}
	second.busy.Begin(shm.Now())
	first.closeBusy()
	for _, f := range files {
		f.Close()
	}
	must.OK(t, h.busy.Sweep())
	if word := h.busyWord(); word != 1 {
		t.Errorf("the busy word is %#x after a member's end, want 1", word)
	}
}

// TestBusyFull runs a process for which there is no bit.
func TestBusyFull(t *testing.T) {
	h := newBusyHarness(t)
	for range shm.BusyBits {
		files := h.busyFiles()
		if _, err := shm.OpenBusyBit(files[0], files[1]); err != nil {
			t.Fatal(err)
		}
	}
	h.wake.Level = budget.Demoted
	f := h.Fake()
	c := h.takingTurns(f)
	h.Publish(0, h.Picture(1), nil)
	h.Answered(h.Replies(1)[0], h.Picture(1))
	c.drained()
}

func TestBusyDemoted(t *testing.T) {
	h := newBusyHarness(t)
	p := h.linked(h.Fake())
	g := gate.New(p.newAccount(), nil, nil, nil, p.takeBusyBit(h.busyFiles()))
	for _, demoted := range []bool{true, false} {
		now := shm.Now()
		begun := g.Begin(now, 0, batching.Choice{Batch: 1, Padded: 1, Demoted: demoted})
		if word := h.busyWord(); (word != 0) == demoted {
			t.Errorf("demoted %v: the busy word is %#x", demoted, word)
		}
		if g.End(now, &begun, nil); h.busyWord() != 0 {
			t.Errorf("the busy word is %#x after the batch", h.busyWord())
		}
	}
}
