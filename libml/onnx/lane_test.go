//go:build cgo

package onnx

import (
	"errors"
	"testing"
	"time"

	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/internal/testing/cudafake"
	"github.com/penstock/penstock/libml/device"
)

func TestLaneScratch(t *testing.T) {
	r := newRig(t, &played{scratch: mebi}).linked()
	var scratch [device.Slots]cuda.Pointer
	for slot := range scratch {
		cudafake.Reset()
		r.configure(slot, 4, r.tensors(4))
		r.infer(slot, 4)
		scratch[slot] = launchedOver(t)
	}
	if scratch[0] != scratch[2] || scratch[1] != scratch[3] || scratch[0] == scratch[1] {
		t.Errorf("scratch of the slots: %#x", scratch)
	}
}

// launchedOver returns the scratch memory of the only launch.
func launchedOver(t *testing.T) (at cuda.Pointer) {
	t.Helper()
	l := cudafake.Launches()
	if len(l) != 1 {
		t.Fatalf("launches: %v", l)
	}
	for i := range 8 {
		at |= cuda.Pointer(l[0].Arguments[0][i]) << (8 * i)
	}
	return at
}

// newMember returns a model of a worker's lane.
func newMember(t *testing.T, c *cuda.Context, lane int, b *played) *rig {
	t.Helper()
	r := newRigIn(t, c, b)
	r.gpu.node.Lane = func() int { return lane }
	return r.loaded().whole()
}

// TestSharedScratch runs the models of two lanes. The lane of two models has the memory of the larger
// one, until that leaves.
func TestSharedScratch(t *testing.T) {
	c := bound(t)
	small := newMember(t, c, 0, &played{scratch: mebi})
	large := newMember(t, c, 0, &played{scratch: 8 * mebi})
	other := newMember(t, c, 1, &played{})
	rigs := []*rig{small, large, other}
	var scratch []cuda.Pointer
	var batches []batchTensors
	for _, r := range rigs {
		b := r.tensors(4)
		r.configure(0, 4, b)
		cudafake.Reset()
		r.infer(0, 4)
		scratch, batches = append(scratch, launchedOver(t)), append(batches, b)
	}
	if scratch[0] != scratch[1] || scratch[0] == scratch[2] {
		t.Errorf("scratch memory of three models %#x, want the first two equal", scratch)
	}
	check := func(n int) {
		t.Helper()
		for i, r := range rigs[:n] {
			r.fillWith(batches[i], byte(10+i))
			r.infer(0, 4)
		}
		for i, r := range rigs[:n] {
			if got := r.output(batches[i]); !all(got, byte(10+i)) {
				t.Errorf("model %d answered %v", i, got)
			}
		}
	}
	for range 3 {
		check(3)
	}
	pool := small.gpu.joined.pool
	both := pool.readState().mapped
	if both < 4*8*mebi || both > 4*8*mebi+4*mebi {
		t.Errorf("the lane has %d MiB, want about the 32 of its larger model", both/mebi)
	}
	rigs = []*rig{small, other}
	batches = []batchTensors{batches[0], batches[2]}
	large.end()
	if alone := pool.readState().mapped; alone < 4*mebi || alone >= both {
		t.Errorf("the lane has %d MiB, want about the 4 of the model that is left", alone/mebi)
	}
	check(2)
	small.end()
	other.end()
	if len(lanePools) != 0 {
		t.Errorf("%d pools are left", len(lanePools))
	}
}

// TestJoinNextToSession lets a model join a lane while another makes a session. Models that link at the same
// time must not wait for each other.
func TestJoinNextToSession(t *testing.T) {
	c := bound(t)
	capturing.RLock()
	defer capturing.RUnlock()
	joined := make(chan error)
	go func() {
		g := &gpu{context: c}
		l, err := joinLane(g, 0)
		joined <- err
		joined <- l.leave(g)
	}()
	select {
	case err := <-joined:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Error("waits for a session that is being made")
	}
	t.Cleanup(func() { // after capturing is free
		if err := <-joined; err != nil {
			t.Error(err)
		}
	})
}

// TestSharedScratchKept links a model that keeps memory of a capture. Another model's graphs would
// write there.
func TestSharedScratchKept(t *testing.T) {
	r := newMember(t, bound(t), 0, &played{keeps: true})
	b := r.tensors(4)
	if _, err := r.f.ConfigureBatch(0, 4, b.inputs, b.outputs); !errors.Is(err, errScratchKept) {
		t.Errorf("error %v, want %v", err, errScratchKept)
	}
}

// TestSharedScratchByNode runs a model node by node. It takes no memory of the lane, because it allocates
// while other models run.
func TestSharedScratchByNode(t *testing.T) {
	r := newMember(t, bound(t), 0, &played{unqueued: firstQueues()})
	b := r.tensors(4)
	r.fillWith(b, 7)
	r.configure(0, 4, b)
	r.infer(0, 4)
	if got := r.output(b); !all(got, 7) {
		t.Errorf("answered %v", got)
	}
	if s := r.gpu.joined.pool.readState(); s.mapped != 0 {
		t.Errorf("%d bytes of the lane's memory, want none", s.mapped)
	}
}

// A graph that writes outside its lane waits on the device for the one before it.
func TestExclusiveGraph(t *testing.T) {
	r := newRig(t, &played{outside: true}).linked()
	for slot := range 2 {
		r.configure(slot, 1, r.tensors(1))
	}
	if !r.gpu.order.exclusive {
		t.Fatal("it may run beside another")
	}
	waits := func() bool { return cudafake.Now().Events > 0 }
	if !waits() {
		t.Fatal("no event to wait for")
	}
	for range 3 {
		r.infer(0, 1)
		r.infer(1, 1)
	}
	if n := testing.AllocsPerRun(20, func() { r.f.InferBatch(0, 1) }); n != 0 {
		t.Errorf("%g allocations", n)
	}
	r.streams[0].Synchronize()
}
