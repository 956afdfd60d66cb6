package datapath

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/control/runclock"
	"github.com/penstock/penstock/datapath/ingest"
	"github.com/penstock/penstock/internal/testing/datapathtest"
	"github.com/penstock/penstock/internal/testing/ingestfake"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/shm"
	"github.com/penstock/penstock/wire"
)

// faultySource is a source whose Receive and Send fail at random.
type faultySource struct {
	ingest.Source
	mu     sync.Mutex
	random *rand.Rand
	faults atomic.Int64
}

func (s *faultySource) fails() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	fails := s.random.IntN(8) == 0
	if fails {
		s.faults.Add(1)
	}
	return fails
}

func (s *faultySource) Receive(batch []ingest.Datagram, deadline int64) (int, error) {
	if s.fails() {
		return 0, unix.ENOMEM
	}
	return s.Source.Receive(batch[:1+len(batch)/8], deadline)
}

func (s *faultySource) Send(packets []ingest.Packet) (int, error) {
	if s.fails() {
		return 0, unix.EHOSTUNREACH
	}
	return s.Source.Send(packets)
}

// hostileProcess is a process that does with each request what random says. It never holds a
// request for ever.
func hostileProcess(c *shm.Consumer, random *rand.Rand, stop *atomic.Bool) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if owned, err := c.Acquire(shm.Now() + int64(datapathtest.Patience)); !owned || err != nil {
		return
	}
	slots := c.Recover(nil)
	taken := make([]uint32, 16)
	for !stop.Load() {
		for _, slot := range slots {
			r := datapathtest.Honest(c.Request(slot).Complete, 8)
			for shm.Now() < r.Inferred {
			}
			switch random.IntN(8) {
			case 0:
				r.Status = uint8(random.Uint32())
			case 1:
				r.Inferred = int64(random.Uint64())
			case 2:
				r.Length, r.Kind = random.Uint32(), uint8(random.Uint32())
			case 3:
				c.Start([]uint32{slot})
				c.Complete(slot, r) // and once more
			case 4:
				c.Complete(random.Uint32N(64), r) // one that it may not have taken
			}
			c.Start([]uint32{slot})
			c.Complete(slot, r)
			c.Flush()
		}
		c.Wait(shm.Now() + int64(time.Millisecond))
		slots = append(slots[:0], taken[:c.Take(taken)]...)
	}
}

// TestHostilePeers lets a network lose, repeat, reorder and cut datagrams, a source fail, and a
// process answer nonsense. Every request that was complete must be answered, and all memory freed.
func TestHostilePeers(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) { hostilePeers(t, seed) })
	}
}

func hostilePeers(t *testing.T, seed uint64) {
	const clients = 6
	source, err := ingestfake.New(ingestfake.Options{
		Seed: seed, Loss: 0.02, Duplicate: 0.1, Reorder: 0.2, Delay: 0.1, DelayFor: time.Millisecond, Straddle: 0.3,
	})
	must.OK(t, err)
	faulty := &faultySource{Source: source, random: rand.New(rand.NewPCG(seed, 1))}
	var stop, stopControl atomic.Bool
	var processes, control sync.WaitGroup
	t.Cleanup(func() { // after all requests have ended
		stopControl.Store(true)
		control.Wait()
	})
	o := testOptions(2)
	o.Objective, o.Gather = 200*time.Millisecond, 20*time.Millisecond
	b := newHarnessOn(t, &Sources{All: []ingest.Source{faulty}, Close: source.CloseSlab}, o)
	for i, q := range b.all() {
		c := b.consumer(i, 1)
		q.HandOver(1)
		q.SetServing(true)
		processes.Go(func() { hostileProcess(c.Consumer, rand.New(rand.NewPCG(seed, uint64(i))), &stop) })
	}
	end := func() {
		stop.Store(true)
		processes.Wait()
	}
	t.Cleanup(end) // before its memory is unmapped

	// The control loop gives up on what a process does not return.
	control.Go(func() {
		for ; !stopControl.Load(); time.Sleep(time.Millisecond) {
			for _, q := range b.all() {
				q.Rouse()
				q.ExpireBefore(runclock.Now() - o.Objective)
			}
		}
	})

	random := rand.New(rand.NewPCG(seed, 2))
	id := uint32(0)
	defer func() {
		if t.Failed() {
			t.Logf("%+v, %d faults", b.Stats(), faulty.faults.Load())
		}
	}()
	b.eventually("requests have ended in each way", func() bool {
		for client := range clients {
			for i := range 3 {
				d := datapathtest.Fragment(id, datapathtest.Picture(byte(id)), 1024, i, 0)
				if random.IntN(30) == 0 {
					d = d[:random.IntN(len(d))]
				}
				source.Inject(clientOf(client), d)
			}
		}
		id++
		s := b.Stats()
		return s.Results[wire.StatusOK] > 50 && s.Results[wire.StatusFailed] > 20 && s.Unsent > 0 && faulty.faults.Load() > 20
	})
	end()
	b.eventually("all requests have ended", func() bool { return !b.Unanswered() })
}

// TestReceiveError keeps the port open while its source fails.
func TestReceiveError(t *testing.T) {
	source := memorySource(t)
	broken := &brokenSource{Source: source}
	b := newHarnessOn(t, &Sources{All: []ingest.Source{broken}, Close: func() error { return nil }}, testOptions(1))
	c := b.owner(0, 1)
	b.eventually("the source has failed", func() bool { return broken.failed.Load() > 0 })
	for i := range 3 {
		source.Inject(clientOf(0), datapathtest.Fragment(1, datapathtest.Picture(1), 1024, i, 0))
	}
	broken.repaired.Store(true)
	c.Answer(c.Await(1), []byte{1, 2, 3, 4})
	b.eventually("the answer is sent", func() bool { return len(results(source)) == 1 })
}

// brokenSource fails until it is repaired.
type brokenSource struct {
	ingest.Source
	failed   atomic.Int64
	repaired atomic.Bool
}

func (s *brokenSource) Receive(batch []ingest.Datagram, deadline int64) (int, error) {
	if !s.repaired.Load() {
		s.failed.Add(1)
		return 0, errors.New("no memory")
	}
	return s.Source.Receive(batch, deadline)
}
