package fleet

import (
	"reflect"
	"testing"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/manager/sharing"
)

// probedNode runs two functions with the default policy on a GPU whose stream priorities were
// measured.
func probedNode(t *testing.T, p *control.StreamPriorities, edit func(*configs.Config), functions ...configs.Function) *nodeBed {
	t.Helper()
	b := newNode(t, "cuda", nil, "")
	b.cfg.Shares.Policy = configs.PolicyGuarantee
	edit(&b.cfg)
	for _, f := range functions {
		must.OK(t, b.add(f))
	}
	b.turn()
	b.gpu, b.mechanism = h200(), sharing.MechanismMPS
	b.gpu.Priorities = p
	b.turns()
	return b
}

func TestPrioritiesChoosePolicy(t *testing.T) {
	hold := &control.StreamPriorities{Hold: true, AloneMicros: 30, HighMicros: 40, EqualMicros: 4000}
	fail := &control.StreamPriorities{AloneMicros: 30, HighMicros: 4000, EqualMicros: 4000}
	chosen := func(c *configs.Config) { c.PolicySet = true }
	for _, c := range []struct {
		name        string
		priorities  *control.StreamPriorities
		edit        func(*configs.Config)
		policy      configs.Policy
		unprotected control.Unprotected
	}{
		{"hold", hold, func(*configs.Config) {}, configs.PolicyGuarantee, ""},
		{"unknown", nil, func(*configs.Config) {}, configs.PolicyGuarantee, ""},
		{"do not hold", fail, func(*configs.Config) {}, configs.PolicyGSLICE, ""},
		{"do not hold, policy is set", fail, chosen, configs.PolicyGuarantee, control.UnprotectedByPriorities},
		{"do not hold, and shares do not fit", fail, func(c *configs.Config) { c.Shares.MinimumPercent = 60 }, configs.PolicyGuarantee, control.UnprotectedByPriorities},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := probedNode(t, c.priorities, c.edit, named("a", 30), named("b", 0))
			for _, name := range []string{"a", "b"} {
				b.serves(name)
				s := b.status(name)
				divided := c.policy == configs.PolicyGSLICE
				if divided != (s.Guarantee == nil) || divided != (s.Change == string(configs.ChangeShadow)) {
					t.Errorf("%s: guarantee %+v, change %s", name, s.Guarantee, s.Change)
				}
				if s.Guarantee != nil && s.Guarantee.Unprotected != c.unprotected {
					t.Errorf("%s is unprotected by %q, want %q", name, s.Guarantee.Unprotected, c.unprotected)
				}
			}
			if got := b.page(); got.Policy != string(c.policy) || !reflect.DeepEqual(got.Device.Priorities, c.priorities) {
				t.Errorf("status has policy %s, %+v", got.Policy, got.Device.Priorities)
			}
		})
	}
}

// After the fallback functions have shares like those of a node with the policy gslice.
func TestSharesWithoutPriorities(t *testing.T) {
	fail := &control.StreamPriorities{AloneMicros: 30, HighMicros: 4000, EqualMicros: 4000}
	functions := []configs.Function{named("a", 30), named("b", 0), named("c", 0)}
	want := newNode(t, "cuda", h200(), sharing.MechanismMPS)
	for _, f := range functions {
		f.Change = configs.ChangeShadow
		must.OK(t, want.add(f))
	}
	want.turns()
	got := probedNode(t, fail, func(*configs.Config) {}, functions...)
	for _, f := range functions {
		if g, w := got.status(f.Name).SharePercent, want.status(f.Name).SharePercent; g != w {
			t.Errorf("%s has %v %%, want %v", f.Name, g, w)
		}
		if _, p := got.serves(f.Name); len(p.on) > 0 {
			t.Errorf("%s runs on groups %v, want a percentage", f.Name, p.on)
		}
	}
	// A function that is added and one that is removed take part.
	must.OK(t, got.add(named("d", 0)))
	got.turns()
	if s := got.status("d"); s.SharePercent == 0 || s.Guarantee != nil {
		t.Errorf("d has %v %%, %+v", s.SharePercent, s.Guarantee)
	}
	must.OK(t, got.remove("a"))
	got.turns()

	// The configuration file still leaves the policy out, so no key needs a restart.
	c := got.cfg
	c.Shares.Policy = configs.PolicyGuarantee
	got.noteRestart(c)
	if keys := got.file.status.NeedRestart; len(keys) > 0 {
		t.Errorf("keys %v need a restart", keys)
	}
	c.PolicySet = true
	got.noteRestart(c)
	if keys := got.file.status.NeedRestart; len(keys) != 1 || keys[0] != "shares.policy" {
		t.Errorf("keys %v need a restart, want shares.policy", keys)
	}
}
