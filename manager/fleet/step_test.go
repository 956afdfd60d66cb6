package fleet

import (
	"fmt"
	"reflect"
	"slices"
	"testing"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/internal/testing/must"
)

// TestPublishedStateStays: the link sends a published state later, so no later step may write into it.
func TestPublishedStateStays(t *testing.T) {
	b := newGuaranteedNode(t, configs.DeviceCPU, named("a", 30), named("b", 30))
	published := b.told.Processes
	before := slices.Clone(published)
	must.OK(t, b.remove("a"))
	b.turns()
	b.turns()
	if b.told.Processes[0].IF != "b" {
		t.Fatalf("the manager wants %+v, want only b", b.told.Processes)
	}
	if !reflect.DeepEqual(published, before) {
		t.Errorf("the published state became %+v, want it as it was: %+v", published, before)
	}
}

// BenchmarkStep is what a step of the control loop costs on a node of 64 functions that serve, and its parts.
func BenchmarkStep(b *testing.B) {
	for _, policy := range []configs.Policy{configs.PolicyGuarantee, configs.PolicyGSLICE} {
		n := newNodeOn(b, configs.DeviceCPU)
		n.cfg.Shares.Policy, n.cfg.Shares.MinimumPercent = policy, 1
		for i := range 64 {
			must.OK(b, n.add(named(fmt.Sprintf("function-%d", i), 1)))
		}
		n.turns()
		for _, part := range []struct {
			name string
			do   func()
		}{{"snapshot", func() { n.devices[0].snapshot(n.devices[0].seen[:0], occasion{}) }}, {"decide", func() { n.devices[0].decide(occasion{}) }}, {"publish", n.publish}, {"all", n.Step}, {"watch", n.Watch}} {
			b.Run(string(policy)+"/"+part.name, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					part.do()
				}
			})
		}
	}
}
