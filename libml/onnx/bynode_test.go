//go:build cgo

package onnx

import (
	"errors"
	"strings"
	"testing"

	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/internal/testing/cudafake"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/libml/framework"
	"github.com/penstock/penstock/models"
)

// firstQueues returns a played.unqueued with which only the first session can be captured: the
// smallest size's.
func firstQueues() func(settings) error {
	first := cuda.Stream{}
	return func(s settings) error {
		if first == (cuda.Stream{}) {
			first = s.stream
		}
		if s.stream != first {
			return s.stream.Synchronize() // which is refused in a capture
		}
		return nil
	}
}

// The smallest size can be captured, and the larger ones cannot.
func TestLargerSizeByNode(t *testing.T) {
	p := &played{unqueued: firstQueues()}
	r := newRig(t, p)
	r.gpu.env.Threads = 1
	r.loaded()
	if _, err := r.f.LinkModel(); err != nil {
		t.Fatal(err)
	}
	for _, n := range r.card.Batches {
		b := r.tensors(n)
		r.fillWith(b, byte(n))
		for slot := range 2 {
			r.configure(slot, n, b)
			r.infer(slot, n)
		}
		if got := r.output(b); !all(got, byte(n)) {
			t.Errorf("batch of %d answered %v", n, got)
		}
	}
	if g := r.gpu; len(g.sizes) != 1 || len(g.byNode.sessions) != 4 {
		t.Errorf("%d sizes as graphs and %d sessions node by node, want 1 and 4", len(g.sizes), len(g.byNode.sessions))
	}
	if n := strings.Count(r.log.String(), "node by node"); n != 2 {
		t.Errorf("%d lines of it: %s", n, r.log.String())
	}
}

func TestModelByNode(t *testing.T) {
	p := &played{}
	r := newRig(t, p)
	host, err := r.context.AllocateHost(8)
	must.OK(t, err)
	p.toHost = host
	r.linked()
	if !strings.Contains(r.log.String(), "node by node") || strings.Count(r.log.String(), "warn") != 1 {
		t.Errorf("the log: %s", r.log.String())
	}
	b := r.tensors(2)
	r.fillWith(b, 6)
	for _, slot := range []int{0, 1} {
		r.configure(slot, 2, b)
		ran := p.ran
		r.infer(slot, 2)
		if got := r.output(b); !all(got, 6) || p.ran != ran+1 {
			t.Errorf("slot %d answered %v after %d runs", slot, got, p.ran-ran)
		}
	}
	if n := testing.AllocsPerRun(20, func() { r.f.InferBatch(0, 2) }); n > 2 { // the played model's own
		t.Errorf("%g allocations", n)
	}
	r.streams[0].Synchronize()

	// On another stream it needs another session, and gives those back that it had on
	// the one before, of every size: that stream goes with the next move.
	sessions := p.sessions
	r.streams[0] = r.newStream()
	r.configure(0, 2, b)
	if p.sessions != sessions-1 || p.made[len(p.made)-1].stream != r.streams[0] {
		t.Errorf("%d sessions and then %d, want the sizes 1 and 2 gone and 2 made", sessions, p.sessions)
	}
	r.infer(0, 2)
	r.end()
	r.context.FreeHost(host)
}

// A model with outputs whose rows depend on the picture is not captured.
func TestRowsByNode(t *testing.T) {
	p := &played{}
	r := newRig(t, p)
	r.card.Outputs[0].Rows = &models.Rows{Max: int(r.card.Outputs[0].Shape[0])}
	r.linked()
	if !strings.Contains(r.log.String(), "number of rows of its outputs depends on the picture") || len(r.gpu.sizes) != 0 {
		t.Errorf("%d graphs; the log: %s", len(r.gpu.sizes), r.log.String())
	}
	b := r.tensors(2)
	r.fillWith(b, 6)
	r.configure(0, 2, b)
	r.infer(0, 2)
	if got := r.output(b); !all(got, 6) {
		t.Errorf("answered %v", got)
	}
}

// An error about some images of a batch stays one: the others have answers.
func TestImagesByNode(t *testing.T) {
	over := &framework.ImagesError{Images: []int{1}, Err: errors.New("4 rows")}
	failing := false
	p := &played{unqueued: func(settings) error {
		if failing {
			return over
		}
		return nil
	}}
	r := newRig(t, p)
	r.card.Outputs[0].Rows = &models.Rows{Max: int(r.card.Outputs[0].Shape[0])}
	r.linked()
	b := r.tensors(2)
	r.configure(0, 2, b)
	failing = true
	if err := r.f.InferBatch(0, 2); !errors.Is(err, over) || err.Error() != "4 rows" {
		t.Errorf("got %v", err)
	}
}

// A slot has a graph for its smallest batch and a session for a larger one, and a move fails at
// the smallest. The session must not stay on a stream that the next move destroys.
func TestMoveClosesSessions(t *testing.T) {
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
	must.OK(t, err)
	r.streams[2] = before
	r.configure(2, 1, one)
	r.configure(2, 4, four)
	r.infer(2, 4)
	r.streams[2] = r.newStream()
	cudafake.Apply(t, cudafake.Refuse("cuGraphInstantiateWithFlags", 1, cuda.InvalidClusterSize))
	if _, err := r.f.ConfigureBatch(2, 1, one.inputs, one.outputs); !errors.Is(err, cuda.ErrTooFewSMs) {
		t.Fatalf("got %v", err)
	}
	cudafake.Reset()
	must.OK(t, before.Destroy())
	r.streams[2] = r.newStream()
	r.configure(2, 1, one)
	r.configure(2, 4, four)
	r.infer(2, 4)
	if len(b.wrong) > 0 {
		t.Errorf("a session was closed on a stream that is gone: %v", b.wrong)
	}
}

// A batch that finds no memory does not affect later ones.
func TestByNodeWithoutMemory(t *testing.T) {
	p := &played{scratch: 8 * mebi}
	r := newRig(t, p)
	host, err := r.context.AllocateHost(8)
	must.OK(t, err)
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
