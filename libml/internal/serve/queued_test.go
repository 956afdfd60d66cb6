package serve

import (
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/wait"
	"github.com/penstock/penstock/libml/gate"
	"github.com/penstock/penstock/libml/lane"
	"github.com/penstock/penstock/shm"
	"github.com/penstock/penstock/wire"
)

// laneOnGPU has members of one lane. Each has its own device for the same GPU.
type laneOnGPU struct {
	t       *testing.T
	worker  *worker
	members []*harness
	fakes   []*fake
	running []*child

	mu    sync.Mutex
	order []int // members in the order of their batches on the device
}

// startLaneOnGPU starts n members. edit may change the functions first.
func startLaneOnGPU(t *testing.T, n int, edit func(*harness)) *laneOnGPU {
	t.Helper()
	lanes, err := gate.NewLanes(1, lane.FIFO, gate.Unlimited)
	must.OK(t, err)
	g := &laneOnGPU{t: t, worker: &worker{name: "cold", lanes: lanes}}
	for i := range n {
		h := newGPUHarness(t, testCard())
		h.worker = g.worker
		if edit != nil {
			edit(h)
		}
		f := h.fake()
		serving := false
		f.work = func(int) {
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
	before, _ := g.fakes[i].history()
	h.publish(slot, h.picture(byte(slot)), nil)
	wait.For(g.t, "batch of the member", func() bool {
		sizes, _ := g.fakes[i].history()
		return len(sizes) > len(before)
	})
}

// waits sends a request to a member, and waits until the member waits for its turn.
func (g *laneOnGPU) waits(i int, slot uint32) {
	g.t.Helper()
	h := g.members[i]
	before := g.worker.lanes.Waiting()
	h.publish(slot, h.picture(byte(slot)), nil)
	wait.For(g.t, "member that waits", func() bool { return g.worker.lanes.Waiting() > before })
}

func (g *laneOnGPU) answered(i int, slots ...uint32) {
	g.t.Helper()
	h := g.members[i]
	got := h.replies(len(slots))
	slices.Sort(got)
	if !slices.Equal(got, slots) {
		g.t.Fatalf("answers in slots %v, want %v", got, slots)
	}
	for _, slot := range slots {
		h.answered(slot, h.picture(byte(slot)))
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
	release := g.members[0].hold()
	g.ask(0, 1)
	g.ask(1, 2) // is begun although the first cannot end
	g.waits(2, 3)
	if order := g.ran(); len(order) > 0 {
		t.Errorf("batches of members %v ran before the first ended", order)
	}
	for _, h := range g.members {
		h.silent()
	}
	release()
	for i := range g.members {
		g.answered(i, uint32(i+1))
	}
	if order := g.ran(); !slices.Equal(order, []int{0, 1, 2}) {
		t.Errorf("batches ran in the order %v, want that of their turns", order)
	}
	r := g.members[1].channel.Result(2)
	if first := g.members[0].channel.Result(1); r.Gathered < r.Dispatched || r.Inferred < r.Gathered || r.Dispatched > first.Inferred {
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
				h.publish(slot, h.picture(byte(slot)), nil)
			}
		}
		for i := range g.members {
			first := uint32(round%8) * 4
			g.answered(i, first, first+1, first+2, first+3)
		}
	}
	g.drain()
	if !joinLane(t, g.worker.lanes).Take(0, lane.Job{}) {
		t.Error("members that ended left a turn")
	}
}

// TestQueuedBatchFails lets the framework fail for a queued batch, and for the one before it.
func TestQueuedBatchFails(t *testing.T) {
	for failing, name := range []string{"running", "queued"} {
		t.Run(name, func(t *testing.T) {
			g := startLaneOnGPU(t, 3, nil)
			g.fakes[failing].fail(only("infer", errFake))
			release := g.members[0].hold()
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
				} else if got := h.status(h.replies(1)[0]); got != wire.StatusFailed {
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
	release := g.members[0].hold()
	g.ask(0, 1)
	g.ask(1, 2)
	h := g.members[2]
	h.publish(3, h.picture(3), func(r *shm.Request, _ []shm.Fragment) { r.Deadline = r.Complete + int64(20*time.Millisecond) })
	if got := h.status(h.replies(1)[0]); got != wire.StatusLate {
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
	release := g.members[0].hold()
	g.ask(0, 1)
	g.ask(1, 2)
	g.members[1].channel.SetEpoch(2) // no process has that generation
	g.members[1].silent()
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
	g.members[0].hold()
	g.ask(0, 1)
	g.ask(1, 2)
	for _, h := range g.members {
		h.gpu.Lose()
	}
	for i, h := range g.members {
		if got := h.status(h.replies(1)[0]); got != wire.StatusFailed {
			t.Errorf("member %d is answered %v, want failed", i, got)
		}
		if err := g.running[i].end(); !isLost(err) {
			t.Errorf("member %d ends with %v, want a lost device", i, err)
		}
	}
}

// loopIn returns a loop with an account, in that lane. The test turns it.
func loopIn(t *testing.T, s *gate.Lanes, h *harness, f *fake) *loop {
	t.Helper()
	l := accounted(h, f)
	l.refillBalance()
	var err error
	if l.gate.Place, err = s.Join(lane.Model{}, l.ring.Interrupt); err != nil {
		t.Fatal(err)
	}
	l.gate.Place.SetDevice(l.memory.device)
	return l
}

// mayTake publishes a request, and reports whether its batch has a turn.
func (l *loop) mayTake(h *harness) bool {
	h.t.Helper()
	h.publish(1, h.picture(1), nil)
	l.take()
	l.pick()
	return l.gate.Place.Take(shm.Now(), lane.Job{Deadline: math.MaxInt64, Batch: time.Millisecond, Requests: 1, Demoted: l.choice.Demoted})
}

// TestQueuedBatchTime counts the time of a queued batch from the end of the one before it. Its function is
// charged for the batch alone, and its known times do not become shorter.
func TestQueuedBatchTime(t *testing.T) {
	s, err := gate.NewLanes(1, lane.FIFO, gate.Unlimited)
	must.OK(t, err)
	first, second := newGPUHarness(t, testCard()), newGPUHarness(t, testCard())
	a, b := loopIn(t, s, first, first.fake()), loopIn(t, s, second, second.fake())
	const known = 20 * time.Millisecond
	b.setAccount(gate.Config{Objective: time.Hour, Times: times(8, known, 0)})
	b.refillBalance()
	cost := b.gate.Account.Cost(1)

	release := first.hold()
	if !a.mayTake(first) || a.begin() != nil {
		t.Fatal("the first batch does not begin")
	}
	a.gate.Place.Launch(0, shm.Now(), 0, 0) // about to end
	if !b.mayTake(second) || b.begin() != nil || !b.flights.oldest().followed {
		t.Fatal("the second batch is not queued")
	}
	time.Sleep(2 * known)
	released := shm.Now()
	release()
	for _, l := range []*loop{a, b} {
		must.OK(t, l.finish())
	}
	second.answered(second.replies(1)[0], second.picture(1))
	if b.flights.places[0].began < released {
		t.Errorf("queued batch counts from %v before the end of the first", time.Duration(released-b.flights.places[0].began))
	}
	if got := b.gate.Account.Time(1); got != known {
		t.Errorf("after a queued batch a batch takes %v, want %v as before", got, known)
	}
	if got := b.gate.Account.Figures().Charged; got != cost {
		t.Errorf("charged %v, want %v", got, cost)
	}
}

// TestQueuedBatchDemoted queues no demoted batch, and none behind one.
func TestQueuedBatchDemoted(t *testing.T) {
	for _, c := range []struct {
		name        string
		empty, want [2]bool
	}{
		{"neither", [2]bool{}, [2]bool{true, true}},
		{"running", [2]bool{true, false}, [2]bool{true, false}},
		{"queued", [2]bool{false, true}, [2]bool{true, false}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, err := gate.NewLanes(1, lane.FIFO, gate.Unlimited)
			must.OK(t, err)
			var all [2]*loop
			for i := range all {
				h := newGPUHarness(t, testCard())
				l := loopIn(t, s, h, h.fake())
				all[i] = l
				if c.empty[i] {
					l.emptyBalance()
				}
				if got := l.mayTake(h); got != c.want[i] {
					t.Fatalf("member %d may begin: %v, want %v", i, got, c.want[i])
				}
				if !c.want[i] {
					break
				}
				must.OK(t, l.begin())
				if !c.empty[i] {
					l.gate.Place.Launch(0, shm.Now(), 0, 0) // about to end
				}
			}
			for _, l := range all {
				if l.flights.count > 0 {
					must.OK(t, l.finish())
				}
			}
		})
	}
}

// TestLaneNumber asks for a member's lane as a framework does, which receives the lane before it has one.
func TestLaneNumber(t *testing.T) {
	g := startLaneOnGPU(t, 2, nil)
	for i, f := range g.fakes {
		if lane := f.node.Lane; lane == nil || lane() != 0 {
			t.Errorf("member %d has no number of its lane, or another one than 0", i)
		}
	}
	g.drain()
}
