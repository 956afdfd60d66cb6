package manager

import (
	"context"
	"net/netip"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/shm"
	"github.com/penstock/penstock/wire"
)

// patience bounds waits for things that should happen at once, so that a hang fails the
// test.
const patience = 30 * time.Second

// bed is a harness: one function with its threads running and no process. The test acts as
// the client and as the inference function.
type bed struct {
	*function
	t *testing.T
}

// pictureBytes is the size of testCard's input: 32 x 32 x 3, three fragments of a client.
const pictureBytes = 32 * 32 * 3

func testCard() *models.Card {
	return &models.Card{
		Name: "test", Version: 7, Framework: "null",
		Input: models.Input{
			Height: 32, Width: 32, Channels: 3,
			WireType: models.U8, WireLayout: models.HWC, TensorType: models.U8, TensorLayout: models.HWC,
		},
		Outputs: []models.Output{{Name: "a", Shape: []int64{1024}}},
		Batches: []int{1, 2, 4},
		SLO:     time.Minute,
		Decoder: models.Decoder{Name: "raw"},
	}
}

// newBed runs a function with one instance per share. When the test ends, every accepted
// request must have been answered, and its memory freed.
func newBed(t *testing.T, card *models.Card, shares ...float64) *bed {
	t.Helper()
	return newBedOn(t, nil, card, shares...)
}

// newBedOn is newBed with the test's own ports, or with kernel sockets if own is nil.
func newBedOn(t *testing.T, own ports, card *models.Card, shares ...float64) *bed {
	t.Helper()
	cfg := configs.Default()
	cfg.Shares.Policy = configs.PolicyGSLICE
	return newBedFor(t, cfg, own, card, shares...)
}

// newBedFor is newBedOn with a configuration.
func newBedFor(t *testing.T, cfg configs.Config, own ports, card *models.Card, shares ...float64) *bed {
	t.Helper()
	cfg.Listen = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	cfg.Slab = configs.Slab{Size: 1 << 20, ReceiveBuffer: 1 << 18}
	m := &Manager{cfg: cfg, log: zerolog.Nop(), started: time.Now(), done: make(chan struct{}), generations: map[place]uint32{}}
	m.metrics = newMetrics(m)
	m.ports = kernelPorts{cfg: &m.cfg}
	if own != nil {
		m.ports = own
	}
	f, err := newFunction(m, configs.Function{Name: "test", Instances: len(shares)}, card)
	if err != nil {
		t.Fatal(err)
	}
	for i, percent := range shares {
		f.instances[i].setShare(percent)
	}
	f.run()
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
	for deadline := time.Now().Add(patience); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			b.t.Fatalf("not after %v: %s", patience, what)
		}
	}
}

// settled checks that nothing is left over: each accepted request was answered once, and
// its memory is free.
func (b *bed) settled() {
	b.t.Helper()
	b.eventually("every accepted request is replied to", func() bool { return b.replied.Load() == b.accepted.Load() })
	b.eventually("no packet memory is held", func() bool { return b.sourceStats().HeldBytes == 0 })
	if n := b.inFlight(); n != 0 {
		b.t.Errorf("%d requests in flight, want none", n)
	}
	if n := b.lost(); n != 0 {
		b.t.Errorf("%d requests are lost", n)
	}
	if n := b.pending(); n != 0 {
		b.t.Errorf("%d requests pend, want none", n)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if accepted := b.accepted.Load(); b.ended != accepted {
		b.t.Errorf("%d requests ended of %d accepted", b.ended, accepted)
	}
	for slot, fl := range b.flights {
		if fl.instance != nil {
			b.t.Errorf("slot %d is in flight, want none", slot)
		}
	}
	for _, r := range b.receivers {
		r.mu.Lock()
		if err := r.aggregate.Check(); err != nil {
			b.t.Error(err)
		}
		r.mu.Unlock()
	}
}

// consumer attaches to an instance as a process would.
func (b *bed) consumer(instance int, generation uint32) *shm.Consumer {
	b.t.Helper()
	in := b.instances[instance]
	c, err := shm.NewConsumer(generation, b.geometry, dup(b.t, b.table.File()), dup(b.t, in.channel.RingFile()), dup(b.t, in.channel.RepliesFile()))
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { c.Close() })
	return c
}

// owner returns a consumer that owns the ring; the test is its thread.
func (b *bed) owner(instance int, generation uint32) *shm.Consumer {
	b.t.Helper()
	runtime.LockOSThread()
	b.t.Cleanup(runtime.UnlockOSThread)
	c := b.consumer(instance, generation)
	b.instances[instance].channel.SetEpoch(generation)
	if owned, err := c.Acquire(shm.Now() + int64(patience)); !owned || err != nil {
		b.t.Fatalf("acquire: %v, %v", owned, err)
	}
	return c
}

// take waits until n requests are published and takes them.
func (b *bed) take(c *shm.Consumer, n int) []uint32 {
	b.t.Helper()
	slots, deadline := make([]uint32, n), shm.Now()+int64(patience)
	got := 0
	for got < n {
		if shm.Now() > deadline {
			b.t.Fatalf("took %d requests, want %d", got, n)
		}
		c.Wait(deadline)
		got += c.Take(slots[got:])
	}
	return slots
}

// honest returns a valid result for a batch of one with payloadBytes of payload. Each
// stage takes a microsecond.
func honest(whole int64, payloadBytes int) shm.Result {
	return shm.Result{
		Status: uint8(wire.StatusOK), Kind: uint8(wire.KindRaw), Batch: 1, ModelVersion: 7, Length: uint32(payloadBytes),
		Dispatched: whole + 1_000, Gathered: whole + 2_000, Inferred: whole + 3_000,
	}
}

// answer answers each of slots with payload and status ok.
func (b *bed) answer(c *shm.Consumer, slots []uint32, payload []byte) {
	b.t.Helper()
	c.Start(slots)
	for _, slot := range slots {
		r := honest(c.Request(slot).Whole, copy(c.ResultBuffer(slot), payload))
		for shm.Now() < r.Inferred {
		}
		c.Complete(slot, r)
	}
	c.Flush()
}

func dup(t testing.TB, f *os.File) *os.File {
	t.Helper()
	raw, err := f.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	copied := -1
	if err := raw.Control(func(fd uintptr) { copied, err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0) }); err != nil {
		t.Fatal(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return os.NewFile(uintptr(copied), f.Name())
}

// sender is a client whose answers wait in a channel, by tag.
type sender struct {
	*client.Client
	t    *testing.T
	ends chan ending
}

// ending is the end of a request, as the test keeps it.
type ending struct {
	client.Result
	payload []byte
}

func (b *bed) dial() *sender {
	b.t.Helper()
	s := &sender{t: b.t, ends: make(chan ending, 1024)}
	c, err := client.Dial(context.Background(), b.localAddr().String(), client.Options{
		Timeout: patience, ResendAfter: patience, InFlight: 32,
		Deliver: func(r *client.Result) {
			s.ends <- ending{Result: *r, payload: append([]byte(nil), r.Payload...)}
		},
	})
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { c.Close() })
	s.Client = c
	return s
}

// send sends a picture with a tag.
func (s *sender) send(tag uint64) {
	s.t.Helper()
	if _, err := s.Send(picture(byte(tag)), client.RequestOptions{Tag: tag}); err != nil {
		s.t.Fatal(err)
	}
}

// next returns the next end of a request.
func (s *sender) next() ending {
	s.t.Helper()
	select {
	case e := <-s.ends:
		if e.Err != nil {
			s.t.Fatalf("request %d: %v", e.Tag, e.Err)
		}
		return e
	case <-time.After(patience):
		s.t.Fatal("no answer")
		return ending{}
	}
}

// statuses returns the next n ends, by tag.
func (s *sender) statuses(n int) map[uint64]wire.Status {
	s.t.Helper()
	got := map[uint64]wire.Status{}
	for range n {
		e := s.next()
		got[e.Tag] = e.Status
	}
	return got
}

// picture returns a picture in which each byte differs from its neighbours.
func picture(seed byte) []byte {
	p := make([]byte, pictureBytes)
	for i := range p {
		p[i] = seed + byte(i*7) + byte(i>>8)
	}
	return p
}

// rawClient sends and receives single datagrams.
type rawClient struct {
	t  *testing.T
	fd int
}

func (b *bed) rawDial() *rawClient {
	b.t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { unix.Close(fd) })
	to := b.localAddr()
	if err := unix.Connect(fd, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}); err != nil {
		b.t.Fatal(err)
	}
	limit := unix.NsecToTimeval(int64(patience))
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit); err != nil {
		b.t.Fatal(err)
	}
	return &rawClient{b.t, fd}
}

// piece sends fragment i of a picture that is cut into fragments of pieceBytes.
func (r *rawClient) piece(id uint32, picture []byte, pieceBytes, i int, flags wire.Flags) {
	r.t.Helper()
	h := wire.PieceHeader(wire.TypeData, id, len(picture), pieceBytes, i)
	h.Flags |= flags
	d := make([]byte, wire.DatagramSize(&h))
	h.Put(d)
	copy(d[wire.PayloadOffset(&h):], picture[h.Offset:][:h.Length])
	if _, err := unix.Write(r.fd, d); err != nil {
		r.t.Fatal(err)
	}
}

// receive returns the next datagram.
func (r *rawClient) receive() []byte {
	r.t.Helper()
	b := make([]byte, 1<<16)
	return b[:r.receiveTo(b)]
}

// receiveTo is receive without allocations.
func (r *rawClient) receiveTo(b []byte) int {
	r.t.Helper()
	for {
		n, err := unix.Read(r.fd, b)
		if err == unix.EINTR { // a socket with a time limit is not restarted, signal(7)
			continue
		}
		if err != nil {
			r.t.Fatalf("no answer: %v", err)
		}
		return n
	}
}

// result returns the next result. It skips NACKs: on a busy machine fragments may come so
// late that the node requests them again.
func (r *rawClient) result() (wire.Header, wire.Result, []byte) {
	r.t.Helper()
	datagram := r.receive()
	for {
		if _, err := wire.DecodeWish(datagram); err != nil {
			break
		}
		datagram = r.receive()
	}
	h, result, payload, err := wire.DecodeResult(datagram)
	if err != nil {
		r.t.Fatal(err)
	}
	return h, result, payload
}
