package shm

import (
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/testing/wait"
)

// stream is a manager under load. It keeps all slots out, and checks that each
// request receives its own answer.
type stream struct {
	*pair
	t    *testing.T
	free chan uint32
	stop chan struct{}
	done sync.WaitGroup
	// ids holds the request id of each slot that is out.
	ids       []atomic.Uint32
	published atomic.Uint64
	answered  atomic.Uint64
	// lastBy is the generation that answered last.
	lastBy atomic.Uint32
}

func newStream(t *testing.T) *stream {
	s := &stream{
		pair: newPair(t, testGeometry), t: t,
		free: make(chan uint32, testGeometry.Slots),
		stop: make(chan struct{}),
		ids:  make([]atomic.Uint32, testGeometry.Slots),
	}
	for slot := range testGeometry.Slots {
		s.free <- slot
	}
	s.done.Go(s.publishAll)
	s.done.Go(s.receiveAll)
	return s
}

func (s *stream) publishAll() {
	for id := uint32(1); ; id++ {
		select {
		case slot := <-s.free:
			s.ids[slot].Store(id)
			s.table.SetRequest(slot, Request{ID: id})
			s.published.Add(1)
			s.channel.Publish(slot)
		case <-s.stop:
			return
		}
	}
}

func (s *stream) receiveAll() {
	dst := make([]uint32, 5)
	for {
		n, err := s.channel.Receive(dst, 0)
		if err != nil {
			return
		}
		for _, slot := range dst[:n] {
			want := strconv.FormatUint(uint64(s.ids[slot].Load()), 10)
			if got := string(s.channel.ResultBytes(slot)); got != want {
				s.t.Errorf("slot %d was asked %s and answered %s", slot, want, got)
			}
			s.lastBy.Store(s.channel.Result(slot).ModelVersion)
			s.answered.Add(1)
			s.free <- slot
		}
	}
}

// until waits for a condition.
func (s *stream) until(what string, met func() bool) {
	s.t.Helper()
	if !wait.Until(met) {
		s.t.Fatalf("%s: epoch %d, owner %d, %d of %d answered", what,
			s.channel.Epoch(), s.channel.Owner(), s.answered.Load(), s.published.Load())
	}
}

// end waits until all that is out is answered, and stops.
func (s *stream) end(lost uint64) {
	s.t.Helper()
	close(s.stop)
	s.until("the last answers", func() bool { return s.answered.Load()+lost == s.published.Load() })
	s.channel.Close()
	s.done.Wait()
}

// handOvers moves the ring back and forth between generations 1 and 2, each
// time after the other one has answered something.
func (s *stream) handOvers(n int) {
	s.t.Helper()
	for i := range n {
		next := uint32(1 + i%2)
		s.channel.SetEpoch(next)
		s.until("a hand-over", func() bool { return s.lastBy.Load() == next })
	}
	if rejected := s.channel.Rejected(); rejected != 0 {
		s.t.Errorf("%d replies were rejected: something was consumed twice", rejected)
	}
}

func TestHandOverProcesses(t *testing.T) {
	s := newStream(t)
	for _, generation := range []uint32{1, 2} {
		c := spawn(t, "serve", generation, s.pair)
		if line := c.readLine(t); line != "attached" {
			t.Fatalf("child says %q", line)
		}
	}
	s.handOvers(3000)
	s.end(0)
}

func TestHandOver(t *testing.T) {
	s := newStream(t)
	var consumers sync.WaitGroup
	var both []*Consumer
	var ending atomic.Bool
	for _, generation := range []uint32{1, 2} {
		c := s.attach(t, generation)
		both = append(both, c)
		consumers.Go(func() {
			batch := make([]uint32, 4)
			for !ending.Load() {
				if ok, _ := c.Acquire(0); !ok {
					continue
				}
				answerIDs(c, c.Recover(nil))
				for c.Entitled() && !ending.Load() {
					c.Wait(0)
					slots := batch[:c.Take(batch)]
					if !c.Entitled() {
						slots = slots[:len(slots)/2] // the next owner recovers the rest
					}
					answerIDs(c, slots)
				}
				c.Release()
			}
		})
	}
	s.handOvers(3000)
	s.end(0)
	ending.Store(true)
	for _, c := range both {
		c.Interrupt()
	}
	consumers.Wait()
	for _, c := range both {
		c.Close()
	}
}

// answerIDs answers one batch as echo does.
func answerIDs(c *Consumer, slots []uint32) {
	c.Start(slots)
	for _, slot := range slots {
		id := strconv.FormatUint(uint64(c.Request(slot).ID), 10)
		copy(c.ResultBuffer(slot), id)
		c.Complete(slot, Result{Length: uint32(len(id)), ModelVersion: c.generation})
	}
	c.Flush()
	c.BatchEnded(Now())
}

// TestKilledOwner checks that requests of a killed owner are recovered, or reported as lost.
func TestKilledOwner(t *testing.T) {
	for _, test := range []struct {
		role      string
		recovered []uint32
		lost      []uint32
	}{
		{"take", []uint32{0, 1, 2, 3, 4, 5, 6, 7}, nil},
		{"start", []uint32{4, 5, 6, 7}, []uint32{0, 1, 2, 3}},
	} {
		t.Run(test.role, func(t *testing.T) {
			p := newPair(t, testGeometry)
			child := spawn(t, test.role, 1, p)
			p.channel.SetEpoch(1)
			p.publish(0, 1, 2, 3, 4, 5, 6, 7)
			if a, b := child.readLine(t), child.readLine(t); a != "attached" || b != "ready to die" {
				t.Fatalf("child says %q, %q", a, b)
			}
			p.publish(8) // never taken
			child.kill()
			for _, slot := range test.lost {
				if stage, generation := p.channel.Stage(slot); stage != StageStarted || generation != 1 {
					t.Errorf("lost slot %d is %v of %d", slot, stage, generation)
				}
				if err := p.channel.Withdraw(slot); err != nil {
					t.Error(err)
				}
			}
			if !p.channel.Disown(1) {
				t.Error("the dead one did not own the ring")
			}
			next := p.owner(t, 2)
			wantSlots(t, "recovered", next.Recover(nil), test.recovered...)
			wantSlots(t, "taken", take(next), 8)
			complete(next, append(test.recovered, 8)...)
			wantSlots(t, "received", p.received(t), append(test.recovered, 8)...)
			if p.channel.Rejected() != 0 {
				t.Errorf("%d rejected", p.channel.Rejected())
			}
		})
	}
}

// Owners are killed in mid-stream, at any point of their work.
func TestKillsUnderLoad(t *testing.T) {
	s := newStream(t)
	var lost uint64
	const kills = 12
	for generation := uint32(1); generation <= kills; generation++ {
		child := spawn(t, "toil", generation, s.pair)
		child.readLine(t)
		s.channel.SetEpoch(generation)
		s.until("the next owner", func() bool { return s.lastBy.Load() == generation })
		linger(int(generation))
		child.kill()
		s.channel.Disown(generation)
		// What the owner had flushed is received first; after that, what it
		// started is lost.
		wait.Still(t, "the number of answers", 5*time.Millisecond, s.answered.Load)
		for slot := range testGeometry.Slots {
			if stage, of := s.channel.Stage(slot); stage == StageStarted && of == generation {
				if s.channel.Withdraw(slot) == nil {
					lost++
					s.free <- slot
				}
			}
		}
	}
	child := spawn(t, "serve", kills+1, s.pair)
	child.readLine(t)
	s.channel.SetEpoch(kills + 1)
	s.end(lost)
	t.Logf("%d answered, %d were started when their process was killed", s.answered.Load(), lost)
	if batch := uint64(4); lost > kills*(batch+uint64(testGeometry.Slots)) {
		t.Errorf("%d lost with %d kills", lost, kills)
	}
}
