package gate

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/libml/lane"
)

// orderedDevice records whose batch the next one of a device waits for.
type orderedDevice struct {
	device.Device
	after []device.Ordered
}

func (d *orderedDevice) Follow(_ int, other device.Ordered, _ int) error {
	d.after = append(d.after, other)
	return nil
}

func joinOrdered(t *testing.T, s *Lanes) *member {
	t.Helper()
	m := joinLanes(t, s, 1)
	m.SetDevice(&orderedDevice{}, nil)
	return m
}

// TestQueuedTurns has batches of 100 ns, and a lead of 10 ns.
func TestQueuedTurns(t *testing.T) {
	const takes, lead = 100, 10
	demoted := due(5000)
	demoted.Demoted = true
	setup := func(t *testing.T) (l *laneQueue, a, b, c *member) {
		s, err := NewLanes(1, lane.EDF, Unlimited)
		must.OK(t, err)
		a, b, c = joinOrdered(t, s), joinOrdered(t, s), joinOrdered(t, s)
		l = a.of
		l.lead = lead
		if !a.Take(0, due(1000)) {
			t.Fatal("a may not begin in a free lane")
		}
		return l, a, b, c
	}

	t.Run("order", func(t *testing.T) {
		l, a, b, c := setup(t)
		if b.Take(99, due(900)) {
			t.Error("b may begin before a is launched")
		}
		a.Launch(0, 0, takes, 0)
		if b.Take(50, due(900)) {
			t.Error("b may begin long before a ends")
		}
		if left := a.Offer(60); left != 30 {
			t.Errorf("a is near its end in %v, want 30 ns", left)
		}
		c.Take(70, due(800))
		b.woken, c.woken = 0, 0
		if left := a.Offer(90); left != 0 || l.queued != c.Place || c.woken != 1 || b.woken != 0 {
			t.Errorf("offered again in %v; b woken %d times, c %d; want only c, whose deadline is earlier", left, b.woken, c.woken)
		}
		if b.Take(91, due(100)) {
			t.Error("a third batch may begin")
		}
		if !c.Take(92, due(800)) {
			t.Error("c may not begin in its turn")
		}
		if followed, err := c.Follow(0); !followed || err != nil || c.device.(*orderedDevice).after[0] != a.device {
			t.Errorf("c follows: %v, %v; want it behind a", followed, err)
		}
		c.Launch(0, 93, takes, 0)
		if left := c.Offer(95); left < 5 {
			t.Errorf("c should ask again in %v; want not before the end of a", left)
		}
		if a.End(110) != 0 || l.running != c.Place || l.queued != nil {
			t.Error("c is not the running one after a")
		}
		if left := c.Offer(111); left != 89 {
			t.Errorf("c is near its end in %v, want 89 ns: it began at the end of a", left)
		}
		if c.Offer(200); l.queued != b.Place {
			t.Error("b is not queued behind c")
		}
		if began := c.End(215); began != 110 || c.job.Served != 105 || l.running != b.Place {
			t.Errorf("c began at %d and had %v, want 110 and 105 ns, and then b", began, c.job.Served)
		}
		if followed, _ := b.Follow(0); followed {
			t.Error("b waits for a batch that has ended")
		}
	})
	t.Run("place is free later", func(t *testing.T) {
		l, a, b, _ := setup(t)
		a.Launch(0, 0, takes, 0)
		if a.Offer(90); l.queued != nil {
			t.Error("a batch is queued that no member has")
		}
		if !b.Take(92, due(900)) || l.running != a.Place {
			t.Error("b may not begin behind a, which is near its end")
		}
	})
	t.Run("half of a short batch", func(t *testing.T) {
		l, a, b, _ := setup(t)
		l.lead = time.Second
		a.Launch(0, 0, takes, 0)
		if b.Take(49, due(900)) || !b.Take(50, due(900)) {
			t.Error("b may not begin in the second half of a batch only")
		}
	})
	t.Run("queued one ends first", func(t *testing.T) {
		l, a, b, c := setup(t)
		a.Launch(0, 0, takes, 0)
		b.Take(95, due(900))
		b.Launch(0, 95, takes, 0)
		if b.End(205) != 0 || b.job.Served != takes || l.running != a.Place {
			t.Errorf("b has had %v, want what it was expected to take, and a still to end", b.job.Served)
		}
		if !c.Take(206, due(900)) || l.queued != c.Place {
			t.Error("c may not begin behind a")
		}
		a.End(207)
		if !c.Take(208, due(900)) || l.running != c.Place {
			t.Error("c lost its turn")
		}
	})
	t.Run("queued one withdraws", func(t *testing.T) {
		l, a, b, c := setup(t)
		a.Launch(0, 0, takes, 0)
		b.Take(95, due(900))
		c.Take(96, due(900))
		b.Leave(97)
		if l.queued != c.Place || !c.Take(98, due(900)) {
			t.Error("c is not queued after b left")
		}
	})
	t.Run("running one leaves", func(t *testing.T) {
		l, a, b, _ := setup(t)
		a.Launch(0, 0, takes, 0)
		b.Take(95, due(900))
		a.Leave(96)
		if l.running != b.Place || !b.Take(97, due(900)) {
			t.Error("b does not run after a left")
		}
	})
	t.Run("demoted", func(t *testing.T) {
		l, a, b, c := setup(t)
		a.Launch(0, 0, takes, 0)
		if b.Take(95, demoted) {
			t.Error("a demoted batch is queued")
		}
		if !c.Take(96, due(900)) {
			t.Error("a demoted batch that waits keeps others from the place")
		}
		c.Withdraw(97)
		b.Withdraw(97)
		b.Take(98, due(900))
		if b.Take(99, demoted) || l.queued != nil {
			t.Error("a batch keeps its place after its guarantee was used up")
		}
		if a.End(100); l.running != b.Place {
			t.Error("the demoted batch does not run when the lane is free")
		}
	})
	t.Run("alone", func(t *testing.T) {
		_, a, b, c := setup(t)
		b.Leave(1)
		c.Leave(1)
		a.Launch(0, 0, takes, 0)
		if left := a.Offer(2); left != 0 {
			t.Errorf("a member without others is to ask in %v", left)
		}
	})
	t.Run("lead", func(t *testing.T) {
		l, a, b, _ := setup(t)
		a.Launch(0, 0, takes, 0)
		b.Take(92, due(900))
		if b.Launch(0, 100, takes, 18); l.lead != 12 {
			t.Errorf("lead of %v, want 10 ns and an eighth of what 8 + 18 ns are more", l.lead)
		}
	})
}

// turnsModel is one lane with a device that runs what it is given in the order of follow.
type turnsModel struct {
	t       *rapid.T
	l       *laneQueue
	members []*member
	began   []bool // the member's batch has begun, and has not ended
	on      []bool // it is on the device
	woken   []int  // how often it had been woken when it began to wait; -1 if it does not wait
	now     int64
}

// check checks what must hold after each step.
func (m *turnsModel) check() {
	l := m.l
	switch {
	case l.running == nil && l.queued != nil:
		m.t.Fatal("a batch is queued behind none")
	case l.running != nil && l.running == l.queued:
		m.t.Fatal("a batch is queued behind itself")
	case l.queued != nil && !l.running.launched:
		m.t.Fatal("a batch is queued behind one that is not on the device")
	}
	for i, o := range m.members {
		has := l.running == o.Place || l.queued == o.Place
		switch {
		case l.running == nil && o.waits:
			m.t.Fatalf("member %d waits for a free lane", i)
		case has && o.waits:
			m.t.Fatalf("member %d waits in its turn", i)
		case m.began[i] && !has:
			m.t.Fatalf("member %d lost its turn", i)
		case has && m.woken[i] == o.woken:
			m.t.Fatalf("member %d is not woken for its turn", i)
		case l.queued == o.Place && o.job.Demoted:
			m.t.Fatalf("a demoted batch of member %d is queued", i)
		}
		if m.woken[i] = -1; o.waits {
			m.woken[i] = o.woken
		}
	}
}

// TestTurnsHistories makes random steps. Never more than one batch runs and one is queued, the order on the
// device is that of the turns, and no member waits for a free lane.
func TestTurnsHistories(t *testing.T) {
	for _, policy := range lane.Names() {
		t.Run(policy, func(t *testing.T) {
			rapid.Check(t, func(r *rapid.T) {
				s, err := NewLanes(1, policy, Unlimited)
				must.OK(t, err)
				m := &turnsModel{t: r, members: make([]*member, 4), began: make([]bool, 4), on: make([]bool, 4), woken: []int{-1, -1, -1, -1}}
				join := func(i int) { m.members[i] = joinOrdered(t, s) }
				for i := range m.members {
					join(i)
				}
				m.l = m.members[0].of
				m.l.lead = 20
				for range rapid.IntRange(1, 60).Draw(r, "steps") {
					m.now += rapid.Int64Range(0, 40).Draw(r, "time")
					i := rapid.IntRange(0, len(m.members)-1).Draw(r, "member")
					o := m.members[i]
					switch rapid.IntRange(0, 9).Draw(r, "step") {
					case 0:
						o.Offer(m.now)
					case 1:
						if !m.began[i] {
							o.Withdraw(m.now)
						}
					case 2:
						if !m.began[i] {
							o.Leave(m.now)
							join(i)
						}
					case 3, 4, 5:
						if m.on[i] { // the device ends the running batch first
							m.end(i)
						}
					default:
						m.begin(i, rapid.IntRange(0, 3).Draw(r, "demoted") == 0)
					}
					m.check()
				}
			})
		})
	}
}

// begin takes a turn if the member has no batch, begins the batch, or puts it on the device.
func (m *turnsModel) begin(i int, demoted bool) {
	o := m.members[i]
	job := due(m.now + 200)
	job.Demoted = demoted
	switch {
	case m.began[i]:
		o.Launch(0, m.now, 50, 5)
		m.on[i] = true
	case o.Take(m.now, job):
		d := o.device.(*orderedDevice)
		d.after = d.after[:0]
		queued := m.l.queued == o.Place
		if followed, err := o.Follow(0); followed != queued || err != nil {
			m.t.Fatalf("member %d follows: %v, %v; want %v", i, followed, err, queued)
		}
		if queued && d.after[0] != m.l.running.device {
			m.t.Fatalf("member %d does not follow the running batch", i)
		}
		m.began[i] = true
		if demoted { // never launched
			o.End(m.now)
			m.began[i] = false
		}
	}
}

func (m *turnsModel) end(i int) {
	m.members[i].End(m.now)
	m.began[i], m.on[i] = false, false
}

// TestQueuedTurnsShares runs members that always have a batch, in virtual time, with and without a queue.
// Each gets about as many turns with one as without; fair gives equal time.
func TestQueuedTurnsShares(t *testing.T) {
	const members, turns = 5, 1000
	for _, policy := range []string{lane.EDF, lane.FIFO, lane.FAIR} {
		t.Run(policy, func(t *testing.T) {
			without, with := turnsOf(t, policy, members, turns, false), turnsOf(t, policy, members, turns, true)
			t.Logf("turns without a queue %v, with one %v", without, with)
			for i := range without {
				if policy != lane.FAIR && with[i] < without[i]*9/10 {
					t.Errorf("member %d has %d turns with a queue, %d without", i, with[i], without[i])
				}
				if equal := with[0] / (i + 1); policy == lane.FAIR && (with[i] < equal-2 || with[i] > equal+2) {
					t.Errorf("member %d has %d turns, want %d: as much time as the first", i, with[i], equal)
				}
			}
		})
	}
}

// turnsOf returns how many of the turns each member gets. The batches of member i take 10 (i + 1).
func turnsOf(t *testing.T, policy string, members, turns int, queue bool) []int {
	s, err := NewLanes(1, policy, Unlimited)
	must.OK(t, err)
	var all []*member
	ready, began := make([]int64, members), make([]bool, members) // when the next request was complete
	for range members {
		m := joinLanes(t, s, 1)
		if queue {
			m.SetDevice(&orderedDevice{}, nil)
		}
		all = append(all, m)
	}
	l := all[0].of
	l.lead = 4
	now, had := int64(0), make([]int, members)
	takes := func(i int) int64 { return int64(10 * (i + 1)) }
	random := rand.New(rand.NewPCG(1, 2))
	order := make([]int, members)
	for i := range order {
		order[i] = i
	}
	ask := func() {
		random.Shuffle(members, func(a, b int) { order[a], order[b] = order[b], order[a] })
		for _, i := range order {
			m := all[i]
			if began[i] {
				continue
			}
			job := lane.Job{Complete: ready[i], Deadline: ready[i] + 1000, Batch: time.Duration(takes(i)), Requests: 1}
			if m.Take(now, job) {
				m.Launch(0, now, time.Duration(takes(i)), 0)
				began[i] = true
			}
		}
	}
	for range turns {
		ask()
		i := slices.IndexFunc(all, func(m *member) bool { return m.Place == l.running })
		if i < 0 {
			t.Fatal("no batch runs although all members have one")
		}
		if queue {
			now = max(now, all[i].began+takes(i)-l.lead.Nanoseconds())
			all[i].Offer(now)
			ask()
		}
		now = max(now, all[i].began+takes(i))
		had[i]++
		began[i], ready[i] = false, now
		all[i].End(now)
	}
	return had
}

// While another process waits for its turn on the GPU, no batch is queued behind the running one.
func TestQueueNextToProcesses(t *testing.T) {
	for name, c := range map[string]struct{ perLevel, awaited, queued bool }{
		"no other process waits":  {true, false, true},
		"another process waits":   {true, true, false},
		"one turn for all levels": {false, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := NewLanes(1, lane.EDF, Unlimited)
			must.OK(t, err)
			turns := []*level{{turn: &fakeTurn{}}, {turn: &fakeTurn{awaited: c.awaited}}}
			if !c.perLevel {
				turns = turns[:1]
			}
			a, b := joinLanes(t, s, 1), joinLanes(t, s, 1)
			for _, m := range []*member{a, b} {
				m.SetDevice(&orderedDevice{}, &Entry{levels: turns})
				m.Take(0, due(math.MaxInt64))
			}
			a.Launch(0, 0, 100, 0)
			a.Offer(95)
			if queued := a.of.queued == b.Place; queued != c.queued {
				t.Errorf("a batch is queued: %v, want %v", queued, c.queued)
			}
		})
	}
}

// TestQueuedTurnAllocations queues a batch as often as one begins.
func TestQueuedTurnAllocations(t *testing.T) {
	s, err := NewLanes(1, lane.EDF, Unlimited)
	must.OK(t, err)
	a, b := joinOrdered(t, s), joinOrdered(t, s)
	a.device.(*orderedDevice).after = make([]device.Ordered, 0, 1<<12)
	b.device.(*orderedDevice).after = make([]device.Ordered, 0, 1<<12)
	now := int64(0)
	if n := testing.AllocsPerRun(100, func() {
		for _, m := range []*member{a, b} {
			m.Take(now, due(math.MaxInt64))
			m.Follow(0)
			m.Launch(0, now, 100, 0)
			now += 95
			m.Offer(now)
		}
		a.End(now)
		b.End(now)
	}); n > 0 {
		t.Errorf("queued turns allocate %v times", n)
	}
}
