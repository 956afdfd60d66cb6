package turns

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// unknown stands for free memory that a guest could not read.
const unknown = -1

func verbs(commands []Command) []string {
	words := []string{}
	for _, c := range commands {
		words = append(words, fmt.Sprint(c.Guest, " ", c.Verb))
	}
	return words
}

// attachAs adds a guest that has memory and a phase.
func attachAs(l *Lock, now time.Duration, id int, bytes int64, p Phase, free int64) {
	l.Attach(now, id, unknown)
	g := l.find(id)
	g.bytes, g.made, g.phase = bytes, bytes, p
	l.measure(now, g, free)
	l.settle(now)
}

func TestTurns(t *testing.T) {
	l := New(100, 0, 1000)
	var now time.Duration
	expect := func(commands []Command, want ...string) {
		t.Helper()
		if got := verbs(commands); !slices.Equal(got, want) {
			t.Fatalf("commands %q, want %q", got, want)
		}
	}
	need := func(id int, bytes int64, want ...string) {
		t.Helper()
		ok, commands := l.Need(now, id, bytes, unknown)
		if !ok {
			t.Fatalf("guest %d may not have %d bytes", id, bytes)
		}
		expect(commands, want...)
	}

	// Both run while both fit.
	expect(l.Attach(now, 1, 100))
	expect(l.Attach(now, 2, unknown))
	expect(l.Ask(now, 1), "1 go")
	expect(l.In(now, 1, 0, unknown))
	expect(l.Ask(now, 2), "2 go")
	expect(l.In(now, 2, 0, unknown))
	need(1, 75)
	need(2, 25)

	// More memory begins turns.
	need(2, 75, "2 stop")
	expect(l.Stopped(now, 2), "2 out")
	now += 400 * time.Millisecond
	expect(l.Gone(now, 2, time.Minute)) // it cannot have copied for longer than it took
	expect(l.Ask(now, 2), "1 wanted")
	if at, ok := l.Deadline(); !ok || at != minQuantum {
		t.Fatalf("the turn ends at %v, %v", at, ok)
	}
	expect(l.Tick(minQuantum - 1))
	now = minQuantum
	expect(l.Tick(now), "1 stop")
	expect(l.Stopped(now, 1), "1 out")
	now += time.Second
	expect(l.Gone(now, 1, 500*time.Millisecond), "2 go")
	now += 600 * time.Millisecond
	expect(l.In(now, 2, time.Minute, unknown))
	if l.Swap() != 1500*time.Millisecond {
		t.Errorf("a swap takes %v", l.Swap())
	}

	// The next turn is at least ten swaps long.
	commands := l.Ask(now, 1)
	expect(commands, "2 wanted")
	if c := commands[0]; c.Early != l.Swap() || c.Span != 10*l.Swap() {
		t.Errorf("the guest is told %+v", c)
	}
	if at, ok := l.Deadline(); !ok || at != now+maxQuantum {
		t.Errorf("the turn ends at %v, %v", at, ok)
	}

	// An idle guest gives up its turn, but keeps its memory until another needs the room.
	expect(l.Stopped(now, 2), "2 out")
	expect(l.Leave(now, 2), "1 go")
	expect(l.In(now, 1, 0, unknown))
	expect(l.Stopped(now, 1))
	expect(l.Ask(now, 1), "1 go")
}

func TestTurn(t *testing.T) {
	for swap, want := range map[time.Duration]time.Duration{
		0:                      time.Second,
		2 * time.Millisecond:   time.Second,
		100 * time.Millisecond: 10 * time.Second,
		400 * time.Millisecond: 30 * time.Second,
		4 * time.Second:        40 * time.Second,
	} {
		if got := (&Lock{swap: swap}).turn(); got != want {
			t.Errorf("with swaps of %v a turn takes %v, want %v", swap, got, want)
		}
	}
}

func TestRefuse(t *testing.T) {
	l := New(100, 0, 160)
	l.Attach(0, 1, 100)
	l.Attach(0, 2, unknown)
	for _, c := range []struct {
		guest int
		bytes int64
		ok    bool
	}{
		{1, 101, false}, // more than the GPU has
		{1, 100, true},
		{2, 61, false}, // more than the host can hold
		{2, 60, true},
		{3, 1, false},
		{2, -1, false},
	} {
		if ok, _ := l.Need(0, c.guest, c.bytes, unknown); ok != c.ok {
			t.Errorf("guest %d needs %d bytes: %v", c.guest, c.bytes, ok)
		}
	}
}

func TestShort(t *testing.T) {
	l := New(100, 0, 1000)
	for id := 1; id <= 2; id++ {
		l.Attach(0, id, 100)
		l.Ask(0, id)
		l.In(0, id, 0, unknown)
		l.Need(0, id, 40, unknown)
	}
	if got := verbs(l.Short(0, 2)); !slices.Equal(got, []string{"2 stop"}) || l.room() != 79 {
		t.Errorf("commands %q, room %d", got, l.room())
	}
	l.Leave(0, 1)
	if got := verbs(l.Short(0, 2)); !slices.Equal(got, []string{"2 empty"}) || l.room() != 79 {
		t.Errorf("commands %q, room %d", got, l.room())
	}
}

// TestCapture lets guests find no memory after Stop, as during a capture. The first one gets it in its turn.
func TestCapture(t *testing.T) {
	l := New(100, 0, 1000)
	attachAs(l, 0, 1, 60, Running, 40)
	attachAs(l, 0, 2, 20, Running, 20)
	need := func(id int, bytes int64) []Command {
		_, commands := l.Need(0, id, bytes, unknown)
		return commands
	}
	for i, step := range []struct {
		commands []Command
		want     string
	}{
		{need(2, 50), "[2 stop]"},
		{l.Short(0, 2), "[1 stop]"},
		{need(1, 70), "[]"},
		{l.Short(0, 1), "[1 empty]"},
		{l.Have(0, 1, 60, 60), "[]"},
		{l.Stopped(0, 1), "[1 out]"},
		{l.Ask(0, 1), "[]"},
		{l.Gone(0, 1, 0), "[]"},
		{l.Have(0, 2, 50, 50), "[]"},
		{l.Stopped(0, 2), "[2 out]"},
		{l.Gone(0, 2, 0), "[1 go]"},
	} {
		if got := fmt.Sprint(verbs(step.commands)); got != step.want {
			t.Fatalf("step %d: commands %s, want %s", i, got, step.want)
		}
	}
}

// TestEnd gives commands to guests that do not obey. Guest 1 has the turn at 0, and guest 2 is out.
func TestEnd(t *testing.T) {
	const stop = minQuantum // the end of the turn, if the other guest waits
	leave := func(l *Lock) { l.Ask(0, 2); l.Stopped(5, 1) }
	enter := func(l *Lock) { leave(l); l.Gone(6, 1, 0); l.Ask(7, 1) }
	for _, row := range []struct {
		name   string
		events func(*Lock)
		guest  int // that is ended; 0: none
		at     time.Duration
	}{
		{"does not stop", func(l *Lock) { l.Ask(0, 2) }, 1, stop + Grace},
		{"no other waits", func(l *Lock) { l.Ask(0, 2); l.Tick(stop); l.Leave(stop, 2); l.Ask(stop, 1) }, 0, 0},
		{"the other is paused", func(l *Lock) { l.Ask(0, 2); l.Tick(stop); l.Pause(stop, 2) }, 0, 0},
		{"another waits later", func(l *Lock) {
			l.Ask(0, 2)
			l.Tick(stop)
			l.Leave(stop, 2)
			attachAs(l, time.Hour, 3, 60, Out, unknown)
			l.Ask(time.Hour, 3)
		}, 1, time.Hour + Grace},
		{"obeys at last", func(l *Lock) {
			l.Ask(0, 2)
			l.Tick(stop)
			l.Stopped(stop+Grace-1, 1)
			l.Gone(stop+2*Grace-2, 1, 0)
			l.In(stop+3*Grace-3, 2, 0, unknown)
		}, 0, 0},
		{"does not leave", leave, 1, 5 + Grace},
		{"does not leave for a guest that grows", func(l *Lock) {
			l.Have(0, 1, 30, 30)
			l.Ask(0, 2)
			l.In(0, 2, 0, unknown)
			l.Stopped(0, 2)
			l.Need(5, 1, 60, unknown)
		}, 2, 5 + Grace},
		{"does not stop for a guest that grows later", func(l *Lock) {
			l.Have(0, 1, 30, 30)
			l.Ask(0, 2)
			l.In(0, 2, 0, unknown)
			l.Need(5, 1, 60, unknown)
			l.Have(6, 1, 30, 30)
			l.Need(time.Hour, 1, 60, unknown)
		}, 2, time.Hour + Grace},
		{"does not enter", enter, 2, 7 + Grace},
		{"finds no memory", func(l *Lock) { enter(l); l.Short(time.Hour, 2) }, 2, time.Hour + Grace},
	} {
		t.Run(row.name, func(t *testing.T) {
			l := New(100, 0, 1000)
			attachAs(l, 0, 1, 60, Running, 40)
			attachAs(l, 0, 2, 60, Out, unknown)
			row.events(l)
			for range 10 { // more than there are events
				now, _ := l.Deadline()
				for _, c := range l.Tick(now) {
					if c.Verb != End {
						continue
					}
					if c.Guest != row.guest || now != row.at {
						t.Fatalf("guest %d is ended after %v, want guest %d after %v", c.Guest, now, row.guest, row.at)
					}
					row.guest = 0
				}
			}
			if row.guest != 0 {
				t.Errorf("guest %d is not ended", row.guest)
			}
		})
	}
}

// TestPause pauses guest 1 of two, which has the turn.
func TestPause(t *testing.T) {
	var now time.Duration
	expect := func(t *testing.T, commands []Command, want ...string) {
		t.Helper()
		if got := verbs(commands); !slices.Equal(got, want) {
			t.Fatalf("commands %q, want %q", got, want)
		}
	}
	yielded := func(t *testing.T, l *Lock, want bool) {
		t.Helper()
		if l.Yielded(1) != want {
			t.Fatalf("yielded %v, want %v", !want, want)
		}
	}
	t.Run("another waits", func(t *testing.T) {
		l := New(100, 0, 1000)
		attachAs(l, 0, 1, 60, Running, 40)
		attachAs(l, 0, 2, 60, Out, unknown)
		l.Ask(0, 2)
		expect(t, l.Pause(now, 1), "1 stop")
		yielded(t, l, false)
		expect(t, l.Stopped(now, 1), "1 out")
		yielded(t, l, false)
		expect(t, l.Gone(now, 1, 0), "2 go")
		yielded(t, l, true)
		expect(t, l.Ask(now, 1)) // a thread that is not frozen yet
		expect(t, l.In(now, 2, 0, unknown))
		if at, ok := l.Deadline(); ok {
			t.Errorf("no guest waits, and the turn ends after %v", at)
		}
		expect(t, l.Resume(now, 1), "2 wanted")
		expect(t, l.Tick(minQuantum), "2 stop")
		expect(t, l.Stopped(minQuantum, 2), "2 out")
		expect(t, l.Gone(minQuantum, 2, 0), "1 go")
	})
	t.Run("others fit", func(t *testing.T) {
		l := New(100, 0, 1000)
		attachAs(l, 0, 1, 60, Out, 100)
		attachAs(l, 0, 2, 40, Out, unknown)
		attachAs(l, 0, 3, 40, Out, unknown)
		expect(t, l.Pause(now, 1))
		yielded(t, l, true)
		expect(t, l.Ask(now, 2), "2 go")
		expect(t, l.In(now, 2, 0, unknown))
		expect(t, l.Ask(now, 3), "3 go")
		expect(t, l.In(now, 3, 0, unknown))
		expect(t, l.Resume(now, 1), "3 stop")
	})
	t.Run("no room on the host", func(t *testing.T) {
		l := New(100, 0, 50)
		attachAs(l, 0, 1, 60, Running, 40)
		attachAs(l, 0, 2, 40, Running, unknown)
		expect(t, l.Pause(now, 1), "1 stop")
		expect(t, l.Stopped(now, 1))
		yielded(t, l, true)
		expect(t, l.Ask(now, 1))
		expect(t, l.Resume(now, 1), "1 go")
	})
	t.Run("memory cannot leave", func(t *testing.T) {
		l := New(100, 0, 1000)
		attachAs(l, 0, 1, 60, Running, 40)
		expect(t, l.Pause(now, 1), "1 stop")
		expect(t, l.Stopped(now, 1), "1 out")
		expect(t, l.Stuck(now, 1))
		yielded(t, l, true)
		expect(t, l.Resume(now, 1))
		expect(t, l.Pause(now, 1), "1 out") // it tries again
	})
}

// model is a guest that obeys until it hangs.
type model struct {
	id      int
	inbox   []Verb
	phase   Phase // Out, Stopped, Running
	bytes   int64 // that it may have
	created int64 // in its turn
	asked   bool
	work    int
	hangs   bool
	paused  bool
}

// TestRandomGuests lets guests come, grow, compute, idle, pause, hang and go in any order. Their messages
// are handled late. In the end each one that asked has run, unless it hangs or is paused.
func TestRandomGuests(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const capacity = 100
		l := New(capacity, 0, 1000)
		var now time.Duration
		var guests []*model
		var ended []int
		next := 0
		deliver := func(commands []Command) {
			for _, c := range commands {
				for _, g := range guests {
					if g.id != c.Guest {
						continue
					}
					if c.Verb == Go && g.paused {
						t.Fatalf("guest %d is paused and gets a turn", g.id)
					}
					g.inbox = append(g.inbox, c.Verb)
				}
				if c.Verb == End {
					ended = append(ended, c.Guest)
				}
			}
		}
		leave := func(id int) {
			guests = slices.DeleteFunc(guests, func(g *model) bool { return g.id == id })
			deliver(l.Leave(now, id))
		}
		tick := func() {
			deliver(l.Tick(now))
			for len(ended) > 0 {
				id := ended[0]
				ended = ended[1:]
				leave(id)
			}
		}
		ask := func(g *model) {
			if !g.asked && g.phase != Running {
				g.asked = true
				deliver(l.Ask(now, g.id))
			}
		}
		handle := func(g *model) {
			if g.hangs || len(g.inbox) == 0 {
				return
			}
			verb := g.inbox[0]
			g.inbox = g.inbox[1:]
			switch verb {
			case Go:
				g.phase, g.asked = Running, false
				g.work++
				g.created = g.bytes
				deliver(l.In(now, g.id, time.Millisecond, unknown))
			case Stop:
				if g.phase == Running {
					g.phase = Stopped
					deliver(l.Stopped(now, g.id))
				}
			case Evict:
				if g.phase == Running {
					t.Fatalf("guest %d is to leave while it runs", g.id)
				}
				g.phase = Out
				deliver(l.Gone(now, g.id, time.Millisecond))
			}
		}

		// settled handles all messages, then checks that turns and memory are right.
		settled := func() {
			for slices.ContainsFunc(guests, func(g *model) bool { return !g.hangs && len(g.inbox) > 0 }) {
				for _, g := range guests {
					handle(g)
				}
			}
			if slices.ContainsFunc(guests, func(g *model) bool { return g.hangs }) {
				return // it may still run
			}
			var wanted, resident int64
			running := 0
			for _, g := range guests {
				if g.paused {
					if g.phase != Out || !l.Yielded(g.id) {
						t.Fatalf("guest %d is paused and has phase %v", g.id, g.phase)
					}
					continue
				}
				wanted += g.bytes
				if g.phase == Running {
					g.created = g.bytes
					running++
				}
				if g.phase != Out {
					resident += g.created
				}
			}
			if wanted > capacity && running > 1 || running > 0 && resident > capacity {
				t.Fatalf("%d guests run; %d bytes are wanted, %d are on the GPU", running, wanted, resident)
			}
		}

		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			now += time.Duration(rapid.IntRange(0, 2000).Draw(t, "ms")) * time.Millisecond
			if len(guests) == 0 || (len(guests) < 4 && rapid.IntRange(0, 9).Draw(t, "come") == 0) {
				next++
				guests = append(guests, &model{id: next, phase: Stopped})
				free := int64(unknown)
				if next == 1 {
					free = capacity
				}
				deliver(l.Attach(now, next, free))
				continue
			}
			g := rapid.SampledFrom(guests).Draw(t, "guest")
			if rapid.IntRange(0, 50).Draw(t, "hang") == 0 {
				g.hangs = true
			}
			if g.hangs {
				now += Grace / 4
				tick()
				continue
			}
			switch rapid.IntRange(0, 7).Draw(t, "event") {
			case 0:
				ask(g)
			case 7:
				if g.paused = !g.paused; g.paused {
					deliver(l.Pause(now, g.id))
				} else {
					deliver(l.Resume(now, g.id))
				}
			case 1:
				bytes := rapid.Int64Range(0, capacity).Draw(t, "bytes")
				// Only a guest in its turn creates memory.
				if bytes < g.bytes {
					g.bytes, g.created = bytes, min(g.created, bytes)
					deliver(l.Have(now, g.id, bytes, bytes))
				} else if ok, commands := l.Need(now, g.id, bytes, unknown); ok {
					g.bytes = bytes
					deliver(commands)
				}
			case 2:
				if g.phase == Running && len(g.inbox) == 0 { // idle
					g.phase = Stopped
					deliver(l.Stopped(now, g.id))
				}
			case 3:
				if rapid.IntRange(0, 3).Draw(t, "leave") == 0 {
					leave(g.id)
				}
			case 4:
				tick()
				settled()
			default:
				handle(g)
			}
		}

		// From now on each guest asks once, and is never idle.
		before := map[int]int{}
		for _, g := range guests {
			before[g.id] = g.work
			if g.phase == Running {
				before[g.id]--
			}
			ask(g)
		}
		for range 100 {
			now += 10 * time.Second
			tick()
			settled()
		}
		for _, g := range guests {
			if !g.hangs && !g.paused && (g.asked || g.work == before[g.id]) {
				t.Fatalf("guest %d never ran: %+v, %+v", g.id, g, l)
			}
		}
	})
}
