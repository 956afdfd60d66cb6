package lane

import (
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func model(fixed, scratch, weights int64) Model {
	return Model{FixedBytes: fixed * mib, ScratchBytes: scratch * mib, WeightsBytes: weights * mib}
}

func TestAssign(t *testing.T) {
	small, large := model(1, 10, 50), model(1, 40, 50)
	tests := map[string]struct {
		memory int64
		max    int
		lanes  []Lane
		model  Model
		lane   int
		opened bool
	}{
		"first model":               {200, 2, nil, small, 0, true},
		"open while there is room":  {200, 2, []Lane{{[]Model{large}}}, small, 1, true},
		"no room to open":           {140, 2, []Lane{{[]Model{large}}}, small, 0, false},
		"no more lanes":             {500, 2, []Lane{{[]Model{large}}, {[]Model{small}}}, small, 1, false},
		"smallest that suffices":    {500, 2, []Lane{{[]Model{large}}, {[]Model{model(1, 20, 50)}}}, small, 1, false},
		"fewest members":            {500, 2, []Lane{{[]Model{small, small}}, {[]Model{small}}}, small, 1, false},
		"enlarge the smallest":      {500, 2, []Lane{{[]Model{model(1, 20, 50)}}, {[]Model{small}}}, large, 1, false},
		"enlarge what fits":         {160, 2, []Lane{{[]Model{model(1, 20, 50)}}, {[]Model{small}}}, large, 0, false},
		"lane without members":      {500, 2, []Lane{{}, {[]Model{large}}}, small, 0, true},
		"weights of a lane grow":    {200, 2, []Lane{{[]Model{model(1, 10, 20)}}, {[]Model{model(1, 20, 100)}}}, model(1, 10, 90), 1, false},
		"scratch too large to open": {200, 2, []Lane{{[]Model{model(1, 40, 100)}}}, model(1, 40, 100), 0, false},
	}
	for name, c := range tests {
		t.Run(name, func(t *testing.T) {
			lane, opened, err := Assign(Capacity{MemoryBytes: c.memory * mib, Lanes: c.max}, c.lanes, c.model)
			if err != nil || lane != c.lane || opened != c.opened {
				t.Errorf("lane %d, opened %v, %v; want %d, %v", lane, opened, err, c.lane, c.opened)
			}
		})
	}
}

func TestAssignRefusal(t *testing.T) {
	two := Capacity{MemoryBytes: 300*mib + 5, FixedBytes: 20 * mib, Lanes: 2}
	tests := map[string]struct {
		capacity Capacity
		lanes    []Lane
		model    Model
		text     string
	}{
		"larger than the worker": {two, nil, model(1, 100, 200), "not enough memory: fixed 21 + scratch 100 + weights 200 = 321 MiB, capacity 300 MiB"},
		"the smallest choice": {two, []Lane{{[]Model{model(0, 50, 50)}}, {[]Model{model(0, 10, 100)}}}, model(1, 100, 100),
			"fixed 21 + scratch 150 + weights 150 = 321 MiB, capacity 300 MiB"},
		"rounded up": {Capacity{MemoryBytes: 2*mib + 1, Lanes: 1}, nil, Model{1, 1, 2 * mib}, "fixed 1 + scratch 1 + weights 2 = 4 MiB, capacity 2 MiB"},
		"no lanes":   {Capacity{MemoryBytes: mib}, nil, model(0, 0, 0), "invalid sizes"},
		"negative":   {two, nil, model(0, -1, 0), "invalid sizes"},
		"too large":  {two, nil, Model{WeightsBytes: maxBytes + 1}, "invalid sizes"},
	}
	for name, c := range tests {
		t.Run(name, func(t *testing.T) {
			_, _, err := Assign(c.capacity, c.lanes, c.model)
			if err == nil || !strings.Contains(err.Error(), c.text) {
				t.Fatalf("error %v, want %q", err, c.text)
			}
			if invalid := strings.Contains(c.text, "invalid"); errors.Is(err, ErrMemory) == invalid {
				t.Errorf("ErrMemory is wrapped: %v", !invalid)
			}
		})
	}
}

func TestTerms(t *testing.T) {
	c := Capacity{MemoryBytes: 500 * mib, FixedBytes: 20 * mib, Lanes: 2}
	terms := TermsOf(c, []Lane{{[]Model{model(1, 30, 10), model(2, 10, 70)}}, {}, {[]Model{model(3, 5, 90)}}})
	if want := (Terms{500 * mib, 26 * mib, 35 * mib, 160 * mib}); terms != want {
		t.Errorf("terms %v, want %v", terms, want)
	}
	if got := terms.RoomBytes(); got != (500-26-35)*mib {
		t.Errorf("room for %d MiB of weights, want %d", got/mib, 500-26-35)
	}
}

// change is a step of a random history: a model is added, or one is removed.
type change struct {
	remove bool
	which  int
	model  Model
}

// checkHistory applies changes. The safety condition must hold after each, and a model must be
// refused only if it fits nowhere.
func checkHistory(t interface{ Fatalf(string, ...any) }, c Capacity, changes []change) {
	var lanes []Lane
	for _, change := range changes {
		if change.remove {
			if len(lanes) > 0 {
				l := &lanes[change.which%len(lanes)]
				if n := len(l.Members); n > 0 {
					k := change.which % n
					l.Members = slices.Delete(l.Members, k, k+1)
				}
			}
			continue
		}
		index, opened, err := Assign(c, lanes, change.model)
		fits := false
		_, used := divide(lanes)
		for i := 0; i <= len(lanes); i++ {
			fresh := i == len(lanes) || len(lanes[i].Members) == 0
			fits = fits || (!fresh || len(used) < c.Lanes) && termsWith(c, lanes, i, change.model).Safe()
		}
		if fits != (err == nil) {
			t.Fatalf("assign %+v to %+v: %v, but it fits: %v", change.model, lanes, err, fits)
		}
		if err != nil {
			continue
		}
		if index == len(lanes) {
			lanes = append(lanes, Lane{})
		}
		if opened != (len(lanes[index].Members) == 0) {
			t.Fatalf("opened is %v for a lane of %d members", opened, len(lanes[index].Members))
		}
		lanes[index].Members = append(lanes[index].Members, change.model)
		if terms := TermsOf(c, lanes); !terms.Safe() || len(lanes) > c.Lanes {
			t.Fatalf("%d lanes of %d are not safe: %v", len(lanes), c.Lanes, terms)
		}
	}
}

func TestAssignHistories(t *testing.T) {
	size := rapid.Int64Range(0, 100)
	rapid.Check(t, func(t *rapid.T) {
		c := Capacity{MemoryBytes: rapid.Int64Range(0, 600).Draw(t, "memory"), FixedBytes: size.Draw(t, "fixed"), Lanes: rapid.IntRange(1, 4).Draw(t, "lanes")}
		checkHistory(t, c, rapid.SliceOf(rapid.Custom(func(t *rapid.T) change {
			return change{
				remove: rapid.IntRange(0, 2).Draw(t, "remove") == 0, which: rapid.IntRange(0, 100).Draw(t, "which"),
				model: Model{size.Draw(t, "fixed") / 10, size.Draw(t, "scratch"), size.Draw(t, "weights")},
			}
		})).Draw(t, "changes"))
	})
}

func FuzzAssign(f *testing.F) {
	f.Add(uint64(1), int64(300), int64(10), 2)
	f.Add(uint64(2), int64(1)<<50, int64(0), 1)
	f.Fuzz(func(t *testing.T, seed uint64, memory, fixed int64, lanes int) {
		c := Capacity{MemoryBytes: memory, FixedBytes: fixed, Lanes: lanes}
		if _, _, err := Assign(c, nil, Model{}); err != nil && !errors.Is(err, ErrMemory) {
			return // not a capacity
		}
		r := rand.New(rand.NewPCG(seed, 1))
		changes := make([]change, 50)
		for i := range changes {
			part := func() int64 { return r.Int64N(1 + memory/int64(1+r.IntN(20))) }
			changes[i] = change{r.IntN(3) == 0, r.IntN(100), Model{part() / 10, part(), part()}}
		}
		checkHistory(t, c, changes)
	})
}
