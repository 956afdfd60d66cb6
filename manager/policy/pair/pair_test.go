package pair

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/models"
)

// up makes a process ready and attached, as the orchestrator would.
func up(p *Pair, generation uint32) {
	p.Attach(generation)
	p.Observe(generation, control.Ready, "")
}

func kinds(commands []Command) (out []Kind) {
	for _, c := range commands {
		out = append(out, c.Kind)
	}
	return out
}

// serving returns a pair whose first generation is active and whose second
// stands by.
func serving(t *testing.T, card *models.Card) *Pair {
	t.Helper()
	p := New(card, 30)
	p.Step()
	up(p, 1)
	p.Step()
	p.Observe(1, control.Active, "")
	p.Step()
	p.Attach(2)
	p.Observe(2, control.Loaded, "")
	p.Step()
	if p.Active() == nil || p.Active().Generation != 1 || p.Shadow() == nil || p.Shadow().Generation != 2 {
		t.Fatalf("active %+v, shadow %+v; want generations 1 and 2", p.Active(), p.Shadow())
	}
	return p
}

func TestFirstProcess(t *testing.T) {
	p := New(&models.Card{Name: "a"}, 30)
	p.Step()
	p.Observe(1, control.Ready, "")
	if got := p.Step(); len(got) != 0 {
		t.Fatalf("commands before it has its memory: %v", got)
	}
	p.Attach(1)
	got := p.Step()
	if len(got) != 1 || got[0] != (Command{Kind: SetEpoch, Generation: 1}) {
		t.Fatalf("commands %v, want the epoch set to 1", got)
	}
	if p.Shadow() != nil {
		t.Fatal("a shadow was started while the first process was not active yet")
	}
}

func TestShareChangeSwaps(t *testing.T) {
	p := serving(t, &models.Card{Name: "a"})
	p.SetShare(50)
	p.Step()
	if q := p.Process(2); q.Role != control.Serve || q.SharePercent != 50 {
		t.Fatalf("shadow %+v, want it woken with 50 %%", q)
	}
	if p.Active().Generation != 1 || p.Active().Role != control.Serve {
		t.Fatal("the active process must serve while the shadow links")
	}
	up(p, 2)
	if got := kinds(p.Step()); len(got) != 2 || got[0] != SetEpoch || got[1] != Promoted {
		t.Fatalf("commands %v, want the epoch set and a promotion", got)
	}
	if q := p.Process(1); q.Role != control.Drain {
		t.Fatalf("old process %+v, want it drained", q)
	}
}

func TestShareChangeInPlace(t *testing.T) {
	p := serving(t, &models.Card{Name: "a"})
	p.InPlace = true
	p.SetShare(50)
	p.Step()
	if p.Active().SharePercent != 50 || p.Changing() {
		t.Fatalf("active %+v, changing %v", p.Active(), p.Changing())
	}
}

func TestRenew(t *testing.T) {
	p := serving(t, &models.Card{Name: "a"})
	p.InPlace = true
	p.Renew()
	p.Step()
	if q := p.Process(2); q.Role != control.Serve {
		t.Fatalf("shadow %+v, want it woken", q)
	}
	up(p, 2)
	p.Step()
	p.Observe(1, control.Stopped, "")
	p.Observe(2, control.Active, "")
	p.Step()
	p.Attach(3)
	p.Observe(3, control.Loaded, "")
	if p.Step(); p.Changing() || p.Active().Generation != 2 {
		t.Fatalf("active %+v, changing %v; want generation 2 to stay", p.Active(), p.Changing())
	}
}

func TestActiveDies(t *testing.T) {
	p := serving(t, &models.Card{Name: "a"})
	p.Gone(1, "signal: killed")
	got := p.Step()
	if len(got) != 1 || got[0].Kind != Reclaim || got[0].Generation != 1 {
		t.Fatalf("commands %v, want generation 1 reclaimed", got)
	}
	if q := p.Process(2); q.Role != control.Serve {
		t.Fatalf("shadow %+v, want it woken", q)
	}
	up(p, 2)
	if got := kinds(p.Step()); len(got) != 1 || got[0] != SetEpoch {
		t.Fatalf("commands %v, want the epoch set", got)
	}
}

func TestPartialWarmup(t *testing.T) {
	card := &models.Card{Name: "a"}
	p := New(card, 30)
	p.Step()
	if !p.Process(1).Early {
		t.Error("the first process is not early")
	}
	up(p, 1)
	p.Step()
	p.Observe(1, control.Active, "")
	p.Step()
	p.Whole(1)
	up(p, 2)
	p.Observe(2, control.Loaded, "")
	p.SetShare(50)
	p.Step()
	if q := p.Process(2); q.Role != control.Serve || q.Early {
		t.Errorf("shadow %+v, want it woken to be whole while another serves", q)
	}
	up(p, 2)
	p.Step()
	p.Gone(2, "killed")
	p.Step()
	if q := p.Process(3); q.Role != control.Serve || !q.Early {
		t.Errorf("process %+v, want one that is early after a death", q)
	}
	// The pair can return from a replacement to the old model, so the
	// replacement must be whole first.
	up(p, 3)
	p.Step()
	p.Replace(&models.Card{Name: "b"})
	p.Gone(3, "killed")
	p.Step()
	if q := p.Process(4); q.Role != control.Serve || q.Early {
		t.Errorf("replacement %+v, want it whole before it serves", q)
	}
}

// A model that is never whole serves with a part of its batch sizes only once.
func TestWarmupAfterEarlyDeath(t *testing.T) {
	for name, c := range map[string]struct {
		ends  func(*Pair)
		early bool
	}{
		"by itself":           {func(p *Pair) { p.Gone(1, "it cannot grow") }, false},
		"and is still heard":  {func(p *Pair) { p.Died(1, "it cannot grow") }, false},
		"for another's fault": {func(p *Pair) { p.Excuse(1); p.Gone(1, "lost") }, true},
		"with the device":     {func(p *Pair) { p.Lost("", 0, "lost") }, true},
		"once it was whole":   {func(p *Pair) { p.Whole(1); p.Gone(1, "killed") }, true},
	} {
		t.Run(name, func(t *testing.T) {
			p := New(&models.Card{Name: "a"}, 30)
			p.Step()
			up(p, 1)
			p.Step()
			p.Observe(1, control.Active, "")
			p.Step()
			c.ends(p)
			p.Step()
			if q := p.Process(2); q.Role != control.Serve || q.Early != c.early {
				t.Fatalf("next %+v, want early %v", q, c.early)
			}
			up(p, 2)
			p.Step()
			p.Whole(2)
			p.Gone(2, "killed")
			p.Step()
			if q := p.Process(3); q == nil || !q.Early {
				t.Errorf("next %+v, want it early after one that was whole", q)
			}
		})
	}
}

func TestDeadProcessStaysListed(t *testing.T) {
	p := serving(t, &models.Card{Name: "a"})
	p.Died(1, "process ended")
	if got := p.Step(); len(got) != 1 || got[0].Kind != Reclaim || got[0].Generation != 1 {
		t.Fatalf("commands %v, want generation 1 reclaimed", got)
	}
	if q := p.Process(1); q == nil || q.Role != control.Drain || p.Process(2).Role != control.Serve {
		t.Fatalf("dead process %+v, want it listed, and its shadow woken", q)
	}
	p.Observe(1, control.Failed, "signal: killed")
	if got := p.Step(); len(got) != 0 || p.Process(1) != nil {
		t.Fatalf("commands %v, process %+v; want nothing more of it", got, p.Process(1))
	}
}

func TestReplaceFails(t *testing.T) {
	old, bad := &models.Card{Name: "a", Version: 1}, &models.Card{Name: "a", Version: 2}
	for _, at := range []control.State{control.Starting, control.Loaded, control.Linking} {
		p := serving(t, old)
		p.Replace(bad)
		p.Step()
		q := p.Shadow()
		if q == nil || q.Card != bad {
			t.Fatalf("shadow %+v, want one with the new model", q)
		}
		if at != control.Starting {
			p.Attach(q.Generation)
			p.Observe(q.Generation, control.Loaded, "")
			p.Step()
		}
		p.Observe(q.Generation, control.Failed, "no such file")
		got := kinds(p.Step())
		if len(got) != 2 || got[0] != Reclaim || got[1] != Rejected {
			t.Fatalf("%s: commands %v, want reclaimed and rejected", at, got)
		}
		if p.Card() != old || p.Active() == nil || p.Active().Generation != 1 {
			t.Fatalf("%s: card %v, active %+v; want the old model to go on", at, p.Card(), p.Active())
		}
		if s := p.Shadow(); s == nil || s.Card != old {
			t.Fatalf("%s: shadow %+v, want a new one with the old model", at, s)
		}
	}
}

func TestReplace(t *testing.T) {
	old, better := &models.Card{Name: "a", Version: 1}, &models.Card{Name: "a", Version: 2}
	p := serving(t, old)
	p.Replace(better)
	p.Step()
	if q := p.Process(2); q.Role != control.Kill {
		t.Fatalf("shadow of the old model %+v, want it killed", q)
	}
	g := p.Shadow().Generation
	p.Attach(g)
	p.Observe(g, control.Loaded, "")
	p.Step()
	up(p, g)
	got := kinds(p.Step())
	if len(got) != 3 || got[0] != SetEpoch || got[2] != Replaced {
		t.Fatalf("commands %v, want epoch, promotion, replacement", got)
	}
}

func TestRemove(t *testing.T) {
	p := serving(t, &models.Card{Name: "a"})
	p.Remove()
	p.Step()
	for _, q := range p.Processes() {
		if q.Role != control.Drain {
			t.Fatalf("process %+v, want it drained", q)
		}
	}
	p.Observe(1, control.Stopped, "")
	p.Observe(2, control.Stopped, "")
	p.Step()
	if !p.Removed() {
		t.Fatal("not removed though both processes ended")
	}
}

func TestRestart(t *testing.T) {
	p := New(&models.Card{Name: "a"}, 30)
	p.Restart = true
	p.Step()
	up(p, 1)
	p.Step()
	p.Observe(1, control.Active, "")
	p.SetShare(50)
	p.Step()
	if got := p.Processes(); len(got) != 1 || got[0].Role != control.Drain {
		t.Fatalf("processes %+v, want the one there is, draining", got)
	}
	p.Observe(1, control.Stopped, "")
	p.Step()
	if q := p.Process(2); q == nil || q.Role != control.Serve || q.SharePercent != 50 {
		t.Fatalf("process %+v, want a new one that serves with 50 %%", q)
	}
	up(p, 2)
	if got := kinds(p.Step()); len(got) != 2 || got[0] != SetEpoch || got[1] != Promoted {
		t.Fatalf("commands %v, want the epoch set and a promotion", got)
	}
}

// onDemand returns a pair without a shadow, whose first generation is active.
func onDemand(t *testing.T, card *models.Card) *Pair {
	t.Helper()
	p := New(card, 30)
	p.OnDemand = true
	p.Step()
	up(p, 1)
	p.Step()
	p.Observe(1, control.Active, "")
	p.Step()
	if len(p.Processes()) != 1 || p.Active() == nil || p.Shadow() != nil {
		t.Fatalf("processes %+v, want one that is active", p.Processes())
	}
	return p
}

func TestOnDemand(t *testing.T) {
	old, better := &models.Card{Name: "a", Version: 1}, &models.Card{Name: "a", Version: 2}

	t.Run("model", func(t *testing.T) {
		p := onDemand(t, old)
		p.Replace(better)
		p.Step()
		if q := p.Shadow(); q == nil || q.Generation != 2 || q.Card != better || p.Active().Role != control.Serve {
			t.Fatalf("shadow %+v, want one of the new model while the old one serves", q)
		}
		p.Attach(2)
		p.Observe(2, control.Loaded, "")
		p.Step()
		up(p, 2)
		if got := kinds(p.Step()); len(got) != 3 || got[0] != SetEpoch || got[1] != Promoted || got[2] != Replaced {
			t.Fatalf("commands %v, want epoch, promotion, replacement", got)
		}
		p.Observe(1, control.Stopped, "")
		p.Observe(2, control.Active, "")
		if p.Step(); len(p.Processes()) != 1 {
			t.Fatalf("processes %+v, want the new one alone", p.Processes())
		}
	})
	t.Run("model that cannot start", func(t *testing.T) {
		p := onDemand(t, old)
		p.Replace(better)
		p.Step()
		p.Observe(2, control.Failed, "no such file")
		if got := kinds(p.Step()); len(got) != 2 || got[1] != Rejected {
			t.Fatalf("commands %v, want reclaimed and rejected", got)
		}
		if len(p.Processes()) != 1 || p.Active().Generation != 1 {
			t.Fatalf("processes %+v, want the old one alone", p.Processes())
		}
	})
	t.Run("share", func(t *testing.T) {
		p := onDemand(t, old)
		p.SetShare(50)
		p.Step()
		if p.Shadow() == nil {
			t.Fatal("no process is started for the new share")
		}
		p.SetShare(30)
		if p.Step(); p.Shadow() != nil || p.Process(2).Role != control.Kill {
			t.Fatalf("process %+v, want it ended: nothing changes any more", p.Process(2))
		}
	})
	t.Run("death", func(t *testing.T) {
		p := onDemand(t, old)
		p.Whole(1)
		p.Gone(1, "signal: killed")
		p.Step()
		if q := p.Process(2); q == nil || q.Role != control.Serve || !q.Early {
			t.Fatalf("process %+v, want one that serves as soon as it can", q)
		}
	})
	t.Run("hold", func(t *testing.T) {
		p := onDemand(t, old)
		p.Hold(true)
		p.Gone(1, "killed")
		if p.Step(); len(p.Processes()) != 0 {
			t.Fatalf("processes %+v, want none", p.Processes())
		}
		p.Hold(false)
		p.Step()
		if q := p.Process(2); q == nil || q.Role != control.Serve {
			t.Fatalf("process %+v, want one that serves", q)
		}
	})
	t.Run("shadow that stood by", func(t *testing.T) {
		p := serving(t, old)
		p.OnDemand = true
		if p.Step(); p.Shadow() != nil || p.Process(2).Role != control.Kill {
			t.Fatalf("process %+v, want the shadow ended", p.Process(2))
		}
	})
}

func TestLostDevice(t *testing.T) {
	p := serving(t, &models.Card{Name: "a"})
	p.Lost("", 1, "device is lost")
	if got := p.Step(); len(got) != 0 {
		t.Fatalf("commands %v, want none: the ring is the lost one's until it is gone", got)
	}
	if q := p.Process(1); q == nil || q.Role != control.Kill {
		t.Fatalf("lost process %+v, want it killed", q)
	}
	if q := p.Process(2); q.Role != control.Serve || !p.Changing() {
		t.Fatalf("shadow %+v, want it woken", q)
	}
	p.Gone(1, "signal: killed")
	if got := p.Step(); len(got) != 1 || got[0].Kind != Reclaim || got[0].Generation != 1 {
		t.Fatalf("commands %v, want generation 1 reclaimed", got)
	}
	// Another process reports the same fault. The linking process was woken
	// after it.
	p.Observe(2, control.Linking, "")
	p.Lost("", 0, "device is lost")
	p.Step()
	if q := p.Process(2); q == nil || q.Role != control.Serve {
		t.Fatalf("woken process %+v, want it let be", q)
	}
	up(p, 2)
	if got := kinds(p.Step()); len(got) != 1 || got[0] != SetEpoch {
		t.Fatalf("commands %v, want the epoch set", got)
	}
}

func TestReplacementFaults(t *testing.T) {
	old, bad := &models.Card{Name: "a", Version: 1}, &models.Card{Name: "a", Version: 2}
	for _, culprit := range []bool{true, false} {
		p := serving(t, old)
		p.Replace(bad)
		p.Step()
		g := p.Shadow().Generation
		p.Attach(g)
		p.Observe(g, control.Loaded, "")
		p.Step()
		p.Observe(g, control.Linking, "")
		to := uint32(0)
		if culprit {
			to = g
		}
		p.Lost("", to, "device is lost")
		rejected := kinds(p.Step())
		if culprit != (p.Card() == old) || culprit != (len(rejected) == 1 && rejected[0] == Rejected) {
			t.Errorf("culprit %v: commands %v, card version %d", culprit, rejected, p.Card().Version)
		}
	}
}

func TestReplaceExcused(t *testing.T) {
	old, better := &models.Card{Name: "a", Version: 1}, &models.Card{Name: "a", Version: 2}
	p := serving(t, old)
	p.Replace(better)
	p.Step()
	g := p.Shadow().Generation
	p.Attach(g)
	p.Observe(g, control.Loaded, "")
	p.Step()
	p.Observe(g, control.Linking, "")
	p.Lost("", 0, "device is lost")
	p.Excuse(g)
	p.Observe(g, control.Failed, "device is lost")
	if got := kinds(p.Step()); len(got) != 1 || got[0] != Reclaim || p.Card() != better {
		t.Fatalf("commands %v, card version %d; want it reclaimed and the new model kept", got, p.Card().Version)
	}
	p.Gone(1, "killed")
	p.Step()
	up(p, g+1)
	if got := kinds(p.Step()); len(got) == 0 || got[len(got)-1] != Replaced {
		t.Fatalf("commands %v, want the next process to bring the new model", got)
	}
}

// ends reports that a generation answers wrongly at its share, and ends it.
func ends(p *Pair, generation uint32) {
	p.Wrong(generation)
	p.Observe(generation, control.Failed, "wrong")
	p.Step()
}

// A process that answers wrongly at its share never serves. Its successor serves on the whole
// device until a share is right.
func TestWrongShare(t *testing.T) {
	card := &models.Card{Name: "a"}
	p := New(card, 30)
	p.Step()
	p.SetShare(28)
	ends(p, 1)
	if q := p.Process(2); q == nil || q.Role != control.Serve || q.SharePercent != 100 || p.Active() != nil {
		t.Fatalf("next %+v, active %+v; want a process on the whole device", q, p.Active())
	}
	up(p, 2)
	p.Step()
	p.Observe(2, control.Active, "")
	p.Step()

	tryNext := func(generation uint32, percent float64) {
		t.Helper()
		up(p, generation)
		p.Observe(generation, control.Loaded, "")
		p.Step()
		if q := p.Process(generation); q == nil || q.Role != control.Serve || q.SharePercent != percent || p.Active().Generation != 2 {
			t.Fatalf("shadow %+v, want it woken with %v %% while generation 2 serves", q, percent)
		}
	}
	tryNext(3, 28)
	p.SetShare(27)
	ends(p, 3)
	tryNext(4, 27)
	up(p, 4)
	if p.Step(); p.Active().Generation != 4 || p.Active().SharePercent != 27 {
		t.Fatalf("active %+v, want generation 4 with 27 %%", p.Active())
	}

	// From now on a dead process has a successor with the same share.
	p.Gone(4, "killed")
	if p.Step(); p.next == nil || p.next.SharePercent != 27 {
		t.Errorf("next %+v, want 27 %%", p.next)
	}
}

// If there is no other share, the active process continues, and no process tries again.
func TestWrongShareStays(t *testing.T) {
	p := serving(t, &models.Card{Name: "a"})
	p.SetShare(50)
	p.Step()
	ends(p, 2)
	up(p, 3)
	p.Observe(3, control.Loaded, "")
	p.Step()
	if q := p.Active(); q == nil || q.Generation != 1 || q.SharePercent != 30 || p.Changing() {
		t.Errorf("active %+v, changing %v; want generation 1 to continue with 30 %%", q, p.Changing())
	}
	p.SetShare(40)
	if p.Step(); p.next == nil || p.next.SharePercent != 40 {
		t.Errorf("next %+v, want another share to be tried", p.next)
	}
}

// A new model that answers wrongly at every share is given up, a first one fails as any other does.
func TestWrongModel(t *testing.T) {
	p := serving(t, &models.Card{Name: "a"})
	p.Replace(&models.Card{Name: "b"})
	p.Step()
	up(p, 3)
	p.Observe(3, control.Loaded, "")
	p.Step()
	p.Wrong(3)
	p.Observe(3, control.Failed, "wrong")
	if got := kinds(p.Step()); len(got) != 2 || got[1] != Rejected {
		t.Errorf("commands %v, want the model rejected", got)
	}

	p = New(&models.Card{Name: "a"}, 30)
	p.Step()
	ends(p, 1)
	if p.Wrong(2); p.Process(2).SharePercent != 100 || p.Process(2).Excused() {
		t.Errorf("%+v, want a process on the whole device, whose model is to blame", p.Process(2))
	}
}

// Without a shadow, a process gives way to one with the next share.
func TestWrongShareRestarts(t *testing.T) {
	p := New(&models.Card{Name: "a"}, 30)
	p.Restart = true
	p.Step()
	p.SetShare(28)
	ends(p, 1)
	up(p, 2)
	p.Step()
	p.Step()
	p.Observe(2, control.Stopped, "")
	if p.Step(); p.next == nil || p.next.SharePercent != 28 {
		t.Errorf("next %+v, want 28 %%", p.next)
	}
}

func TestHold(t *testing.T) {
	p := serving(t, &models.Card{Name: "a"})
	p.Hold(true)
	p.Step()
	if p.Active() != nil || p.Process(1).Role != control.Kill {
		t.Fatalf("active %+v, process %+v; want it killed", p.Active(), p.Process(1))
	}
	p.Gone(1, "killed")
	p.Step()
	if q := p.Process(2); q == nil || q.Role != control.Shadow {
		t.Fatalf("shadow %+v, want it to stand by", q)
	}
	p.Hold(false)
	p.Step()
	if q := p.Process(2); q.Role != control.Serve {
		t.Fatalf("shadow %+v, want it woken", q)
	}
}

// The pair leaves a device that fails permanently, and no model is given up for it.
func TestLeave(t *testing.T) {
	card := &models.Card{Name: "a"}
	p := serving(t, card)
	p.Move("b")
	p.Leave("")
	p.Step()
	next := p.Process(3)
	if p.Active() != nil || next == nil || next.Device != "b" || next.Role != control.Serve || p.Process(1).Role != control.Kill || p.Process(2).Role != control.Kill {
		t.Fatalf("processes %+v, want all killed except one on b that is to serve", p.Processes())
	}
	p.Gone(1, "device is lost")
	p.Gone(2, "device is lost")
	p.Gone(3, "out of memory")
	for _, command := range p.Step() {
		if command.Kind == Rejected {
			t.Fatalf("%+v, want it to try b again", command)
		}
	}
	if q := p.Process(4); q == nil || q.Run != (Run{card, "b"}) {
		t.Fatalf("processes %+v, want another on b", p.Processes())
	}
}

// For any events in any order, the invariants hold. Once the environment
// behaves again, a process serves as desired.
func TestPairRecovers(t *testing.T) {
	states := []control.State{control.Starting, control.Loaded, control.Linking, control.Ready, control.Active, control.Draining, control.Stopped, control.Failed}
	rapid.Check(t, func(t *rapid.T) {
		cards := []*models.Card{{Name: "a", Version: 1}, {Name: "a", Version: 2}, {Name: "a", Version: 3}}
		devices := []string{"", "cuda:1"}
		p := New(cards[0], 30)
		p.InPlace = rapid.Bool().Draw(t, "in place")
		p.Restart = rapid.Bool().Draw(t, "restart")
		p.OnDemand = rapid.Bool().Draw(t, "on demand")
		check := func() {
			p.Step()
			must.OK(t, p.check())
		}
		check()
		for range rapid.IntRange(0, 60).Draw(t, "events") {
			generation := rapid.Uint32Range(0, p.last+1).Draw(t, "generation")
			switch rapid.IntRange(0, 12).Draw(t, "event") {
			case 0:
				p.Attach(generation)
			case 1:
				p.Observe(generation, rapid.SampledFrom(states).Draw(t, "state"), "because")
			case 2:
				p.Gone(generation, "died")
			case 3:
				p.SetShare(float64(rapid.IntRange(5, 100).Draw(t, "share")))
			case 4:
				p.Replace(rapid.SampledFrom(cards).Draw(t, "card"))
			case 5:
				p.Lost(rapid.SampledFrom(devices).Draw(t, "device"), generation, "device is lost")
			case 6:
				p.Died(generation, "died")
			case 7:
				p.Renew()
			case 8:
				p.Hold(rapid.Bool().Draw(t, "held"))
			case 9:
				p.Excuse(generation)
			case 10:
				p.OnDemand = !p.OnDemand
			case 11:
				p.Move(rapid.SampledFrom(devices).Draw(t, "device"))
			case 12:
				p.Leave(rapid.SampledFrom(devices).Draw(t, "device"))
			}
			check()
			if p.Held() && (p.Active() != nil || p.Changing()) {
				t.Fatalf("held, and %+v serves", p.Active())
			}
		}
		p.Hold(false)
		// The environment behaves: every process does what its role requires.
		for range 20 {
			for _, q := range append([]*Process(nil), p.Processes()...) {
				q.Attached = true
				switch {
				case q.Role == control.Kill || q.Role == control.Drain:
					p.Observe(q.Generation, control.Stopped, "")
				case q.Role == control.Shadow:
					p.Observe(q.Generation, control.Loaded, "")
				case q == p.active:
					p.Observe(q.Generation, control.Active, "")
				default:
					p.Observe(q.Generation, control.Ready, "")
				}
			}
			check()
		}
		if p.Active() == nil || p.Active().Run != (Run{p.Card(), p.Device()}) || !p.Restart && p.Active().SharePercent != p.Share() {
			t.Fatalf("active %+v, want share %v, card %v and device %q", p.Active(), p.Share(), p.Card(), p.Device())
		}
		if p.Restart || p.OnDemand {
			if len(p.Processes()) != 1 {
				t.Fatalf("%d processes, want one", len(p.Processes()))
			}
			return
		}
		if p.Shadow() == nil || len(p.Processes()) != 2 {
			t.Fatalf("%d processes, shadow %+v; want an active and a shadow", len(p.Processes()), p.Shadow())
		}
	})
}

// check reports a broken invariant: at most one process in each place, every
// process desired at most once, a place held only by a desired process.
func (p *Pair) check() error {
	seen := map[uint32]bool{}
	for _, q := range p.processes {
		if seen[q.Generation] {
			return fmt.Errorf("generation %d is listed twice", q.Generation)
		}
		seen[q.Generation] = true
	}
	places := map[*Process]string{}
	for name, q := range map[string]*Process{"active": p.active, "next": p.next, "shadow": p.shadow} {
		if q == nil {
			continue
		}
		if other, taken := places[q]; taken {
			return fmt.Errorf("generation %d is both %s and %s", q.Generation, other, name)
		}
		if !seen[q.Generation] {
			return fmt.Errorf("generation %d is %s and not desired", q.Generation, name)
		}
		places[q] = name
	}
	return nil
}
