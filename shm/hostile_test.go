package shm

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/testing/must"
	"pgregory.net/rapid"
)

// referee is a manager that keeps its own record of what is out.
type referee struct {
	*pair
	out map[uint32]bool
	dst []uint32
}

func newReferee(p *pair) *referee {
	return &referee{pair: p, out: map[uint32]bool{}, dst: make([]uint32, p.g.Slots)}
}

func (r *referee) publish(slot uint32) {
	r.channel.Publish(slot)
	r.out[slot] = true
}

// receive checks that every received slot is out, and is received once.
func (r *referee) receive(t failer, deadline int64) {
	n, err := r.channel.Receive(r.dst, deadline)
	must.OK(t, err)
	for _, slot := range r.dst[:n] {
		if !r.out[slot] {
			t.Fatalf("received slot %d, which is not out", slot)
		}
		delete(r.out, slot)
		r.observe(t, slot)
	}
}

// observe reads all that a hostile peer can write about a slot.
func (r *referee) observe(t failer, slot uint32) {
	if n := r.channel.Result(slot).Length; n > r.g.ResultBytes {
		t.Fatalf("result of %d bytes", n)
	}
	if n := len(r.channel.ResultBytes(slot)); n > int(r.g.ResultBytes) {
		t.Fatalf("payload of %d bytes", n)
	}
	if stage, _ := r.channel.Stage(slot); stage > StageStarted {
		t.Fatalf("stage %d", stage)
	}
	r.channel.Owner()
}

func (r *referee) withdraw(t failer, slot uint32) {
	if err := r.channel.Withdraw(slot); (err == nil) != r.out[slot] {
		t.Fatalf("withdraw slot %d: %v, though out is %v", slot, err, r.out[slot])
	}
	delete(r.out, slot)
}

// serveHonestly answers all that is out, as a new generation.
func (r *referee) serveHonestly(t *testing.T, dead, generation uint32) {
	t.Helper()
	r.channel.Disown(dead)
	c := r.owner(t, generation)
	for deadline := Now() + int64(patience); len(r.out) > 0; {
		if Now() > deadline {
			t.Fatalf("never answered: %v", r.out)
		}
		slots := append(c.Recover(nil), take(c)...)
		complete(c, slots...)
		r.receive(t, Now())
		for slot := range r.out {
			if stage, of := r.channel.Stage(slot); stage == StageStarted && of != generation {
				r.withdraw(t, slot) // the dead one claimed it
			}
		}
	}
}

// Every word of the replies may hold any value at any time.
func TestManagerHostileReplies(t *testing.T) {
	g := Geometry{Slots: 8, MaxFragments: 1, ResultBytes: 16, PoolBytes: 256}
	rapid.Check(t, func(rt *rapid.T) {
		p := makePair(rt, g)
		defer p.close()
		r := newReferee(p)
		c := p.attach(rt, 1)
		defer func() { c.Close() }()
		p.channel.SetEpoch(1)
		acquire(rt, c)
		slot := rapid.Uint32Range(0, g.Slots-1)
		words := view[atomic.Uint32](p.channel.replies.Bytes(), 0, g.repliesBytes()/4)
		rt.Repeat(map[string]func(*rapid.T){
			"publish": func(t *rapid.T) { r.publish(slot.Draw(t, "slot")) },
			"serve":   func(t *rapid.T) { complete(c, take(c)...) },
			"receive": func(t *rapid.T) { r.receive(t, Now()) },
			"withdraw": func(t *rapid.T) {
				r.withdraw(t, slot.Draw(t, "slot"))
			},
			"look": func(t *rapid.T) { r.observe(t, slot.Draw(t, "slot")) },
			"scribble": func(t *rapid.T) {
				value := rapid.SampledFrom([]uint32{0, 1, 7, 8, 9, 1 << 31, 1<<31 - 1, ^uint32(0)}).Draw(t, "value")
				if rapid.Bool().Draw(t, "any") {
					value = rapid.Uint32().Draw(t, "value")
				}
				words[rapid.IntRange(0, len(words)-1).Draw(t, "word")].Store(value)
			},
			"forge": func(t *rapid.T) { // a reply whose ticket may be valid
				s, tail := slot.Draw(t, "slot"), p.channel.back.tail.Load()
				ticket := p.channel.ring.tickets[s].Load() - rapid.Uint32Range(0, 3).Draw(t, "old")
				p.channel.back.entries[tail%g.Slots].Store(packReply(ticket, s))
				p.channel.back.tail.Store(tail + rapid.SampledFrom([]uint32{1, 1, 1, 8, 9, 1 << 31}).Draw(t, "jump"))
			},
			"successor": func(t *rapid.T) {
				generation := c.generation + 1
				c.Close()
				p.channel.Disown(generation - 1)
				p.channel.SetEpoch(generation)
				c = p.attach(t, generation)
				acquire(t, c)
				c.Recover(nil)
			},
		})
	})
}

// scribble writes random bytes to its own mapping until it is stopped.
func scribble(t *testing.T, r *Region, size int, seed uint64) (stop func()) {
	t.Helper()
	mine, err := Map(dup(t, r.File()), size, true)
	must.OK(t, err)
	words := view[atomic.Uint32](mine.Bytes(), 0, size/4)
	stopped := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		random := rand.New(rand.NewPCG(seed, 1))
		for {
			select {
			case <-stopped:
				return
			default:
			}
			for range 64 {
				words[random.IntN(len(words))].Store(random.Uint32())
			}
			words[atReplyTail/4].Add(random.Uint32N(20))
			words[atReplyBell/4].Add(1)
		}
	})
	return func() {
		close(stopped)
		wg.Wait()
		mine.Close()
	}
}

func TestManagerRandomBytes(t *testing.T) {
	p := newPair(t, testGeometry)
	r := newReferee(p)
	p.channel.SetEpoch(1)
	stop := scribble(t, p.channel.replies, testGeometry.repliesBytes(), 7)
	random := rand.New(rand.NewPCG(3, 3))
	soon(t, "the manager", func() {
		for i := range 20000 {
			slot := random.Uint32N(testGeometry.Slots)
			switch random.IntN(4) {
			case 0, 1:
				r.publish(slot)
			case 2:
				// Mostly without waiting: with a peer that scribbles, a wait may last until
				// its deadline.
				deadline := Now()
				if i%500 == 0 {
					deadline += int64(2 * time.Millisecond)
				}
				r.receive(t, deadline)
			case 3:
				r.withdraw(t, slot)
			}
			r.observe(t, slot)
		}
	})
	stop()
	if p.channel.Rejected() == 0 {
		t.Error("nothing was rejected: the test tests nothing")
	}
	for slot := range testGeometry.Slots {
		r.publish(slot)
	}
	r.serveHonestly(t, 1, 2)
}

func TestCloseRandomBytes(t *testing.T) {
	for seed := range uint64(5) {
		p := newPair(t, testGeometry)
		stop := scribble(t, p.channel.replies, testGeometry.repliesBytes(), seed)
		done := make(chan struct{})
		go func() {
			defer close(done)
			dst := make([]uint32, 4)
			for {
				if _, err := p.channel.Receive(dst, 0); err != nil {
					return
				}
			}
		}()
		linger(4)
		p.channel.Wake()
		soon(t, "Close", func() {
			p.channel.Close()
			<-done
		})
		stop()
	}
}

// The manager is more trusted, but garbage must not break a consumer either.
func TestConsumerHostileRing(t *testing.T) {
	g := Geometry{Slots: 8, MaxFragments: 2, ResultBytes: 16, PoolBytes: 256}
	rapid.Check(t, func(rt *rapid.T) {
		p := makePair(rt, g)
		defer p.close()
		c := p.attach(rt, 1)
		defer c.Close()
		p.channel.SetEpoch(1)
		acquire(rt, c)
		ring := view[atomic.Uint32](p.channel.ringMem.Bytes(), 0, g.ringBytes()/4)
		table := view[atomic.Uint32](p.table.region.Bytes(), 0, g.tableBytes()/4)
		var inHand []uint32
		note := func(t *rapid.T, slots []uint32) {
			for _, slot := range slots {
				if slot >= g.Slots {
					t.Fatalf("took slot %d of %d", slot, g.Slots)
				}
				if n := len(c.Fragments(slot)); n > int(g.MaxFragments) {
					t.Fatalf("%d fragments", n)
				}
			}
			inHand = append(inHand, slots...)
		}
		rt.Repeat(map[string]func(*rapid.T){
			"publish": func(t *rapid.T) { p.channel.Publish(rapid.Uint32Range(0, g.Slots-1).Draw(t, "slot")) },
			"take":    func(t *rapid.T) { note(t, take(c)) },
			"recover": func(t *rapid.T) { note(t, c.Recover(nil)) },
			"wait":    func(t *rapid.T) { c.Wait(Now()) },
			"answer": func(t *rapid.T) {
				complete(c, inHand...)
				inHand = nil
			},
			"acquire": func(t *rapid.T) { c.Acquire(Now()) },
			"scribble": func(t *rapid.T) {
				value := rapid.Uint32().Draw(t, "value")
				words := ring
				if rapid.Bool().Draw(t, "table") {
					words = table
				}
				words[rapid.IntRange(0, len(words)-1).Draw(t, "word")].Store(value)
			},
			"jump": func(t *rapid.T) {
				p.channel.ring.tail.Add(rapid.SampledFrom([]uint32{1, 8, 9, 1 << 31, ^uint32(0)}).Draw(t, "by"))
			},
		})
	})
}
