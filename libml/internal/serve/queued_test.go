package serve

import (
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testing/functiontest"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/wait"
	"github.com/penstock/penstock/libml/internal/loop"
	"github.com/penstock/penstock/libml/internal/worker"
	"github.com/penstock/penstock/libml/lane"
	"github.com/penstock/penstock/shm"
	"github.com/penstock/penstock/wire"
)

// laneOnGPU has members of one lane. Each has its own device for the same GPU.
type laneOnGPU struct {
	t       *testing.T
	worker  *worker.Worker
	members []*harness
	fakes   []*functiontest.Fake
	running []*child

	mu    sync.Mutex
	order []int // members in the order of their batches on the device
}

// newWorker returns a worker with one lane.
func newWorker(t *testing.T, policy string) *worker.Worker {
	t.Helper()
	w, err := worker.New(slog.New(slog.DiscardHandler), control.Start{Worker: "cold", WorkerLimits: control.WorkerLimits{Lanes: 1, LanePolicy: policy}}, nil)
	must.OK(t, err)
	return w
}

// startLaneOnGPU starts n members. edit may change the functions first.
func startLaneOnGPU(t *testing.T, n int, edit func(*harness)) *laneOnGPU {
	t.Helper()
	g := &laneOnGPU{t: t, worker: newWorker(t, lane.FIFO)}
	for i := range n {
		h := newGPUHarness(t, functiontest.Card())
		h.worker = g.worker
		if edit != nil {
			edit(h)
		}
		f := h.Fake()
		serving := false
		f.Work = func(int) {
			g.mu.Lock()
			defer g.mu.Unlock()
			if serving {
				g.order = append(g.order, i)
			}
		}
		g.members, g.fakes = append(g.members, h), append(g.fakes, f)
		g.running = append(g.running, h.serving(f, 1))
		g.mu.Lock()
		serving = true
		g.mu.Unlock()
	}
	return g
}

// ask sends a request to a member, and waits until its batch was begun.
func (g *laneOnGPU) ask(i int, slot uint32) {
	g.t.Helper()
	h := g.members[i]
	before, _ := g.fakes[i].History()
	h.Publish(slot, h.Picture(byte(slot)), nil)
	wait.For(g.t, "batch of the member", func() bool {
		sizes, _ := g.fakes[i].History()
		return len(sizes) > len(before)
	})
}

// waits sends a request to a member, and waits until the member waits for its turn.
func (g *laneOnGPU) waits(i int, slot uint32) {
	g.t.Helper()
	h := g.members[i]
	before := g.worker.Lanes.Waiting()
	h.Publish(slot, h.Picture(byte(slot)), nil)
	wait.For(g.t, "member that waits", func() bool { return g.worker.Lanes.Waiting() > before })
}

func (g *laneOnGPU) answered(i int, slots ...uint32) {
	g.t.Helper()
	h := g.members[i]
	got := h.Replies(len(slots))
	slices.Sort(got)
	if !slices.Equal(got, slots) {
		g.t.Fatalf("answers in slots %v, want %v", got, slots)
	}
	for _, slot := range slots {
		h.Answered(slot, h.Picture(byte(slot)))
	}
}

func (g *laneOnGPU) ran() []int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.order)
}

func (g *laneOnGPU) drain() {
	for _, c := range g.running {
		c.drained()
	}
}

// TestQueuedBatch queues a member's batch while that of another one runs. It runs after that one, and a
// third one after both.
func TestQueuedBatch(t *testing.T) {
	g := startLaneOnGPU(t, 3, nil)
	release := g.members[0].Hold()
	g.ask(0, 1)
	g.ask(1, 2) // is begun although the first cannot end
	g.waits(2, 3)
	if order := g.ran(); len(order) > 0 {
		t.Errorf("batches of members %v ran before the first ended", order)
	}
	for _, h := range g.members {
		h.Silent()
	}
	release()
	for i := range g.members {
		g.answered(i, uint32(i+1))
	}
	if order := g.ran(); !slices.Equal(order, []int{0, 1, 2}) {
		t.Errorf("batches ran in the order %v, want that of their turns", order)
	}
	r := g.members[1].Channel.Result(2)
	if first := g.members[0].Channel.Result(1); r.Gathered < r.Dispatched || r.Inferred < r.Gathered || r.Dispatched > first.Inferred {
		t.Errorf("times of the queued batch are %+v, of the first %+v: want its dispatch before the end of the first", r, first)
	}
	g.drain()
}

// TestQueuedBatches has members with requests at all times.
func TestQueuedBatches(t *testing.T) {
	g := startLaneOnGPU(t, 3, nil)
	const rounds = 50
	for round := range rounds {
		for _, h := range g.members {
			for k := range uint32(4) {
				slot := uint32(round%8)*4 + k
				h.Publish(slot, h.Picture(byte(slot)), nil)
			}
		}
		for i := range g.members {
			first := uint32(round%8) * 4
			g.answered(i, first, first+1, first+2, first+3)
		}
	}
	g.drain()
	if !joinLane(t, g.worker.Lanes).Take(0, lane.Job{}) {
		t.Error("members that ended left a turn")
	}
}

// TestQueuedBatchFails lets the framework fail for a queued batch, and for the one before it.
func TestQueuedBatchFails(t *testing.T) {
	for failing, name := range []string{"running", "queued"} {
		t.Run(name, func(t *testing.T) {
			g := startLaneOnGPU(t, 3, nil)
			g.fakes[failing].Fail(functiontest.Only("infer", functiontest.ErrFake))
			release := g.members[0].Hold()
			g.ask(0, 1)
			if failing == 0 {
				g.waits(1, 2) // none is queued behind a batch that failed
			} else {
				g.ask(1, 2)
			}
			g.waits(2, 3)
			release()
			for i, h := range g.members {
				if i != failing {
					g.answered(i, uint32(i+1))
				} else if got := h.Status(h.Replies(1)[0]); got != wire.StatusFailed {
					t.Errorf("member %d is answered %v, want failed", i, got)
				}
			}
			g.drain()
		})
	}
}

// TestQueuedBatchLate lets the requests of a member that waits become late.
func TestQueuedBatchLate(t *testing.T) {
	g := startLaneOnGPU(t, 3, nil)
	release := g.members[0].Hold()
	g.ask(0, 1)
	g.ask(1, 2)
	h := g.members[2]
	h.Publish(3, h.Picture(3), func(r *shm.Request, _ []shm.Fragment) { r.Deadline = r.Complete + int64(20*time.Millisecond) })
	if got := h.Status(h.Replies(1)[0]); got != wire.StatusLate {
		t.Errorf("member that waits for two batches is answered %v, want late", got)
	}
	release()
	g.answered(0, 1)
	g.answered(1, 2)
	g.drain()
}

// TestQueuedBatchHandover gives the queued member's ring to another process.
func TestQueuedBatchHandover(t *testing.T) {
	g := startLaneOnGPU(t, 2, nil)
	release := g.members[0].Hold()
	g.ask(0, 1)
	g.ask(1, 2)
	g.members[1].Channel.SetEpoch(2) // no process has that generation
	g.members[1].Silent()
	release()
	g.answered(0, 1)
	g.answered(1, 2)
	if err := g.running[1].end(); err != nil {
		t.Errorf("member that lost its ring ends with %v", err)
	}
	g.ask(0, 3) // the lane is free
	g.answered(0, 3)
	g.running[0].drained()
}

// TestQueuedBatchDeviceLost loses the device with one batch running and one queued.
func TestQueuedBatchDeviceLost(t *testing.T) {
	g := startLaneOnGPU(t, 2, nil)
	g.members[0].Hold()
	g.ask(0, 1)
	g.ask(1, 2)
	for _, h := range g.members {
		h.GPU.Lose()
	}
	for i, h := range g.members {
		if got := h.Status(h.Replies(1)[0]); got != wire.StatusFailed {
			t.Errorf("member %d is answered %v, want failed", i, got)
		}
		if err := g.running[i].end(); !loop.IsLost(err) {
			t.Errorf("member %d ends with %v, want a lost device", i, err)
		}
	}
}

// TestLaneNumber asks for a member's lane as a framework does, which receives the lane before it has one.
func TestLaneNumber(t *testing.T) {
	g := startLaneOnGPU(t, 2, nil)
	for i, f := range g.fakes {
		if lane := f.Node.Lane; lane == nil || lane() != 0 {
			t.Errorf("member %d has no number of its lane, or another one than 0", i)
		}
	}
	g.drain()
}
