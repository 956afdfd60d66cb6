package conductor

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/libml/gate"
	"github.com/penstock/penstock/libml/lane"
	"github.com/penstock/penstock/libml/residency"
)

var errLoad = errors.New("cannot load")

// testConductor is a conductor of a worker without lanes, on a clock of the test.
func testConductor(t testing.TB, memoryBytes int64) (c *Conductor, failed *error) {
	t.Helper()
	l, err := gate.NewLanes(1, lane.EDF, memoryBytes)
	must.OK(t, err)
	failed = new(error)
	c = New(l, 0, func(err error) { *failed = err })
	c.alarm.Stop()
	c.alarm = time.NewTimer(time.Hour) // the test calls plan
	c.running = func() time.Duration { return 0 }
	t.Cleanup(c.Close)
	return c, failed
}

// waitingFor is the work of requests that must be answered by a time.
func waitingFor(deadline int64) Work { return Work{Waiting: 1, Deadline: deadline} }

// serveMember makes a member that has loaded its model once.
func (c *Conductor) serveMember(t testing.TB, now int64, name string, size int64, load time.Duration) *Member {
	t.Helper()
	r := c.Join(now, Newcomer{Name: name, WeightsBytes: size, LoadOnce: true, Wake: func() {}})
	c.carryOut(t, now, func() bool {
		order, ok := r.Observe(now, Work{})
		if ok && order != residency.Load {
			t.Fatalf("first order of %s is %v, want load", name, order)
		}
		return ok
	})
	r.Loaded(now, size, load)
	r.Serve(now, time.Millisecond)
	return r
}

// carryOut evicts for all members without work until done returns true.
func (c *Conductor) carryOut(t testing.TB, now int64, done func() bool) {
	t.Helper()
	for range 100 {
		if done() {
			return
		}
		for _, r := range c.members {
			if r.serves && r.model.Moving && r.order == residency.Evict {
				if _, ok := r.Observe(now, Work{}); ok {
					r.Evicted(now)
				}
			}
		}
	}
	t.Fatal("no order came")
}

func TestConductor(t *testing.T) {
	const second = int64(time.Second)
	c, failed := testConductor(t, 100)
	now := second
	a := c.serveMember(t, now, "a", 60, 10*time.Millisecond)
	b := c.serveMember(t, now, "b", 40, 10*time.Millisecond)
	d := c.serveMember(t, now, "d", 50, 10*time.Millisecond) // evicts a
	if a.Resident() || !b.Resident() || !d.Resident() {
		t.Fatalf("resident: a %v, b %v, d %v; want b and d, as a was used first", a.Resident(), b.Resident(), d.Resident())
	}
	if s := a.Report(now).State; s != control.Evicted {
		t.Errorf("evicted member reports %q", s)
	}

	// a needs 60 of 100 bytes. d has work, so only b can go, and that is not enough.
	d.Observe(now, waitingFor(now+second))
	if _, ok := a.Observe(now, waitingFor(now+second)); ok || b.model.Moving || d.model.Moving {
		t.Error("a model that cannot get enough memory moves others")
	}
	if s := d.Report(now).State; s != control.Running {
		t.Errorf("member with a request reports %q", s)
	}
	a.Observe(now, Work{})

	// d alone has enough memory for a. It gets work again before it carries out the order.
	d.Ran(now+1, time.Millisecond)
	d.Observe(now+1, Work{})
	if _, ok := a.Observe(now+1, waitingFor(now+second)); ok {
		t.Error("a may load before the memory is free")
	}
	if b.model.Moving || !d.model.Moving {
		t.Errorf("ordered to evict: b %v, d %v; want d", b.model.Moving, d.model.Moving)
	}
	if order, ok := d.Observe(now+1, waitingFor(now+second)); ok {
		t.Errorf("member with work carries out %v", order)
	}
	if !d.Resident() {
		t.Error("member with work has lost its model")
	}
	if order, ok := d.Observe(now+2, Work{}); !ok || order != residency.Evict {
		t.Errorf("order %v, %v without work, want to evict", order, ok)
	}
	d.Evicted(now + 2)
	c.carryOut(t, now+2, func() bool {
		order, ok := a.Observe(now+2, waitingFor(now+second))
		return ok && order == residency.Load
	})
	if s := a.Report(now + 2).State; s != control.Loading {
		t.Errorf("member that loads reports %q", s)
	}

	// The load fails. It is not tried again before the delay.
	a.Failed(now+3, errLoad)
	if err := a.Failure(now + 4); !errors.Is(err, errLoad) {
		t.Errorf("failure %v, want that of the load", err)
	}
	if _, ok := a.Observe(now+4, waitingFor(now+second)); ok {
		t.Error("load is tried again at once")
	}
	later := now + 3 + int64(minRetry)
	if err := a.Failure(later); err != nil {
		t.Errorf("failure %v after the delay", err)
	}
	if order, ok := a.Observe(later, waitingFor(later+second)); !ok || order != residency.Load {
		t.Errorf("order %v, %v after the delay, want load", order, ok)
	}
	a.Loaded(later+5, 60, 20*time.Millisecond)
	if got := a.Report(later + 5); got.Loads != 2 || got.Evictions != 1 || got.LastLoadMillis != 20 || got.Bytes != 60 {
		t.Errorf("report %+v, want 2 loads, 1 eviction, 20 ms, 60 bytes", got)
	}
	if *failed != nil {
		t.Errorf("worker ends: %v", *failed)
	}

	var none *Member
	none.Request(0)
	none.Ran(0, 0)
	none.Leave(0)
	if !none.Resident() || none.Failure(0) != nil || none.Loading() != 0 || none.Report(0) != nil {
		t.Error("process without a conductor has no model")
	}
}

// TestConductorNext lets the next load evict and begin shortly before the last one ends.
func TestConductorNext(t *testing.T) {
	const second, load = int64(time.Second), 10 * time.Millisecond
	for name, c := range map[string]struct {
		ahead, after time.Duration
		want         bool
	}{
		"in time":   {time.Millisecond, load - time.Millisecond, true},
		"too early": {time.Millisecond, load - time.Millisecond - 1, false},
		"overdue":   {time.Millisecond, 2 * load, true},
		"one load":  {0, 2 * load, false},
	} {
		t.Run(name, func(t *testing.T) {
			conductor, _ := testConductor(t, 100)
			now := second
			first := conductor.serveMember(t, now, "first", 50, load)
			next := conductor.serveMember(t, now, "next", 40, load)
			victim := conductor.serveMember(t, now, "victim", 50, load)
			rest := conductor.serveMember(t, now, "rest", 40, load)
			if first.Resident() || next.Resident() {
				t.Fatal("the last models have not evicted the others")
			}
			conductor.ahead = c.ahead
			now++
			conductor.carryOut(t, now, func() bool {
				order, ok := first.Observe(now, waitingFor(now+second))
				return ok && order == residency.Load
			})
			now += int64(c.after)
			got := false
			for range 5 { // orders to evict, then the load
				for _, r := range []*Member{victim, rest} {
					if order, ok := r.Observe(now, Work{}); ok && order == residency.Evict {
						r.Evicted(now)
					}
				}
				if _, ok := next.Observe(now, waitingFor(now+second)); ok {
					got = true
				}
			}
			if got != c.want {
				t.Errorf("the next load begins %v after the first: %v, want %v", c.after, got, c.want)
			}
		})
	}
	t.Run("after a failure", func(t *testing.T) {
		c, _ := testConductor(t, 100)
		first := c.serveMember(t, second, "first", 50, load)
		next := c.serveMember(t, second, "next", 40, load)
		victim := c.serveMember(t, second, "victim", 100, load) // evicts both
		victim.Leave(second)
		if _, ok := first.Observe(second, waitingFor(2*second)); !ok {
			t.Fatal("the first load does not begin")
		}
		first.Failed(second, errLoad)
		c.ahead = time.Millisecond
		now := second + int64(minRetry)
		if _, ok := first.Observe(now, waitingFor(2*second)); !ok {
			t.Fatal("the load is not tried again")
		}
		if _, ok := next.Observe(now+int64(2*load), waitingFor(2*second)); ok {
			t.Error("the next load begins while one makes its sessions again")
		}
	})
	t.Run("sessions", func(t *testing.T) {
		c, _ := testConductor(t, 100)
		c.ahead = time.Millisecond
		now := second
		for _, name := range []string{"first", "next"} {
			r := c.Join(second, Newcomer{Name: name, WeightsBytes: 40, Load: load, LoadOnce: true, Wake: func() {}})
			if _, ok := r.Observe(now, Work{}); ok != (name == "first") {
				t.Errorf("%s begins to load: %v; while one makes its sessions, no other may", name, ok)
			}
			now += int64(2 * load)
		}
	})
}

// TestConductorFirstPacket loads at the first packet of a request, and forgets one that does not come.
func TestConductorFirstPacket(t *testing.T) {
	const second = int64(time.Second)
	c, _ := testConductor(t, 100)
	a := c.serveMember(t, second, "a", 60, 10*time.Millisecond)
	b := c.serveMember(t, second, "b", 60, 10*time.Millisecond)
	now := 2 * second
	arrived := Work{Arrived: true, ArriveBy: now + 50, ArriveDue: now + second}
	c.carryOut(t, now, func() bool { _, ok := a.Observe(now, arrived); return ok })
	a.Loaded(now+1, 60, time.Millisecond)
	if b.Observe(now+2, waitingFor(now+second)); a.model.Moving {
		t.Error("model is evicted although its request arrives")
	}
	if c.plan(now + 51); !a.model.Moving {
		t.Error("model stays for a request that did not arrive")
	}
}

// TestConductorAhead loads for the next request of a periodic stream.
func TestConductorAhead(t *testing.T) {
	const second = int64(time.Second)
	c, _ := testConductor(t, 100)
	a := c.serveMember(t, second, "a", 60, 10*time.Millisecond)
	for i := range int64(10) {
		a.Request(second + i*second)
	}
	c.serveMember(t, 10*second+second/2, "b", 60, 10*time.Millisecond)
	if c.plan(10*second + second*9/10); a.model.Moving || a.Resident() {
		t.Fatal("model is loaded long before it is expected")
	}
	now := 11*second - 15e6
	c.carryOut(t, now, func() bool { order, ok := a.Observe(now, Work{}); return ok && order == residency.Load })
}

// TestConductorStuck has a member whose framework does not return.
func TestConductorStuck(t *testing.T) {
	c, failed := testConductor(t, 100)
	ran := time.Duration(0)
	c.running = func() time.Duration { return ran }
	a := c.serveMember(t, 1, "a", 60, time.Millisecond)
	b := c.serveMember(t, 1, "b", 60, time.Millisecond) // a is evicted
	now := int64(time.Second)
	if order, ok := b.Observe(now, Work{}); ok {
		t.Fatalf("order %v without need", order)
	}
	a.Observe(now, waitingFor(now+int64(time.Second)))
	if order, ok := b.Observe(now, Work{}); !ok || order != residency.Evict {
		t.Fatalf("order %v, %v, want to evict", order, ok)
	}
	ran = stepPatience - 1
	if c.plan(now + int64(time.Hour)); *failed != nil { // the process was stopped for a while
		t.Fatalf("worker ends early: %v", *failed)
	}
	ran = stepPatience
	c.plan(now + int64(time.Hour))
	if !errors.Is(*failed, errStuck) || !strings.HasPrefix((*failed).Error(), "member b: ") {
		t.Errorf("worker ends with %v, want member b, which hangs", *failed)
	}
}

// TestConductorExceeded has a model that turns out to be larger than estimated.
func TestConductorExceeded(t *testing.T) {
	c, _ := testConductor(t, 100)
	now := int64(time.Second)
	a := c.serveMember(t, now, "a", 60, time.Millisecond)
	b := c.Join(now, Newcomer{Name: "b", WeightsBytes: 1, LoadOnce: true, Wake: func() {}})
	if order, ok := b.Observe(now, Work{}); !ok || order != residency.Load {
		t.Fatalf("order %v, %v for a model that fits by its estimate", order, ok)
	}
	b.Loaded(now, 60, time.Millisecond)
	b.Serve(now, time.Millisecond)
	// A request for a comes before a carries out the order. Without the eviction both models would stay as long
	// as requests come.
	if order, ok := a.Observe(now, waitingFor(now+int64(time.Second))); !ok || order != residency.Evict {
		t.Errorf("order %v, %v while the memory is exceeded, want to evict", order, ok)
	}
}

// TestConductorThrashing has twice the models that fit, and requests for all of them.
func TestConductorThrashing(t *testing.T) {
	c, _ := testConductor(t, 100)
	var all []*Member
	for i := range 4 {
		all = append(all, c.serveMember(t, int64(i+1), fmt.Sprint(i), 50, 50*time.Millisecond))
	}
	now := int64(0)
	for i := range int64(1000) {
		now = i * int64(10*time.Millisecond)
		for _, r := range all {
			r.Request(now)
		}
	}
	for _, r := range all {
		if got := r.Report(now); !got.Thrashing || got.NeededBytes != 200 {
			t.Fatalf("report %+v, want thrashing until 200 bytes", got)
		}
	}
}

// TestConductorPlanAllocations plans as often as a batch begins.
func TestConductorPlanAllocations(t *testing.T) {
	c, _ := testConductor(t, 100)
	a := c.serveMember(t, 1, "a", 50, time.Millisecond)
	c.serveMember(t, 1, "b", 50, time.Millisecond)
	now := int64(time.Second)
	if n := testing.AllocsPerRun(100, func() {
		a.Request(now)
		a.Observe(now, waitingFor(now+1000))
		a.Resident()
		a.Ran(now, time.Millisecond)
		a.Observe(now, Work{})
	}); n > 0 {
		t.Errorf("a batch allocates %v times", n)
	}
}

// TestConductorInvariants lets members do anything at any time. Their models never exceed the memory,
// one loads at a time, and a model with work stays. In the end every request can be served.
func TestConductorInvariants(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		random := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 1))
		memory := int64(100)
		c, failed := testConductor(t, memory)
		now := int64(1)
		type member struct {
			*Member
			begun   bool // it carries out an order
			order   residency.Op
			waiting int
		}
		var members []*member
		check := func() {
			var held int64
			loads := 0
			for _, m := range members {
				if m.model.State == residency.Resident || m.begun && m.order == residency.Load {
					held += m.model.WeightsBytes
				}
				if m.begun && m.order == residency.Load {
					loads++
				}
				if m.begun && m.order == residency.Evict && m.model.Waiting > 0 {
					rt.Fatalf("model with work is evicted")
				}
			}
			if held > memory || loads > 1 {
				rt.Fatalf("%d bytes of %d in memory, %d loads at once", held, memory, loads)
			}
			if *failed != nil {
				rt.Fatal(*failed)
			}
		}
		observe := func(m *member) {
			if m.begun {
				return
			}
			w := Work{Waiting: m.waiting, Deadline: now + random.Int64N(1000)}
			if random.IntN(5) == 0 {
				w.Arrived, w.ArriveBy, w.ArriveDue = true, now+random.Int64N(50), now+1000
			}
			m.order, m.begun = m.Observe(now, w)
		}
		finish := func(m *member, fails bool) {
			m.begun = false
			switch {
			case m.order == residency.Evict:
				m.Evicted(now)
			case fails:
				m.Failed(now, errLoad)
			default:
				m.Loaded(now, m.model.WeightsBytes, time.Duration(1+random.Int64N(100)))
				if !m.serves {
					m.Serve(now, 1)
				}
			}
		}
		for range rapid.IntRange(0, 300).Draw(rt, "events") {
			now += random.Int64N(20)
			if len(members) == 0 || random.IntN(20) == 0 && len(members) < 12 {
				m := &member{Member: c.Join(now, Newcomer{Name: fmt.Sprint(len(members)), WeightsBytes: 1 + random.Int64N(memory), LoadOnce: true, Wake: func() {}})}
				members = append(members, m)
			}
			i := random.IntN(len(members))
			m := members[i]
			switch random.IntN(8) {
			case 0:
				m.waiting++
				m.Request(now)
			case 1:
				if m.serves && m.Resident() && !m.begun {
					m.waiting = 0
					m.Ran(now, 1)
				}
			case 2, 3:
				if m.begun {
					finish(m, m.serves && random.IntN(5) == 0)
				}
			case 4:
				if random.IntN(10) == 0 { // drained, at any time
					m.Leave(now)
					members = append(members[:i], members[i+1:]...)
				}
			default:
				observe(m)
			}
			check()
		}

		// Without new requests, each waiting one finds its model. Loads may fail no more.
		for round := 0; ; round++ {
			now += int64(maxRetry)
			waits := false
			for _, m := range members {
				observe(m)
				if m.begun {
					finish(m, false)
				}
				if m.serves && m.Resident() && m.waiting > 0 {
					m.waiting = 0
					m.Ran(now, 1)
				}
				waits = waits || m.waiting > 0 || !m.serves
				check()
			}
			if !waits {
				break
			}
			if round > 200 {
				rt.Fatalf("members wait for ever: %+v", c.models)
			}
		}
	})
}

// TestConductorFixed reports the memory that no eviction frees.
func TestConductorFixed(t *testing.T) {
	c, _ := testConductor(t, 100)
	r := c.serveMember(t, 1, "a", 50, time.Millisecond)
	if _, err := c.lanes.Join(lane.Model{FixedBytes: 10, ScratchBytes: 5, WeightsBytes: 50}, func() {}); err != nil {
		t.Fatal(err)
	}
	if got := r.Report(2).FixedBytes; got != 15 {
		t.Errorf("%d fixed bytes, want 15", got)
	}
}
