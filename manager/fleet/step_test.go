package fleet

import (
	"fmt"
	"testing"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/internal/testing/must"
)

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
		}{{"snapshot", func() { n.sharing.snapshot(n.sharing.seen[:0]) }}, {"decide", func() { n.sharing.decide(occasion{}) }}, {"publish", n.publish}, {"all", n.Step}, {"watch", n.Watch}} {
			b.Run(string(policy)+"/"+part.name, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					part.do()
				}
			})
		}
	}
}
