package fleet

import (
	"testing"
	"time"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/datapath/aggregate"
)

// TestAdopt checks that requests get the deadlines of a function's new setup.
func TestAdopt(t *testing.T) {
	b := newBed(t, configs.Default(), 100)
	c := b.owner(0, 1)
	for _, slo := range []time.Duration{b.slo, b.slo / 2} {
		next := b.setup
		next.slo = slo
		b.adopt(next)
		s := b.dial() // a client that knows the last objective would ask for it
		s.Send(1)
		slot := c.Await(1)
		if r := c.Request(slot[0]); r.Deadline != r.FirstFragment+int64(aggregate.Within(b.slo, b.fleet.cfg.Transit)) {
			t.Errorf("objective %v: deadline %v after the request, want %v", slo, time.Duration(r.Deadline-r.FirstFragment), aggregate.Within(b.slo, b.fleet.cfg.Transit))
		}
		c.Answer(slot, nil)
		s.Next()
	}
}
