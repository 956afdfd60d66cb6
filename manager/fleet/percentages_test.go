package fleet

import (
	"slices"
	"strings"
	"testing"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/manager/sharing"
)

// onH200 reports whether f16 models answer wrongly at a percentage of an H200, as measured
// (docs/adr/0007-onnx-on-a-gpu.md). MPS assigns pairs of multiprocessors, at least four.
func onH200(percent float64) (wrong bool) {
	sms := max(8, int(percent*132/100)/2*2)
	return sms >= 18 && sms <= 28 || sms >= 36 && sms <= 60 || sms >= 68 && sms <= 116
}

// shadowed is a function whose share is a percentage.
func shadowed(name string, percent float64) configs.Function {
	f := named(name, percent)
	f.Change = configs.ChangeShadow
	return f
}

// settlesRight lets the node try percentages until none of the functions changes. No process that
// serves may have a wrong one.
func (b *nodeBed) settlesRight(names ...string) (shares []float64) {
	b.t.Helper()
	for range 150 {
		for range 4 {
			b.turn()
			for v, p := range b.fakes {
				if p.state == control.Active && b.misanswers(v, p) {
					b.t.Fatalf("%v serves with %v %%, which is wrong", v, p.share)
				}
			}
		}
		if !slices.ContainsFunc(names, func(name string) bool {
			in := b.instance(name, 0)
			return in.pair.Active() == nil || in.pair.Changing() || b.status(name).SharePercent != in.pair.Share()
		}) {
			break
		}
	}
	for _, name := range names {
		_, p := b.serves(name)
		if in := b.instance(name, 0); p.share != in.pair.Share() {
			b.t.Errorf("%s serves with %v %%, want %v %%", name, p.share, in.pair.Share())
		}
		shares = append(shares, p.share)
	}
	return shares
}

// tries counts the orders to serve at wrong percentages.
func (b *nodeBed) tries() (n int) {
	for _, w := range b.woken {
		if b.wrong(w.name, w.percent) {
			n++
		}
	}
	return n
}

// f16 makes all models answer wrongly as on an H200.
func (b *nodeBed) f16() *nodeBed {
	b.wrong = func(_ string, percent float64) bool { return onH200(percent) }
	return b
}

// No order is given before the device is known, no process serves at a percentage at which its model
// answers wrongly, and the next start knows these percentages.
func TestRightPercentages(t *testing.T) {
	ungrouped := h200()
	ungrouped.GroupSMs, ungrouped.Why = nil, "no green contexts"
	unmeasured := h200()
	unmeasured.Name, unmeasured.UUID = "NVIDIA H900", "GPU-9"
	for name, gpu := range map[string]*control.GPU{"by shadows": ungrouped, "next to partitions": h200(), "another GPU": unmeasured} {
		t.Run(name, func(t *testing.T) {
			cache := t.TempDir()
			functions := []configs.Function{shadowed("a", 30), shadowed("b", 30), shadowed("c", 30)}
			var before []float64
			for start := range 2 {
				b := newCachedNode(t, cache, "cuda", nil, "", functions...).f16()
				b.turns()
				if len(b.fakes) > 0 || slices.ContainsFunc(b.functions, func(f *function) bool { return len(f.instances[0].pair.Processes()) > 0 }) {
					t.Fatalf("processes %v are ordered before the device is known", b.fakes)
				}

				b.gpu, b.mechanism = gpu, sharing.MechanismMPS
				shares := b.settlesRight("a", "b", "c")
				sum := 0.0
				for _, s := range shares {
					sum += s
				}
				if sum > 100 || slices.Min(shares) < 26 {
					t.Errorf("shares %v, want right ones near 30 %%", shares)
				}
				switch {
				case start == 0:
					before = shares
					t.Logf("%v after %d tries at wrong percentages", shares, b.tries())
				case b.tries() > 0 || !slices.Equal(shares, before):
					t.Errorf("the second start tries wrong percentages %d times and ends with %v, want none and %v", b.tries(), shares, before)
				}
			}
		})
	}
}

// A function whose first process answers wrongly serves on the whole device meanwhile.
func TestWrongFirstPercentage(t *testing.T) {
	b := newNode(t, "cuda", h200(), sharing.MechanismMPS, shadowed("a", 30)).f16()
	b.settlesRight("a")
	want := []wake{{"a", 30}, {"a", 100}, {"a", 31}, {"a", 33}}
	if len(b.woken) < len(want) || !slices.Equal(b.woken[:len(want)], want) {
		t.Errorf("orders %v, want them to begin with %v", b.woken, want)
	}
	if share := b.instance("a", 0).pair.Share(); share != 48 {
		t.Errorf("share %v %%, want 48, the first right one above 30", share)
	}
	if s := b.status("a"); s.SharePercent != 48 || !b.functions.find("a").instances.serving() {
		t.Errorf("status %+v", s)
	}

	if in := b.instance("a", 0); in.failures.count != 0 || in.failures.last == nil {
		t.Errorf("%d failures, the last one %+v; want the tries not to be counted", in.failures.count, in.failures.last)
	}

	// Another share is tried while the process serves.
	at := len(b.woken)
	must.OK(t, b.setShare("a", 20))
	b.settlesRight("a")
	if slices.Contains(b.woken[at:], wake{"a", 100}) {
		t.Errorf("orders %v, want none on the whole device while a process serves", b.woken[at:])
	}
}

// Partitions show the libraries the whole device, and f32 models are right everywhere.
func TestOtherShares(t *testing.T) {
	b := newNode(t, "cuda", h200(), sharing.MechanismMPS, named("grouped", 30), shadowed("f32", 30)).f16()
	b.wrong = func(name string, percent float64) bool { return name != "f32" && onH200(percent) }
	b.settlesRight("f32")
	if _, p := b.serves("grouped"); len(p.on) == 0 || b.tries() > 0 || b.instance("f32", 0).pair.Share() != 30 {
		t.Errorf("%+v on groups, orders %v", p, b.woken)
	}
}

// Shares that an operator sets are free unless they are wrong.
func TestPercentagesByHand(t *testing.T) {
	b := newNode(t, "cuda", h200(), sharing.MechanismMPS)
	b.cfg.Shares.Tune = false
	b.f16()
	for _, f := range []configs.Function{shadowed("a", 25.5), shadowed("b", 30)} {
		must.OK(t, b.add(f))
	}
	if shares := b.settlesRight("a", "b"); !slices.Equal(shares, []float64{25.5, 48}) {
		t.Errorf("shares %v, want 25.5 as set, and a right one for 30", shares)
	}
}

// A model that answers wrongly on the whole device, too, is refused as any other that cannot start.
func TestWrongModel(t *testing.T) {
	b := newNode(t, "cuda", h200(), sharing.MechanismMPS)
	b.wrong = func(string, float64) bool { return true }
	end, err := b.try(shadowed("a", 30))
	must.OK(t, err)
	for range 5 {
		b.turns()
	}
	select {
	case err := <-end:
		if err == nil || !strings.Contains(err.Error(), misanswers) {
			t.Errorf("it ended with %v, want %q", err, misanswers)
		}
	default:
		t.Error("it is tried again and again")
	}
	if in := b.instance("a", 0); in != nil && in.failures.count == 0 {
		t.Error("the failure on the whole device is not counted")
	}
	if want := []wake{{"a", 30}, {"a", 100}}; !slices.Equal(b.woken, want) {
		t.Errorf("orders %v, want %v", b.woken, want)
	}
}

// A process may serve before all its batch sizes are checked only at a percentage that is known to
// be right.
func TestPartialWarmupPercentage(t *testing.T) {
	b := newNode(t, "cuda", h200(), sharing.MechanismMPS, shadowed("a", 25))
	b.turns()
	generation, p := b.serves("a")
	if p.early {
		t.Errorf("%+v, want all batch sizes before it serves", p)
	}
	p.die(control.Failed, "killed")
	b.instance("a", 0).lost(generation)
	b.instance("a", 0).endAwait(generation)
	b.turns()
	if next, p := b.serves("a"); !p.early || p.share != 25 {
		t.Errorf("generation %d %+v, want it to begin with its smallest batch size at 25 %%", next, p)
	}
}
