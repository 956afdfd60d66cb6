package residency

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/testing/must"
	"pgregory.net/rapid"
)

const ms = time.Millisecond

func at(millis int64) int64 { return millis * int64(ms) }

// evicted is a model of some megabytes without work.
func evicted(size int64) Model {
	return Model{State: Evicted, WeightsBytes: size, Load: time.Duration(size) * ms, Batch: ms}
}

func resident(size int64, rate float64) Model {
	m := evicted(size)
	m.State, m.Rate = Resident, rate
	return m
}

// asked returns a model with a request.
func asked(m Model, deadline int64) Model {
	m.Arriving, m.Deadline = 1, at(deadline)
	return m
}

func TestPlan(t *testing.T) {
	moving := func(m Model) Model { m.Moving, m.Ends = true, at(100); return m }
	ends := func(m Model, end int64) Model { m.Moving, m.Ends = true, at(end); return m }
	in := func(s State, m Model) Model { m.State = s; return m }
	periodic := func(expected int64) Model {
		m := evicted(5)
		m.Expected, m.Period = at(expected), 100*ms
		return m
	}
	used := func(m Model, when int64) Model { m.Used = when; return m }
	tests := map[string]struct {
		memory int64
		models []Model
		want   []Step
	}{
		"no work":                   {10, []Model{evicted(5), resident(5, 1)}, nil},
		"first packet":              {10, []Model{asked(evicted(5), 25)}, []Step{{0, Load}}},
		"complete request":          {10, []Model{{State: Evicted, Waiting: 1, Deadline: at(25)}}, []Step{{0, Load}}},
		"under way":                 {10, []Model{asked(moving(evicted(5)), 25)}, nil},
		"larger than the memory":    {4, []Model{asked(evicted(5), 25), resident(2, 1)}, nil},
		"one load at a time":        {20, []Model{asked(evicted(5), 25), asked(evicted(5), 24)}, []Step{{1, Load}}},
		"one is under way":          {20, []Model{asked(evicted(5), 25), moving(asked(evicted(5), 24))}, nil},
		"one ends soon":             {20, []Model{asked(evicted(5), 25), ends(asked(evicted(5), 24), 2)}, []Step{{0, Load}}},
		"one ends later":            {20, []Model{asked(evicted(5), 25), ends(asked(evicted(5), 24), 3)}, nil},
		"one should have ended":     {20, []Model{asked(evicted(5), 25), ends(asked(evicted(5), 24), -1)}, []Step{{0, Load}}},
		"two are under way":         {20, []Model{asked(evicted(5), 25), ends(evicted(5), -1), ends(evicted(5), 1)}, nil},
		"memory of a load is taken": {10, []Model{asked(evicted(6), 25), ends(evicted(5), 1)}, nil},
		"earliest start first":      {20, []Model{asked(evicted(2), 25), asked(evicted(9), 30)}, []Step{{1, Load}}},
		"late one last":             {20, []Model{asked(evicted(9), 5), asked(evicted(2), 50)}, []Step{{1, Load}}},
		"lowest rate goes":          {10, []Model{resident(5, 2), resident(5, 1), asked(evicted(5), 25)}, []Step{{1, Evict}, {2, Load}}},
		"equal rates: the oldest":   {10, []Model{used(resident(5, 1), 7), used(resident(5, 1), 3), asked(evicted(5), 25)}, []Step{{1, Evict}, {2, Load}}},
		"several go":                {10, []Model{resident(3, 3), resident(3, 2), resident(3, 1), asked(evicted(6), 25)}, []Step{{1, Evict}, {2, Evict}, {3, Load}}},
		"a large victim suffices":   {10, []Model{resident(2, 1), resident(8, 9), asked(evicted(8), 25)}, []Step{{1, Evict}, {2, Load}}},
		"work stays":                {10, []Model{asked(resident(5, 1), 25), in(Active, resident(5, 1)), asked(evicted(5), 25)}, nil},
		"another that fits":         {10, []Model{in(Active, resident(5, 1)), asked(evicted(6), 25), asked(evicted(5), 30)}, []Step{{2, Load}}},
		"late: room":                {10, []Model{asked(evicted(5), 2)}, []Step{{0, Load}}},
		"late: others are worth more": {10, []Model{resident(5, 1), resident(5, 1), asked(evicted(5), 2)},
			nil},
		"late: worth more itself": {10, []Model{resident(5, 1), resident(5, 1), func() Model { m := asked(evicted(5), 2); m.Rate = 2; return m }()},
			[]Step{{0, Evict}, {2, Load}}},
		"periodic, too early":     {10, []Model{periodic(11)}, nil},
		"periodic, ahead":         {10, []Model{periodic(10)}, []Step{{0, Load}}},
		"periodic, did not come":  {10, []Model{periodic(-100)}, nil},
		"periodic one that stays": {10, []Model{in(Resident, periodic(9)), asked(evicted(6), 25)}, nil},
		"room for a larger lane":  {10, []Model{resident(5, 2), resident(5, 1), resident(5, 3), asked(evicted(1), 25)}, []Step{{1, Evict}}},
		"excess that idle models do not end": {5, []Model{asked(resident(9, 1), 25), resident(3, 2), resident(3, 1), asked(evicted(1), 25)},
			[]Step{{2, Evict}, {1, Evict}}},
	}
	for name, c := range tests {
		t.Run(name, func(t *testing.T) {
			w := Worker{MemoryBytes: c.memory, Ahead: 2 * ms}
			if got := w.Plan(0, c.models); !slices.Equal(got, c.want) {
				t.Errorf("plan %v, want %v", got, c.want)
			}
		})
	}
}

func TestPlanOrder(t *testing.T) {
	models := []Model{resident(5, 1), resident(5, 2), asked(evicted(5), 25)}
	w := Worker{MemoryBytes: 10, Order: func(a, b *Model) int { return -ByWorth(a, b) }}
	if got := w.Plan(0, models); !slices.Equal(got, []Step{{1, Evict}, {2, Load}}) {
		t.Errorf("plan %v with the order reversed", got)
	}
}

func TestPlanAllocatesNothing(t *testing.T) {
	models := []Model{asked(resident(5, 1), 25), resident(5, 2), evicted(5)}
	w := Worker{MemoryBytes: 10}
	if n := testing.AllocsPerRun(100, func() { w.Plan(0, models) }); n != 0 {
		t.Errorf("%v allocations without a step", n)
	}
}

func TestWake(t *testing.T) {
	m := evicted(5)
	m.Expected, m.Period = at(100), 100*ms
	w := Worker{MemoryBytes: 10}
	if got := w.Wake(0, []Model{evicted(1), m}); got != at(90) {
		t.Errorf("wakes at %v, want 90ms", time.Duration(got))
	}
	if got := w.Wake(at(90), []Model{evicted(1), m}); got != math.MaxInt64 {
		t.Errorf("wakes at %v after the load could begin", time.Duration(got))
	}
}

// Wake returns when the load under way ends so soon that the next may begin.
func TestWakeAhead(t *testing.T) {
	loads := evicted(5)
	loads.Moving, loads.Ends = true, at(10)
	waiting := asked(evicted(5), 25)
	for name, c := range map[string]struct {
		ahead  time.Duration
		now    int64
		models []Model
		want   int64
	}{
		"next waits":       {2 * ms, 0, []Model{loads, waiting}, at(8)},
		"it may begin":     {2 * ms, at(8), []Model{loads, waiting}, math.MaxInt64},
		"none waits":       {2 * ms, 0, []Model{loads, evicted(5)}, math.MaxInt64},
		"one load at once": {0, 0, []Model{loads, waiting}, math.MaxInt64},
	} {
		if got := (Worker{MemoryBytes: 20, Ahead: c.ahead}).Wake(c.now, c.models); got != c.want {
			t.Errorf("%s: wakes at %v, want %v", name, time.Duration(got), time.Duration(c.want))
		}
	}
}

// randomModels returns models in any state, with any work.
func randomModels(r *rand.Rand, n int) []Model {
	models := make([]Model, n)
	for i := range models {
		m := evicted(1 + r.Int64N(30))
		m.State = State(r.IntN(3))
		m.Moving, m.Ends = m.State == Evicted && r.IntN(5) == 0, at(r.Int64N(60)-10)
		m.Rate = float64(r.IntN(5))
		m.Used = r.Int64N(10)
		if r.IntN(3) == 0 {
			m.Arriving, m.Deadline = 1, at(r.Int64N(100))
		}
		if r.IntN(4) == 0 {
			m.Waiting, m.Deadline = 1, at(r.Int64N(100))
		}
		if r.IntN(5) == 0 {
			m.Expected, m.Period = at(r.Int64N(200)-100), 50*ms
		}
		models[i] = m
	}
	return models
}

// checkPlan checks what every plan must keep.
func checkPlan(w Worker, now int64, models []Model) error {
	steps := w.Plan(now, models)
	used := int64(0)
	for i := range models {
		m := &models[i]
		if m.State != Evicted || m.Moving {
			used += m.WeightsBytes
		}
	}
	excess, all := used > w.MemoryBytes, true
	touched := map[int]bool{}
	loads, most := 0, 1
	for i := range models {
		if m := &models[i]; m.Moving && m.State == Evicted {
			loads++
			if w.Ahead > 0 && m.Ends-now <= int64(w.Ahead) {
				most = 2
			}
		}
	}
	for _, s := range steps {
		m := &models[s.Model]
		if touched[s.Model] || m.Moving || !s.Op.From(m.State) {
			return fmt.Errorf("%v of model %d in state %v, moving %v: %v", s.Op, s.Model, m.State, m.Moving, steps)
		}
		touched[s.Model] = true
		if s.Op == Evict {
			if m.hasWork(now) {
				return fmt.Errorf("eviction of model %d, which has work", s.Model)
			}
			used -= m.WeightsBytes
			continue
		}
		if used += m.WeightsBytes; used > w.MemoryBytes {
			return fmt.Errorf("%d bytes on the GPU, memory is %d: %v", used, w.MemoryBytes, steps)
		}
		if loads++; loads > most {
			return fmt.Errorf("too many loads at once: %v", steps)
		}
	}
	for i := range models {
		m := &models[i]
		all = all && (touched[i] || m.State != Resident || m.Moving || m.hasWork(now))
	}
	if excess && used > w.MemoryBytes && !all {
		return fmt.Errorf("%d bytes stay on the GPU, memory is %d, and not all idle models go: %v", used, w.MemoryBytes, steps)
	}
	return nil
}

func TestPlanInvariants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := Worker{MemoryBytes: rapid.Int64Range(0, 200).Draw(t, "memory"), Ahead: time.Duration(rapid.IntRange(0, 10).Draw(t, "ahead")) * ms}
		models := randomModels(rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1)), rapid.IntRange(0, 30).Draw(t, "models"))
		must.OK(t, checkPlan(w, at(rapid.Int64Range(0, 50).Draw(t, "now")), models))
	})
}

func FuzzPlan(f *testing.F) {
	f.Add(uint64(1), int64(50), int64(0), 10)
	f.Fuzz(func(t *testing.T, seed uint64, memory, now int64, n int) {
		models := randomModels(rand.New(rand.NewPCG(seed, 1)), max(0, n)%50)
		w := Worker{MemoryBytes: memory % 1000, Ahead: time.Duration(seed%10) * ms}
		must.OK(t, checkPlan(w, now, models))
	})
}

func TestPressure(t *testing.T) {
	models := []Model{resident(10, 50), resident(10, 40), evicted(10), evicted(10)}
	models[2].Rate, models[3].Rate = 30, 20
	tests := map[string]struct {
		memory    int64
		thrashing bool
	}{
		"all fit":      {40, false},
		"rare ones":    {30, false},
		"half of them": {20, false},
		"one":          {10, true},
		"none":         {5, true},
	}
	for name, c := range tests {
		t.Run(name, func(t *testing.T) {
			p := Worker{MemoryBytes: c.memory}.Pressure(models)
			if p.Thrashing != c.thrashing {
				t.Fatalf("%+v, want thrashing %v", p, c.thrashing)
			}
			if c.memory == 40 && p.Busy != 0 {
				t.Errorf("busy %v although all fit", p.Busy)
			}
			if !p.Thrashing {
				return
			}
			if (Worker{MemoryBytes: p.MemoryBytes}).Pressure(models).Thrashing {
				t.Errorf("%d bytes do not end it", p.MemoryBytes)
			}
			if !(Worker{MemoryBytes: p.MemoryBytes - 1}).Pressure(models).Thrashing {
				t.Errorf("%d bytes would do as well", p.MemoryBytes-1)
			}
		})
	}
}

func TestRate(t *testing.T) {
	var r Rate
	for i := range int64(6000) {
		r = r.Observe(at(10 * i))
	}
	if got := r.At(at(60000)); math.Abs(got-100) > 1 {
		t.Errorf("rate %.2f/s after a minute of 100/s", got)
	}
	if got := r.At(at(65000)); math.Abs(got-50) > 1 {
		t.Errorf("rate %.2f/s after 5 s of silence, want 50", got)
	}
}

// Wake returns when an expectation ends, because its model may be evicted then.
func TestWakeAfterExpectation(t *testing.T) {
	m := resident(10, 1)
	m.Expected, m.Period = at(100), 50*ms
	for now, want := range map[int64]int64{100: 150, 149: 150, 150: math.MaxInt64 / int64(ms)} {
		if got := (Worker{}).Wake(at(now), []Model{m}); got/int64(ms) != want {
			t.Errorf("at %d ms: wakes at %d ms, want %d", now, got/int64(ms), want)
		}
	}
}
