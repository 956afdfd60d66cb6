package fleet

import (
	"net/netip"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/datapath"
	"github.com/penstock/penstock/datapath/udp"
	"github.com/penstock/penstock/internal/testing/datapathtest"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/wait"
	"github.com/penstock/penstock/manager/observe"
	"github.com/penstock/penstock/models"
)

// patience bounds waits for things that should happen at once, so that a hang fails the
// test.
const patience = datapathtest.Patience

// bed is a harness: one function with its threads running and no process. The test acts as
// the client and as the inference function.
type bed struct {
	*function
	t testing.TB
}

func testCard() *models.Card {
	return &models.Card{
		Name: "test", Version: 7, Framework: "null",
		Input: models.Input{
			Height: 32, Width: 32, Channels: 3, // datapathtest.PictureBytes
			WireType: models.U8, WireLayout: models.HWC, TensorType: models.U8, TensorLayout: models.HWC,
		},
		Outputs: []models.Tensor{{Name: "a", Type: models.F32, Shape: []int64{1024}}},
		Batches: []int{1, 2, 4},
		SLO:     time.Minute,
		Decoder: models.Decoder{Name: "raw"},
	}
}

// calls is a control loop whose calls the test makes.
type calls chan func()

func (c calls) Post(call func()) bool { c <- call; return true }
func (c calls) Go(f func())           { go f() }

// newFleet returns a fleet with metrics, and ports of the kernel.
func newFleet(t testing.TB, o Options) (fl *Fleet) {
	t.Helper()
	o.Metrics = observe.New(func() (observe.Snapshot, error) { return fl.Snapshot(), nil })
	o.Network = datapath.KernelNetwork(udp.Options{
		Listen: netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), 0), SlabBytes: 1 << 20, RecvBuffer: 1 << 18,
	}, o.Log)
	fl = New(o)
	t.Cleanup(fl.Close)
	return fl
}

// newBed runs a function with one instance per share under a configuration. When the test ends,
// every accepted request must have been answered, and its memory freed.
func newBed(t *testing.T, cfg configs.Config, shares ...float64) *bed {
	t.Helper()
	cfg.Shares.Policy = configs.PolicyGSLICE
	fl := newFleet(t, Options{Config: cfg, Dir: t.TempDir(), Loop: make(calls, 64), Log: zerolog.Nop()})
	f, err := newFunction(fl, configs.Function{Name: "test", Instances: len(shares)}, testCard(), fl.devices[0])
	must.OK(t, err)
	for range shares[1:] {
		must.OK(t, f.grow(fl.devices[0]))
	}
	for i, percent := range shares {
		setShare(f.instances[i], percent)
	}
	f.port.Start(fl.metrics.Of(f.name))
	b := &bed{f, t}
	t.Cleanup(func() {
		if !t.Failed() {
			b.settled()
		}
		f.close()
	})
	return b
}

// eventually waits until the function's threads have fulfilled a condition.
func (b *bed) eventually(what string, is func() bool) {
	b.t.Helper()
	wait.For(b.t, what, is)
}

// settled checks that nothing is left over: each accepted request was answered once, and
// its memory is free.
func (b *bed) settled() {
	b.t.Helper()
	b.eventually("every accepted request is replied to", func() bool { return !b.port.Unanswered() })
	b.eventually("no packet memory is held", func() bool { return b.port.Stats().Source.HeldBytes == 0 })
	if s := b.port.Stats(); s.InFlight != 0 || s.Lost != 0 {
		b.t.Errorf("%d requests in flight, %d lost; want none", s.InFlight, s.Lost)
	}
}

// consumer attaches to an instance as a process would.
func (b *bed) consumer(instance int, generation uint32) *datapathtest.Process {
	b.t.Helper()
	return datapathtest.Attach(b.t, b.instances[instance].queue, b.port.Geometry(), generation)
}

// owner returns a process that has the ring; the test is its thread.
func (b *bed) owner(instance int, generation uint32) *datapathtest.Process {
	b.t.Helper()
	return datapathtest.Own(b.t, b.instances[instance].queue, b.port.Geometry(), generation)
}

func (b *bed) dial() *datapathtest.Client {
	b.t.Helper()
	return datapathtest.Dial(b.t, b.port.LocalAddr())
}
