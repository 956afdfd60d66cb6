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
func probedNode(t *testing.T, p *control.StreamPriorities, functions ...configs.Function) *nodeBed {
	t.Helper()
	b := newNode(t, "cuda", nil, "")
	b.cfg.Shares.Policy = configs.PolicyGuarantee
	for _, f := range functions {
		must.OK(t, b.add(f))
	}
	b.turn()
	b.gpu, b.mechanism = h200(), sharing.MechanismMPS
	b.gpu.Priorities = p
	b.turns()
	return b
}

func TestPriorities(t *testing.T) {
	for name, c := range map[string]struct {
		priorities  *control.StreamPriorities
		unprotected control.Unprotected
	}{
		"hold":        {&control.StreamPriorities{Hold: true, AloneMicros: 30, HighMicros: 40, EqualMicros: 4000}, ""},
		"unknown":     {nil, ""},
		"do not hold": {&control.StreamPriorities{AloneMicros: 30, HighMicros: 4000, EqualMicros: 4000}, control.UnprotectedByPriorities},
	} {
		t.Run(name, func(t *testing.T) {
			b := probedNode(t, c.priorities, named("a", 30), named("b", 0))
			for _, name := range []string{"a", "b"} {
				b.serves(name)
				if g := b.status(name).Guarantee; g == nil || g.Unprotected != c.unprotected {
					t.Errorf("%s has %+v, want it unprotected by %q", name, g, c.unprotected)
				}
			}
			if got := b.page(); !reflect.DeepEqual(got.Devices[0].GPU.Priorities, c.priorities) {
				t.Errorf("status has %+v", got.Devices[0].GPU.Priorities)
			}
		})
	}
}
