package share

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// lend says of several IFs that they lend.
func (c *Controller) lend(t rapid.TB, loan Loan, ids ...ID) {
	t.Helper()
	for _, id := range ids {
		if err := c.Lend(id, loan); err != nil {
			t.Fatal(err)
		}
	}
}

// hungry is an IF that needs twice what it has, whatever that is.
var hungry = Observation{Latency: 49 * ms, SLO: 50 * ms, Throughput: 50, ArrivalRate: 100}

// What nobody uses goes to who lacks it, step by step as demands rise, down to the minimum.
func TestASilentIFLendsWhatOthersLack(t *testing.T) {
	k := newController(t, DefaultConfig(), face, detect, third)
	k.Step(0, nil)
	k.lend(t, Silent, detect, third)
	seen := map[ID]Observation{face: hungry}
	for i, want := range [][3]float64{{60, 20, 20}, {90, 5, 5}, {90, 5, 5}} {
		p := k.Step(time.Duration(i+1)*10*time.Second, seen)
		if got := [3]float64{shareOf(p, face), shareOf(p, detect), shareOf(p, third)}; got != want {
			t.Errorf("step %d: shares %v, want %v; changes %+v", i+1, got, want, p.Changes)
		}
	}
}

func TestASilentIFKeepsWhatNobodyLacks(t *testing.T) {
	for _, spread := range []bool{false, true} {
		cfg := DefaultConfig()
		cfg.SpreadSlack = spread
		k := newController(t, cfg, face, detect, third)
		k.Step(0, nil)
		k.lend(t, Silent, detect, third)
		for i := range 20 {
			if p := k.Step(time.Duration(i+1)*10*time.Second, map[ID]Observation{face: fine, detect: over}); len(p.Changes) != 0 {
				t.Errorf("spread %v: changes %+v though nobody is short", spread, p.Changes)
			}
		}
		k.lend(t, NoLoan, detect, third)
		if p := k.Step(201*time.Second, nil); len(p.Changes) != 0 {
			t.Errorf("spread %v: changes %+v for requests to who has lent nothing", spread, p.Changes)
		}
	}
}

// What it has is a loan to the others: it has it back at the next look, whoever is within a
// hold-down.
func TestWhoIsSilentNoMoreHasItsShareBack(t *testing.T) {
	k := newController(t, DefaultConfig())
	if err := errors.Join(k.Add(face, 40), k.Add(detect, 50)); err != nil {
		t.Fatal(err)
	}
	k.Step(0, nil)
	k.lend(t, Silent, detect)
	p := k.Step(10*time.Second, map[ID]Observation{face: hungry})
	if want := []Change{{ID: detect, From: 50, To: 20, Why: whySilent}, {ID: face, From: 40, To: 80, Why: whyThroughput}}; !slices.Equal(p.Changes, want) {
		t.Fatalf("changes %+v, want %+v", p.Changes, want)
	}
	k.lend(t, NoLoan, detect)
	p = k.Step(11*time.Second, nil)
	if want := []Change{{ID: face, From: 80, To: 50, Why: whyThroughput}, {ID: detect, From: 20, To: 50, Why: whyReturns}}; !slices.Equal(p.Changes, want) {
		t.Errorf("changes %+v, want %+v", p.Changes, want)
	}
}

// It is not raised while it is silent, also where others let go: that would be a swap for
// nothing.
func TestASilentIFIsNotRaised(t *testing.T) {
	k := newController(t, DefaultConfig(), face, detect, third)
	k.Step(0, nil)
	k.lend(t, Silent, detect, third)
	k.Step(10*time.Second, map[ID]Observation{face: hungry})
	k.Step(20*time.Second, map[ID]Observation{face: hungry})
	p := k.Step(30*time.Second, map[ID]Observation{face: over})
	if len(p.Changes) != 1 || p.Changes[0].ID != face {
		t.Errorf("changes %+v, want face's cut alone", p.Changes)
	}
	if err := k.Remove(face); err != nil {
		t.Fatal(err)
	}
	if p = k.Step(31*time.Second, nil); len(p.Changes) != 0 {
		t.Errorf("changes %+v when who had borrowed is gone", p.Changes)
	}
}

// Those that have less to lend are not asked for more than those that have more.
func TestSilentIFsLendByMaxMin(t *testing.T) {
	k := newController(t, DefaultConfig())
	if err := errors.Join(k.Add(face, 30), k.Add(detect, 10), k.Add(third, 60)); err != nil {
		t.Fatal(err)
	}
	k.Step(0, nil)
	k.lend(t, Silent, detect, third)
	p := k.Step(10*time.Second, map[ID]Observation{face: hungry})
	if got := [3]float64{shareOf(p, face), shareOf(p, detect), shareOf(p, third)}; got != [3]float64{60, 10, 30} {
		t.Errorf("shares %v, want 60, 10 and 30", got)
	}
}

func TestALoanKeepsToSteps(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Steps = []float64{10, 20, 30, 40, 50, 60, 70, 80, 90, 100}
	k := newController(t, cfg, face, detect)
	k.Step(0, nil)
	k.lend(t, Silent, detect)
	k.Step(10*time.Second, map[ID]Observation{face: hungry})
	p := k.Step(20*time.Second, map[ID]Observation{face: hungry})
	if shareOf(p, face) != 90 || shareOf(p, detect) != 10 {
		t.Errorf("plan %+v, want 90 and 10", p.Status)
	}
}

// Its neighbours have what meets their objectives; where they want nothing it has an equal
// part, and no more.
func TestWhoseObjectiveNoShareMeetsHasAnEqualPartAtMost(t *testing.T) {
	for _, c := range []struct {
		neighbour, want, wantNeighbour float64
	}{{20, 50, 20}, {60, 40, 60}, {97, 5, 95}} {
		k := newController(t, DefaultConfig())
		if err := errors.Join(k.Add(face, 30), k.Add(detect, c.neighbour)); err != nil {
			t.Fatal(err)
		}
		k.Step(0, nil)
		k.lend(t, Vain, face)
		var p Plan
		for i := range 6 {
			p = k.Step(time.Duration(i+1)*10*time.Second, map[ID]Observation{face: {Latency: 100 * ms, SLO: ms, Throughput: 10, ArrivalRate: 100}})
		}
		if shareOf(p, face) != c.want || shareOf(p, detect) != c.wantNeighbour {
			t.Errorf("beside one that wants %v: %v %% and %v %%, want %v and %v", c.neighbour, shareOf(p, face), shareOf(p, detect), c.want, c.wantNeighbour)
		}
	}
}

func TestOnlyWhoIsThereLends(t *testing.T) {
	if err := newController(t, DefaultConfig()).Lend(face, Silent); !errors.Is(err, ErrUnknown) {
		t.Errorf("Lend = %v, want ErrUnknown", err)
	}
}

// Whoever lends, the others have no less for it, and who lends has the minimum.
func TestLoansKeepTheirPromises(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := DefaultConfig()
		cfg.SpreadSlack = rapid.Bool().Draw(t, "spread slack")
		cfg.HoldDown = time.Duration(rapid.IntRange(0, 3).Draw(t, "hold-down")) * time.Second
		k := newController(t, cfg)
		loans, percent := map[ID]Loan{}, map[ID]float64{}
		for i := range rapid.IntRange(1, 8).Draw(t, "functions") {
			id := ID{IF: fmt.Sprint("if", i)}
			if err := k.Add(id, rapid.Float64Range(0, 100).Draw(t, "knee")); err != nil {
				t.Fatal(err)
			}
			loans[id] = NoLoan
		}
		ids := slices.SortedFunc(maps.Keys(loans), ID.Compare)
		for i := range rapid.IntRange(1, 30).Draw(t, "steps") {
			seen := map[ID]Observation{}
			for _, id := range ids {
				loans[id] = rapid.SampledFrom([]Loan{loans[id], loans[id], loans[id], NoLoan, Silent, Vain}).Draw(t, "loan")
				k.lend(t, loans[id], id)
				seen[id] = rapid.SampledFrom([]Observation{fine, short, over, hungry, {}}).Draw(t, "observation")
			}
			p := k.Step(time.Duration(i)*time.Second, seen)
			total, short, lent := 0.0, 0.0, 0.0
			for _, s := range p.Status {
				total += s.Percent
				switch before, there := percent[s.ID]; {
				case s.Percent < cfg.MinimumPercent-Quantum:
					t.Fatalf("%v has %v %%, less than the minimum", s.ID, s.Percent)
				case !cfg.SpreadSlack && loans[s.ID] == Silent && there && s.Percent > before:
					t.Fatalf("%v is silent and was raised from %v to %v %%", s.ID, before, s.Percent)
				}
				if loans[s.ID] == NoLoan && s.Demand > 1.15*s.Percent {
					short += s.Percent
				}
				if loans[s.ID] != NoLoan {
					lent += s.Percent - cfg.MinimumPercent
				}
				percent[s.ID] = s.Percent
			}
			if total > 100 {
				t.Fatalf("%v %% are out", total)
			}
			// Where nobody is held, who lends keeps nothing that is worth a change while others are short.
			if cfg.HoldDown == 0 && short > 0 && lent > 0.1*short {
				t.Fatalf("some have %v %% and are short, and %v %% are not lent: %+v", short, lent, p.Status)
			}
		}
	})
}

// Whatever comes, goes, waits, falls silent or is given by hand, in whatever order: no more
// than all is out, in shares that there are, minimums and hold-downs are kept, and who asks
// again has what it wants at the next step, where that is no more than an equal part.
func TestLoansKeepTheirPromisesAmongAllThatHappens(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := DefaultConfig()
		cfg.SpreadSlack = rapid.Bool().Draw(t, "spread slack")
		cfg.HoldDown = time.Duration(rapid.IntRange(0, 5).Draw(t, "hold-down")) * time.Second
		k := newController(t, cfg)
		type known struct {
			percent float64
			had     float64 // when it began to lend
			loan    Loan
			waits   bool
			changed time.Duration
		}
		there := map[ID]*known{}
		now := time.Duration(0)
		for range rapid.IntRange(1, 60).Draw(t, "events") {
			forced := false
			var again []ID
			for range rapid.IntRange(0, 3).Draw(t, "at once") {
				id := ID{IF: fmt.Sprint("if", rapid.IntRange(0, 5).Draw(t, "function")), Instance: rapid.IntRange(0, 1).Draw(t, "instance")}
				f := there[id]
				if f == nil {
					if err := k.Add(id, rapid.Float64Range(0, 100).Draw(t, "knee")); err != nil {
						t.Fatal(err)
					}
					there[id], forced = &known{waits: rapid.Bool().Draw(t, "waits")}, true
					if there[id].waits {
						if err := k.Wait(id); err != nil {
							t.Fatal(err)
						}
					}
					continue
				}
				switch rapid.SampledFrom([]string{"lend", "lend", "lend", "serve", "remove", "replace", "by hand"}).Draw(t, "what") {
				case "lend":
					loan := rapid.SampledFrom([]Loan{NoLoan, Silent, Silent, Vain}).Draw(t, "loan")
					if f.loan == NoLoan {
						f.had = f.percent
					} else if f.loan == Silent && loan == NoLoan {
						again = append(again, id)
					}
					f.loan = loan
					k.lend(t, loan, id)
				case "serve":
					forced = k.Serves(id) || forced
					f.waits = false
				case "remove":
					if err := k.Remove(id); err != nil {
						t.Fatal(err)
					}
					delete(there, id)
					forced = true
				case "replace":
					if err := k.Replace(id, rapid.Float64Range(0, 100).Draw(t, "knee")); err != nil {
						t.Fatal(err)
					}
					forced = true
				case "by hand":
					sum := 0.0
					for other, o := range there {
						if other != id {
							sum += o.percent
						}
					}
					if left := floorTo(100 - sum); f.percent > 0 && left > cfg.MinimumPercent {
						f.percent = floorTo(rapid.Float64Range(cfg.MinimumPercent, left).Draw(t, "percent"))
						if err := k.Failed(id, f.percent); err != nil {
							t.Fatal(err)
						}
					}
				}
			}
			now += time.Duration(rapid.SampledFrom([]int{200, 1000, 6000}).Draw(t, "ms")) * ms
			seen := map[ID]Observation{}
			for _, id := range slices.SortedFunc(maps.Keys(there), ID.Compare) {
				if rapid.Bool().Draw(t, "seen") {
					seen[id] = rapid.SampledFrom([]Observation{fine, short, over, hungry}).Draw(t, "observation")
				}
			}
			p := k.Step(now, seen)
			total, minimum := 0.0, min(cfg.MinimumPercent, 100/float64(max(1, len(there))))
			lasting := map[ID]bool{}
			for _, id := range again {
				lasting[id], forced = there[id] != nil && there[id].loan == NoLoan && !there[id].waits && there[id].percent < there[id].had, true
			}
			for _, s := range p.Status {
				f := there[s.ID]
				total += s.Percent
				switch {
				case s.Percent < minimum*(1-cfg.ThresholdPercent/100)-Quantum: // what others keep within the threshold it may lack
					t.Fatalf("%v has %v %%, less than the minimum", s.ID, s.Percent)
				case s.Percent != floorTo(s.Percent):
					t.Fatalf("%v has %v %%, no multiple of %v", s.ID, s.Percent, Quantum)
				case s.Percent != f.percent && !forced && f.percent > 0 && now-f.changed < cfg.HoldDown:
					t.Fatalf("%v: %v to %v %% %v after its last change", s.ID, f.percent, s.Percent, now-f.changed)
				}
				if lasting[s.ID] && s.Why == whyReturns && s.Demand <= 100/float64(len(there)) && s.Percent < s.Demand*(1-cfg.ThresholdPercent/100)-2*Quantum {
					t.Fatalf("%v asks again, wants %v %% and has %v: %+v", s.ID, s.Demand, s.Percent, p.Status)
				}
				if s.Percent != f.percent {
					f.percent, f.changed = s.Percent, now
				}
			}
			if total > 100 {
				t.Fatalf("%v %% are out", total)
			}
		}
	})
}

// Who fell silent while it was loaded, with what others left it, has what it wants with its
// first request.
func TestWhoWasSilentFromTheStartIsGivenWhatItWants(t *testing.T) {
	k := newController(t, DefaultConfig())
	if err := errors.Join(k.Add(face, 95), k.Add(detect, 40), k.Wait(detect)); err != nil {
		t.Fatal(err)
	}
	k.Step(0, nil)
	k.lend(t, Silent, detect)
	if p := k.Step(time.Second, nil); !k.Serves(detect) || shareOf(p, detect) != 5 {
		t.Fatalf("plan %+v, want 5 %% for who waits", p.Status)
	}
	k.Step(2*time.Second, nil)
	k.lend(t, NoLoan, detect)
	if p := k.Step(3*time.Second, nil); shareOf(p, detect) != 40 {
		t.Errorf("plan %+v, want 40 %% for who is asked", p.Status)
	}
}

// None of those that share the rest gets less than one that is granted what it wants, also
// where that one keeps what it has.
func TestNoneGetsLessThanWhoKeepsItsShare(t *testing.T) {
	k := newController(t, DefaultConfig())
	if err := errors.Join(k.Add(face, 25), k.Add(detect, 40), k.Add(third, 35)); err != nil {
		t.Fatal(err)
	}
	k.Step(0, nil)
	// face keeps its 25; in proportion alone detect would have 75 * 40 / 140 = 21.
	if err := k.Replace(third, 100); err != nil {
		t.Fatal(err)
	}
	p := k.Step(time.Second, nil)
	if shareOf(p, face) != 25 || shareOf(p, detect) < 25 {
		t.Errorf("shares %+v, want 25 for each of the first two at least", p.Status)
	}
}

// Nothing is taken for one that cannot have it yet: by the end of its hold-down it may want
// it no more.
func TestNothingIsLentToWhoIsHeld(t *testing.T) {
	k := newController(t, DefaultConfig())
	if err := errors.Join(k.Add(face, 30), k.Add(detect, 50)); err != nil {
		t.Fatal(err)
	}
	k.Step(0, nil)
	k.Step(10*time.Second, map[ID]Observation{face: hungry}) // wants 60, has 50
	k.lend(t, Silent, detect)
	if p := k.Step(15*time.Second, nil); len(p.Changes) != 0 {
		t.Errorf("changes %+v while who lacks it is held", p.Changes)
	}
	if p := k.Step(20*time.Second, map[ID]Observation{face: fine}); len(p.Changes) != 0 {
		t.Errorf("changes %+v though nobody lacks anything any more", p.Changes)
	}
}

// Nor is one cut to less than its due, since a little of a large share is not worth a swap.
func TestNoneIsCutToLessThanItsDueForASmallCutOfAnother(t *testing.T) {
	k := newController(t, DefaultConfig())
	err := errors.Join(k.Add(face, 100), k.Add(detect, 60))
	k.Step(0, nil)
	err = errors.Join(err, k.Failed(face, 62), k.Failed(detect, 38), k.Add(third, 5))
	if err != nil {
		t.Fatal(err)
	}
	p := k.Step(time.Second, nil)
	if got := [3]float64{shareOf(p, face), shareOf(p, detect), shareOf(p, third)}; got != [3]float64{59.375, 35.625, 5} {
		t.Errorf("shares %v, want 59.375, 35.625 and 5", got)
	}
}
