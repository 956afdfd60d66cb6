//go:build cgo

package onnx

import (
	"errors"
	"testing"
	"time"

	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/internal/testing/cudafake"
)

// What is given back while something still refers to it, the fake driver answers with the
// loss of the device; a session that is closed on a stream that is gone, these notice.

// strict is a played backend whose sessions synchronize their stream when they are closed,
// as ONNX Runtime's do.
type strict struct {
	*played
	fails func(settings) bool // to be made, with work queued
	wrong []error
}

func (b *strict) session(model []byte, s settings, weights *pool) (session, error) {
	if b.fails != nil && b.fails(s) {
		const bytes = 4 * mebi
		at := weights.allocate(bytes)
		err := s.stream.Set(at, 1, bytes)
		release(at)
		return nil, errors.Join(err, &ortError{code: 6, text: "bad allocation"})
	}
	made, err := b.newSession(s, weights)
	if err != nil {
		return nil, err
	}
	return &strictSession{made, b}, nil
}

type strictSession struct {
	*playedSession
	b *strict
}

func (s *strictSession) close() {
	if err := s.s.stream.Synchronize(); err != nil {
		s.b.wrong = append(s.b.wrong, err)
	}
	s.playedSession.close()
}

// A slot whose smallest batch is a graph and a larger one none moves, and the move fails at
// the smallest: the larger one's session stays on a stream that the next move destroys.
func TestASlotThatMovesLeavesNoSessionOnAStreamThatGoes(t *testing.T) {
	p := &played{unqueued: firstQueues()}
	r := newRig(t, p)
	b := &strict{played: p}
	r.gpu.backend, r.gpu.env.Threads = b, 1
	r.loaded()
	if _, err := r.f.LinkModel(); err != nil {
		t.Fatal(err)
	}
	one, four := r.tensors(1), r.tensors(4)
	before, err := r.context.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	r.streams[2] = before
	r.configure(2, 1, one)
	r.configure(2, 4, four)
	r.infer(2, 4)
	r.streams[2] = r.newStream()
	cudafake.Apply(t, cudafake.Refuse("cuGraphInstantiateWithFlags", 1, cuda.InvalidClusterSize))
	if _, err := r.f.ConfigureBatch(2, 1, one.input, one.outputs); !errors.Is(err, cuda.ErrTooFewSMs) {
		t.Fatalf("got %v", err)
	}
	cudafake.Reset()
	if err := before.Destroy(); err != nil {
		t.Fatal(err)
	}
	r.streams[2] = r.newStream()
	r.configure(2, 1, one)
	r.configure(2, 4, four)
	r.infer(2, 4)
	if len(b.wrong) > 0 {
		t.Errorf("a session was closed on a stream that is gone: %v", b.wrong)
	}
}

func TestASessionThatFailsWithWorkQueuedLosesNoDevice(t *testing.T) {
	r := newRig(t, &played{})
	r.gpu.backend = &strict{played: r.played, fails: func(settings) bool { return true }}
	r.loaded()
	cudafake.Apply(t, cudafake.Late(20*time.Millisecond))
	if _, err := r.f.LinkModel(); err == nil || errors.Is(err, cuda.ErrLost) {
		t.Errorf("got %v", err)
	}
	time.Sleep(100 * time.Millisecond) // what is late has run
	if cudafake.Now().Lost != 0 {
		t.Error("the device is lost")
	}
}

// A batch that finds no memory costs itself only, also one that runs node by node.
func TestABatchThatFoundNoMemoryCostsNoOther(t *testing.T) {
	p := &played{scratch: 8 * mebi}
	r := newRig(t, p)
	host, err := r.context.AllocateHost(8)
	if err != nil {
		t.Fatal(err)
	}
	defer r.context.FreeHost(host)
	defer r.end()
	p.toHost = host // no graph does that
	r.linked()
	b := r.tensors(4)
	r.configure(0, 4, b)
	cudafake.Apply(t, cudafake.Memory(cudafake.Now().Taken()))
	if err := r.f.InferBatch(0, 4); !errors.Is(err, cuda.ErrOutOfMemory) {
		t.Fatalf("got %v", err)
	}
	cudafake.Reset()
	r.fillWith(b, 3)
	r.infer(0, 4)
	if got := r.output(b); !all(got, 3) {
		t.Errorf("answered %v", got)
	}
}
