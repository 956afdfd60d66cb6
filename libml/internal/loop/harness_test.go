package loop

import (
	"log/slog"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock/batching"
	"github.com/penstock/penstock/control/budget"
	"github.com/penstock/penstock/internal/testing/functiontest"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/libml/conductor"
	"github.com/penstock/penstock/libml/cpu"
	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/libml/framework"
	"github.com/penstock/penstock/libml/gate"
	"github.com/penstock/penstock/libml/internal/tensors"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/shm"
)

// harness is a function, and the process of its loop.
type harness struct {
	*functiontest.Function
	streams int             // as granted
	rule    batching.Config // without SLO and Ladder; Fixed 0: rule slab
	level   budget.Level    // of the process's streams
	share   Share           // ordered
	entry   *gate.Entry     // nil: processes take no turns
	ending  atomic.Bool     // tells the loop to end
	order   atomic.Pointer[Share]
	compare func(slot int, ladder []int) (bool, error) // nil: all answers are compared

	framework framework.Framework
}

func (h *harness) InferBatch(slot, n int) error { return h.framework.InferBatch(slot, n) }

func (h *harness) CompareNext(slot int, ladder []int) (compared bool, err error) {
	if h.compare == nil {
		return true, nil
	}
	return h.compare(slot, ladder)
}

func (h *harness) LoadModel() error  { panic("the model stays in memory") }
func (h *harness) EvictModel() error { panic("the model stays in memory") }
func (h *harness) DeviceLost() error { return nil }
func (h *harness) Active()           {}
func (h *harness) Released()         {}

// demotable asks the framework of the harness.
type demotable struct{ *harness }

func (d demotable) Demotable(slot, n int) bool {
	f, ok := d.framework.(framework.Demotable)
	return ok && f.Demotable(slot, n)
}

func newHarness(t testing.TB, card *models.Card) *harness {
	return &harness{Function: functiontest.New(t, card)}
}

// newGPUHarness returns a harness with a GPU.
func newGPUHarness(t testing.TB, card *models.Card) *harness {
	return &harness{Function: functiontest.NewGPU(t, card)}
}

// warm is the time of a batch in a warm-up.
const warm = 50 * time.Microsecond

// loop returns a batch loop that owns the ring. The test is its thread and turns it.
func (h *harness) loop(f *functiontest.Fake) *Loop {
	t := h.TB
	t.Helper()
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	d := h.open()
	ring, err := shm.NewConsumer(1, h.Geometry, h.Dup(h.Table.File()), h.Dup(h.Channel.RingFile()), h.Dup(h.Channel.RepliesFile()))
	must.OK(t, err)
	t.Cleanup(func() {
		ring.Close()
		must.OK(t, d.Bind())
		d.Close()
	})
	decoders, err := NewDecoders(h.Card, 4)
	must.OK(t, err)
	sizes := tensors.MaxSizes(h.Card)
	sizes.Selections = decoders[0].Selections()
	slots, err := d.Tensors(h.Tensors.Bytes(), sizes)
	must.OK(t, err)
	c := Config{
		Process: h, Log: slog.New(slog.DiscardHandler), Card: h.Card, SLO: h.SLO,
		Ring: ring, Slots: int(h.Geometry.Slots), Device: d, Share: &h.order, Ending: &h.ending, CPUs: 1, Threads: 1,
		Decoders: decoders,
	}
	for _, s := range slots {
		c.Tensors = append(c.Tensors, tensors.WithStates(h.Card, s))
	}

	inFlight := d.InFlight()
	if h.streams > 0 {
		inFlight = min(inFlight, h.streams)
	}
	if p, ok := d.(device.Partitioned); ok && h.level != budget.Demoted {
		must.OK(t, p.Prioritize([]int{0, 1}[:inFlight], h.level))
		c.Prioritized = p
	}
	h.framework, err = f.Build(h.Card)
	must.OK(t, err)
	env := framework.Environment{Card: h.Card}
	if h.GPU != nil {
		env.Stream, env.BatchStream = h.GPU.Stream, h.GPU.BatchStream
	}
	must.OK(t, f.Init(env))
	for slot := range c.Tensors { // those of a move, too
		h.configure(c.Tensors, slot)
	}
	rule := h.newRule(h.Card.Batches)
	c.Queue = batching.NewQueue(rule, c.Slots, inFlight)
	c.Queue.HalfFull = h.streams > 1
	account := gate.Config{
		Level: h.level, Objective: h.SLO, Terms: h.share.Terms, Size: 1, Framework: demotable{h},
		Times: make([]time.Duration, h.Card.MaxBatch()+1),
	}
	for _, n := range h.Card.Batches {
		c.Queue.State = rule.Warm(c.Queue.State, n, warm)
		account.Times[n] = warm
	}
	var residence *conductor.Member
	c.Gate = gate.New(gate.NewAccount(shm.Now(), account), nil, h.entry, residence.Resident, nil)
	h.order.Store(&h.share)

	l := New(c)
	h.Channel.SetEpoch(1)
	owned, err := l.Ring.Acquire(shm.Now() + int64(functiontest.Patience))
	if must.OK(t, err); !owned {
		t.Fatal("the loop did not get its ring")
	}
	f.Serve()
	return l
}

// open opens the device.
func (h *harness) open() (d device.Device) {
	h.TB.Helper()
	d = h.GPU
	if h.GPU == nil {
		var err error
		d, err = cpu.New(h.Card.Input, nil)
		must.OK(h.TB, err)
	}
	must.OK(h.TB, d.Bind())
	must.OK(h.TB, d.AddSlab(h.Slab.Bytes()))
	return d
}

// configure configures all sizes of a slot.
func (h *harness) configure(slots []*tensors.Tensors, slot int) {
	h.TB.Helper()
	for _, n := range h.Card.Batches {
		_, err := h.framework.ConfigureBatch(slot, n, slots[slot].InputsOf(n), slots[slot].OutputsOf(n))
		must.OK(h.TB, err)
	}
}

// newRule returns a batching rule with these sizes.
func (h *harness) newRule(ladder []int) *batching.Rule {
	h.TB.Helper()
	c, name := h.rule, "slab"
	if c.Fixed > 0 {
		name = "fixed"
	}
	c.SLO, c.Ladder = h.SLO, ladder
	rule, err := batching.New(name, c)
	must.OK(h.TB, err)
	return rule
}

// turn makes one step without its waits: it takes the requests and runs one batch.
func (l *Loop) turn() error {
	l.take()
	if l.pick(); l.choice.Batch == 0 {
		return nil
	}
	l.begin()
	return l.finish()
}

// finish ends the batch in flight that is done first, and returns the slots of its answers. It
// allocates nothing.
func (h *harness) finish(l *Loop, slots []uint32) []uint32 {
	h.TB.Helper()
	must.OK(h.TB, l.finish())
	n, err := h.Channel.Receive(slots, shm.Now()+int64(functiontest.Patience))
	must.OK(h.TB, err)
	return slots[:n]
}
