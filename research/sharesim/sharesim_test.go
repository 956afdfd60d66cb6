package sharesim

import (
	"testing"
	"time"

	"github.com/penstock/penstock/control/budget"
	"github.com/penstock/penstock/internal/testing/must"
)

// mixes are some of the evaluation's, with functions that are overloaded, and random ones of
// which each fault of TestGuarantees hurts at least one.
func mixes(rules Rules) (few []Mix) {
	names := map[string]bool{
		"C2 at 90 %": true, "C1 at 150 %": true, "C2, 10 ms at 90 %": true, "8 functions at 30 %": true,
		"resnet50 and mobilenetv2 next to vgg19": true,
	}
	for _, m := range EvaluationMixes() {
		if names[m.Name] {
			m.Duration, m.Settle, m.Rules = 5*time.Second, 2*time.Second, rules
			few = append(few, m)
		}
	}
	for _, seed := range []uint64{4, 11, 14, 23, 30} {
		m := RandomMix(seed)
		m.Rules = rules
		few = append(few, m)
	}
	return few
}

// A function within its guarantee has 99 % in time. Each part of the rule is needed for it.
func TestGuarantees(t *testing.T) {
	for _, c := range []struct {
		name  string
		rules Rules
		holds bool
	}{
		{"the rule", Rules{}, true},
		{"inverted levels", Rules{InvertLevels: true}, false},
		{"no balance", Rules{NoBalance: true}, false},
	} {
		reports, err := Simulate(mixes(c.rules), false)
		must.OK(t, err)
		s := Summarize(c.name, reports)
		t.Logf("%s: %d of %d functions below 99 %%, the worst has %.1f %%", c.name, s.Below, s.Functions, s.WorstPercent)
		if (s.Below == 0) != c.holds {
			t.Errorf("%s: the guarantees hold: %v, want %v: %q", c.name, !c.holds, c.holds, s.Short)
		}
		if s.Functions < 10 {
			t.Errorf("%s: %d functions are within their guarantees, want at least 10", c.name, s.Functions)
		}
	}
}

// Eight functions of equal objectives at 90 % of the device: batches of their level run one after the other. If they run
// next to each other, all end late, and the functions with the longest batches lose.
func TestTurnsOfLevel(t *testing.T) {
	for _, c := range []struct {
		rules           Rules
		atLeast, atMost float64 // of the worst function in time
	}{{Rules{}, 0.99, 1}, {Rules{NoTurns: true}, 0, 0.5}} {
		m := EqualObjectives(0.9)
		m.Rules = c.rules
		results, err := Run(m.Config)
		must.OK(t, err)
		worst := 1.0
		for i := range results {
			worst = min(worst, results[i].Share())
		}
		if worst < c.atLeast || worst > c.atMost {
			t.Errorf("%+v: the worst function has %.3f in time, want %v to %v", c.rules, worst, c.atLeast, c.atMost)
		}
	}
}

// On a GPU without MPS functions within their guarantees answer in time if batches take turns, but not with
// the driver's time slices. Functions with short objectives need the caps.
func TestTurns(t *testing.T) {
	for _, c := range []struct {
		name    string
		sharing Sharing
		rules   Rules
		holds   bool
	}{
		{"turns", Turns, Rules{}, true},
		{"turns without caps", Turns, Rules{NoCaps: true}, false},
		{"slices", Slices, Rules{}, false},
	} {
		var mixes []Mix
		for _, seed := range []uint64{6, 22, 35, 59} {
			m := RandomMixOn(c.sharing, seed)
			m.Rules = c.rules
			mixes = append(mixes, m)
		}
		reports, err := Simulate(mixes, false)
		must.OK(t, err)
		s := Summarize(c.name, reports)
		t.Logf("%s: %d of %d functions below 99 %%, the worst has %.1f %%", c.name, s.Below, s.Functions, s.WorstPercent)
		if (s.Below == 0) != c.holds {
			t.Errorf("%s: the guarantees hold: %v, want %v: %q", c.name, !c.holds, c.holds, s.Short)
		}
		if s.Functions < 10 {
			t.Errorf("%s: %d functions are within their guarantees, want at least 10", c.name, s.Functions)
		}
	}
}

func TestRunRepeats(t *testing.T) {
	m := RandomMix(7)
	first, err := Run(m.Config)
	must.OK(t, err)
	second, err := Run(m.Config)
	must.OK(t, err)
	for i := range first {
		if first[i].Good != second[i].Good || first[i].Demoted != second[i].Demoted || first[i].Requests == 0 {
			t.Errorf("function %d: %+v, then %+v", i, first[i], second[i])
		}
	}
}

func TestDevice(t *testing.T) {
	type begun struct {
		at, work int64
		level    budget.Level
		kernel   int64
	}
	for _, c := range []struct {
		name    string
		batches []begun
		want    []int64 // ends
	}{
		{"alone", []begun{{0, 100, 1, 10}}, []int64{100}},
		{"equal levels share", []begun{{0, 100, 1, 10}, {0, 50, 1, 10}}, []int64{150, 100}},
		{"a higher level goes first", []begun{{0, 100, 0, 10}, {0, 50, 3, 10}}, []int64{150, 50}},
		{"a lower level waits", []begun{{0, 100, 3, 10}, {20, 50, 0, 10}}, []int64{100, 150}},
		{"after the kernel that runs", []begun{{0, 100, 0, 30}, {40, 50, 3, 10}}, []int64{150, 110}},
		{"after both kernels that run", []begun{{0, 100, 0, 30}, {0, 100, 0, 30}, {40, 50, 3, 10}}, []int64{250, 250, 110}},
	} {
		d := &device{part: 1}
		ends := map[*batch]int64{}
		var all []*batch
		for now, next := int64(0), 0; len(ends) < len(c.batches); {
			at := d.next()
			if next < len(c.batches) {
				at = min(at, c.batches[next].at)
			}
			now = at
			d.advance(now)
			for b := d.ended(); b != nil; b = d.ended() {
				ends[b] = now
			}
			for ; next < len(c.batches) && c.batches[next].at <= now; next++ {
				n := c.batches[next]
				b := &batch{level: n.level, width: 1, work: float64(n.work), kernel: float64(n.kernel)}
				all = append(all, b)
				d.add(b)
			}
		}
		for i, b := range all {
			if ends[b] != c.want[i] {
				t.Errorf("%s: batch %d ends at %d, want %d", c.name, i, ends[b], c.want[i])
			}
		}
	}
}

func TestBestDivision(t *testing.T) {
	// Either function alone could use the device; each request of one is worth as much as one
	// of the other.
	c := Config{Seed: 1, Duration: 3 * time.Second, Settle: time.Second}
	for range 2 {
		f := Function{Objective: 50 * time.Millisecond, Fixed: time.Millisecond, PerImage: time.Millisecond, Kernels: 10}
		f.Phases = []Phase{{0, 100}}
		c.Functions = append(c.Functions, f)
	}
	worth, possible, err := BestDivision(c, []bool{true, true})
	if err != nil || !possible {
		t.Fatalf("a division that keeps two functions at a fifth of the device each: %v, %v", possible, err)
	}
	if full := 2 * 100 * 2 * c.Functions[0].Weight().Seconds(); worth < 0.9*full || worth > 1.1*full {
		t.Errorf("worth %.2f device seconds, want some %.2f", worth, full)
	}
	c.Functions[0].Phases[0].Rate = 5000
	if _, possible, err = BestDivision(c, []bool{true, true}); err != nil || possible {
		t.Errorf("a division that keeps a function at five times the device: %v, %v", possible, err)
	}
	open, possible, err := BestDivision(c, []bool{false, true})
	if err != nil || !possible || open <= worth {
		t.Errorf("worth %.2f of a division that keeps one of them, %v, %v; want more than %.2f", open, possible, err, worth)
	}
}

// When a silent function returns next to an overloaded one, its first requests are in time:
// it kept its last need, and the overloaded function has a lower level. Either suffices.
func TestReturnFromIdle(t *testing.T) {
	const ms = time.Millisecond
	returns := evaluated("resnet50", 25*ms, 0)
	for at := time.Duration(0); at < 20*time.Second; at += 5 * time.Second {
		returns.Phases = append(returns.Phases, Phase{at, 1500}, Phase{at + 2*time.Second, 0})
	}
	returns.Phases = returns.Phases[1:] // the first is silence
	c := Config{Functions: []Function{returns, evaluated("vgg19", 25*ms, 9000)}, Seed: 1, Duration: 20 * time.Second, Settle: 4 * time.Second}
	results, err := Run(c)
	must.OK(t, err)
	if r := results[0]; r.Requests < 8000 || r.Share() < 0.995 {
		t.Errorf("%d of %d requests in time after each silence, want 99.5 %% of at least 8000", r.Good, r.Requests)
	}
}
