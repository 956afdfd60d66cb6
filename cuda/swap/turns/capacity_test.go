package turns

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestCapacity(t *testing.T) {
	const limit, margin, free = 100, 10, 90 // functions have 10
	newLock := func() *Lock {
		l := New(limit, margin, 1000)
		l.Attach(0, 1, free)
		l.Attach(0, 2, free)
		for id := 1; id <= 2; id++ {
			l.Ask(0, id)
			l.In(0, id, 0, unknown)
		}
		return l
	}
	for _, c := range []struct {
		name   string
		events func(*Lock)
		want   int64
	}{
		{"first", func(*Lock) {}, free - margin},
		{"functions take memory", func(l *Lock) { l.Need(0, 1, 0, free-50) }, free - 50 - margin},
		{"and give it back", func(l *Lock) { l.Need(0, 1, 0, 20); l.Need(0, 2, 0, free) }, free - margin},
		{"never negative", func(l *Lock) { l.Need(0, 1, 0, margin-1) }, 0},
		{"never more than the limit", func(l *Lock) { l.Need(0, 1, 0, 1000) }, limit},
		{"memory of guests", func(l *Lock) { l.Need(0, 1, 30, free); l.Have(0, 1, 30, 30); l.Need(0, 2, 10, free-30) }, free - margin},
		{"reserve", func(l *Lock) { l.Reserve(30); l.Need(0, 1, 0, free) }, free - margin - 30},
		{"unknown", func(l *Lock) { l.Need(0, 1, 0, unknown) }, free - margin},
		{"while another makes memory", func(l *Lock) { l.Need(0, 1, 30, free); l.Need(0, 2, 10, free-20) }, free - margin},
		{"while memory moves", func(l *Lock) { l.Stopped(0, 2); l.Ask(0, 2); l.Need(0, 1, 0, free-50) }, free - margin},
		{"after another ended", func(l *Lock) { l.Leave(0, 2); l.Need(ReturnTime-1, 1, 0, free-50) }, free - margin},
		{"later", func(l *Lock) { l.Leave(0, 2); l.Need(ReturnTime, 1, 0, free-50) }, free - 50 - margin},
		{"shortage", func(l *Lock) {
			for id := 1; id <= 2; id++ {
				l.Need(0, id, 30, unknown)
				l.Have(0, id, 30, 30)
			}
			l.Short(0, 2)
			if l.room() != 59 {
				t.Errorf("after a shortage guests may have %d, want 59", l.room())
			}
			l.Need(0, 2, 30, free-60)
			if l.room() != l.Capacity() {
				t.Errorf("after a measurement guests may have %d, want %d", l.room(), l.Capacity())
			}
		}, free - margin},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newLock()
			if c.events(l); l.Capacity() != c.want {
				t.Errorf("capacity %d, want %d", l.Capacity(), c.want)
			}
		})
	}
}

// TestReturn brings memory back to the GPU.
func TestReturn(t *testing.T) {
	expect := func(t *testing.T, commands []Command, want ...string) {
		t.Helper()
		if got := verbs(commands); !slices.Equal(got, want) {
			t.Fatalf("commands %q, want %q", got, want)
		}
	}
	t.Run("one at a time", func(t *testing.T) {
		l := New(100, 0, 1000)
		attachAs(l, 0, 1, 80, Running, 20)
		attachAs(l, 0, 2, 40, Out, unknown)
		attachAs(l, 0, 3, 40, Out, unknown)
		l.Ask(0, 2)
		l.Ask(0, 3)
		expect(t, l.Leave(0, 1), "2 go")
		expect(t, l.In(0, 2, 0, 60), "3 go")
	})
	t.Run("shortage", func(t *testing.T) {
		l := New(100, 0, 1000)
		attachAs(l, 0, 1, 30, Running, 70)
		attachAs(l, 0, 2, 60, Out, unknown)
		expect(t, l.Ask(0, 2), "2 go")
		expect(t, l.Short(0, 2), "1 stop") // functions have taken 20
		expect(t, l.Stopped(0, 1), "1 out")
		expect(t, l.Gone(0, 1, 0))
		expect(t, l.In(messageTime, 2, 0, 20))
		expect(t, l.Ask(messageTime, 1), "2 wanted")
		if l.Capacity() != 80 {
			t.Errorf("capacity %d, want 80", l.Capacity())
		}
	})
}

// machine is a GPU with guests that obey, and with functions whose memory changes.
type machine struct {
	*Lock
	t         *rapid.T
	now       time.Duration
	functions int64
	guests    []*resident
	evictions int
}

// resident is a guest of a machine.
type resident struct {
	id             int
	granted, made  int64
	phase          Phase
	commands       []Verb
	asked, growing bool
	runs           int
}

const machineBytes, machineMargin = 200, 10

func (m *machine) free() int64 {
	free := machineBytes - m.functions
	for _, g := range m.guests {
		if g.phase != Out {
			free -= g.made
		}
	}
	if free < 0 {
		m.t.Fatalf("the GPU holds %d bytes too much", -free)
	}
	return free
}

func (m *machine) deliver(commands []Command) {
	for _, c := range commands {
		for _, g := range m.guests {
			if g.id == c.Guest && c.Verb != Wanted && c.Verb != Empty {
				g.commands = append(g.commands, c.Verb)
			}
		}
	}
}

func (m *machine) come(id int) {
	free := m.free()
	m.guests = append(m.guests, &resident{id: id, phase: Stopped})
	m.deliver(m.Attach(m.now, id, free))
}

func (m *machine) leave(g *resident) {
	m.guests = slices.DeleteFunc(m.guests, func(other *resident) bool { return other == g })
	m.deliver(m.Leave(m.now, g.id))
}

func (m *machine) ask(g *resident) {
	if g.phase != Running && !g.asked {
		g.asked = true
		m.deliver(m.Ask(m.now, g.id))
	}
}

// need asks for memory, and step makes it.
func (m *machine) need(g *resident, bytes int64) {
	if g.growing || bytes <= g.made {
		return
	}
	ok, commands := m.Need(m.now, g.id, bytes, m.free())
	if m.deliver(commands); ok {
		g.granted, g.growing = bytes, true
	}
}

// step lets a guest obey one command and make its memory, if it can.
func (m *machine) step(g *resident) {
	if len(g.commands) > 0 {
		switch g.commands[0] {
		case Go:
			if g.phase == Out && m.free() < g.made {
				m.deliver(m.Short(m.now, g.id))
				return // it tries again
			}
			g.phase, g.asked = Running, false
			g.runs++
			m.deliver(m.In(m.now, g.id, time.Millisecond, m.free()))
		case Stop:
			if g.phase == Running {
				g.phase = Stopped
				m.deliver(m.Stopped(m.now, g.id))
			}
		case Evict:
			if g.phase == Running {
				m.t.Fatalf("guest %d is to leave while it runs", g.id)
			}
			m.evictions++
			g.phase = Out
			m.deliver(m.Gone(m.now, g.id, time.Millisecond))
		}
		g.commands = g.commands[1:]
	}
	if g.growing && g.phase == Running {
		if m.free() < g.granted-g.made {
			m.deliver(m.Short(m.now, g.id))
			return
		}
		g.made, g.growing = g.granted, false
		m.deliver(m.Have(m.now, g.id, g.granted, g.made))
	}
}

// TestChangingFunctions lets functions take and give back memory while guests come, grow, run, idle
// and go, in any order. In the end functions keep what they have, and each guest has run again. If guests
// then fit together, they take no turns.
func TestChangingFunctions(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &machine{Lock: New(machineBytes, machineMargin, 1000), t: t}
		next := 0
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			m.now += time.Duration(rapid.IntRange(0, 2000).Draw(t, "ms")) * time.Millisecond
			if len(m.guests) == 0 || len(m.guests) < 4 && rapid.IntRange(0, 9).Draw(t, "come") == 0 {
				next++
				m.come(next)
				continue
			}
			g := rapid.SampledFrom(m.guests).Draw(t, "guest")
			switch rapid.IntRange(0, 9).Draw(t, "event") {
			case 0:
				m.functions = rapid.Int64Range(0, m.functions+m.free()).Draw(t, "functions")
			case 1:
				m.ask(g)
			case 2:
				m.need(g, rapid.Int64Range(0, machineBytes).Draw(t, "bytes"))
			case 3:
				if g.phase == Running && len(g.commands) == 0 && !g.growing { // idle
					g.phase = Stopped
					m.deliver(m.Stopped(m.now, g.id))
				}
			case 4:
				if rapid.IntRange(0, 3).Draw(t, "leave") == 0 {
					m.leave(g)
				}
			case 5:
				m.deliver(m.Tick(m.now))
			default:
				m.step(g)
			}
		}

		// Functions keep the rest, and each guest fits alone.
		var most, all int64
		for _, g := range m.guests {
			most, all = max(most, g.granted), all+g.granted
		}
		m.functions = min(m.functions, machineBytes-machineMargin-most)
		rounds := func(n int) {
			for range n {
				m.now += 10 * time.Second
				for _, g := range m.guests {
					m.ask(g)
					m.step(g)
				}
				m.deliver(m.Tick(m.now))
			}
		}
		rounds(100)
		settled, before := m.evictions, make([]int, len(m.guests))
		for i, g := range m.guests {
			before[i] = g.runs
		}
		rounds(100)

		want := machineBytes - machineMargin - m.functions
		turned := false
		for i, g := range m.guests {
			if g.phase != Running && (all <= want || g.runs == before[i]) {
				t.Fatalf("guest %d does not run: %+v, %+v", g.id, g, m.Lock)
			}
			turned = turned || g.runs > before[i]
		}
		if all <= want && (turned || m.evictions > settled) {
			t.Fatalf("guests that fit together take turns: %+v", m.Lock)
		}
		if turned && m.Capacity() != want {
			t.Fatalf("capacity %d, want %d: %+v", m.Capacity(), want, m.Lock)
		}
	})
}
