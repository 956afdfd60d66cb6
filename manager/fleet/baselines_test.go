package fleet

import (
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/manager/sharing"
)

// whole is a function without a share, for a node without shares.
func whole(name string) configs.Function { return configs.Function{Name: name, Instances: 1} }

// withoutShares turns shares off on a node without functions, and adds functions.
func withoutShares(b *nodeBed, functions ...configs.Function) *nodeBed {
	b.cfg.Lab.Change = configs.ChangeNone
	for _, f := range functions {
		must.OK(b.t, b.add(f))
	}
	return b
}

func TestWithoutShares(t *testing.T) {
	for name, node := range map[string]func() *nodeBed{
		"under MPS": func() *nodeBed {
			return withoutShares(newNode(t, "cuda", h200(), sharing.MechanismMPS), whole("a"), whole("b"))
		},
		"on a CPU": func() *nodeBed { return withoutShares(newNode(t, "cpu", nil, "cgroup-v2"), whole("a"), whole("b")) },
	} {
		b := node()
		b.turns()
		for _, p := range b.told.Processes {
			if p.SharePercent != 0 || len(p.SMGroups) > 0 {
				t.Errorf("%s: %s is desired with %v %% and groups %v", name, p.IF, p.SharePercent, p.SMGroups)
			}
		}
		s := b.status("a")
		if s.Change != "none" || s.SharePercent != 100 || !s.Instances[0].WholeDevice || s.Instances[0].SharePercent != 100 {
			t.Errorf("%s: status says %+v", name, s)
		}
		// An operator cannot set a share.
		if err := b.setShare("a", 40); err == nil || !strings.Contains(err.Error(), "change is none") {
			t.Errorf("%s: a share by hand: %v", name, err)
		}
		if err := b.add(named("c", 30)); err == nil || !strings.Contains(err.Error(), "share_percent of function c is 30 %") {
			t.Errorf("%s: a function with a share: %v", name, err)
		}
		// Algorithm 1 sets none either.
		first, _ := b.serves("a")
		b.devices[0].started = b.devices[0].started.Add(-time.Hour)
		b.Tune()
		b.turns()
		if next, _ := b.serves("a"); next != first || b.instance("a", 0).pair.Share() != 0 {
			t.Errorf("%s: generation %d became %d", name, first, next)
		}
		// The shadow of a dead process still takes over.
		shadow, _ := b.shadow("a")
		_, p := b.serves("a")
		p.die(control.Failed, "killed")
		b.turns()
		if next, _ := b.serves("a"); next != shadow {
			t.Errorf("%s: generation %d took over, want its shadow, %d", name, next, shadow)
		}
		// Functions are added, replaced and removed.
		if err := b.add(whole("d")); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		b.turns()
		end, err := b.replace("d", "e")
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for range 3 {
			b.turns()
		}
		if err := <-end; err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err := b.remove("a"); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		b.turns()
		if b.functions.find("a") != nil {
			t.Errorf("%s: a is still there", name)
		}
	}
}

// Instances of a function without shares are equal, so they get equally many requests.
func TestWithoutSharesEvenLoad(t *testing.T) {
	f := whole("a")
	f.Instances = 3
	b := withoutShares(newNode(t, "cpu", nil, "cgroup-v2"), f)
	b.turns()
	fn := b.functions.find("a")
	bed := &bed{fn, t}
	s := bed.dial()
	for tag := range uint64(9) {
		s.Send(tag)
	}
	bed.eventually("all are published", func() bool { return fn.port.Stats().InFlight == 9 })
	for i, in := range fn.instances {
		if n := in.queue.Arrivals(); n != 3 {
			t.Errorf("instance %d has %d requests of 9, want 3", i, n)
		}
	}
	if got := b.status("a").SharePercent; got != 100 {
		t.Errorf("together they may use %v %%, want 100", got)
	}
}
