package sharing

import (
	"testing"
	"time"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/manager/policy/gslice"
)

// A ticker is a little early or late. A share stays for one hold-down, not by chance for
// an interval longer.
func TestHoldDownEnds(t *testing.T) {
	cfg := configs.Shares{MinimumPercent: 5, HoldDown: time.Second, Interval: 200 * time.Millisecond}
	shares, err := gslice.NewController(shareConfig(&configs.Config{Shares: cfg}))
	must.OK(t, err)
	id := gslice.ID{IF: "a"}
	must.OK(t, shares.Add(id, 40))
	const early = 100 * time.Microsecond
	shares.Step(early, nil)
	short := map[gslice.ID]gslice.Observation{id: {Latency: 75 * time.Millisecond, SLO: 50 * time.Millisecond, Throughput: 100, ArrivalRate: 50}}
	if p := shares.Step(800*time.Millisecond, short); len(p.Changes) != 0 {
		t.Errorf("changes %+v a look before the end of the hold-down", p.Changes)
	}
	if p := shares.Step(time.Second, short); len(p.Changes) != 1 {
		t.Errorf("changes %+v at its end, want one", p.Changes)
	}
}

// With spread_slack a lone function has the whole device, as in the paper (Fig. 15b), and two have
// what is left in proportion to their demands.
func TestSpreadSlackKey(t *testing.T) {
	for spread, want := range map[string][2]float64{"false": {30, 30}, "true": {100, 50}} {
		cfg, err := configs.Decode("test", []byte("shares: {policy: gslice, spread_slack: "+spread+"}\nfunctions: []\n"))
		must.OK(t, err)
		shares, err := gslice.NewController(shareConfig(&cfg))
		must.OK(t, err)
		for i, name := range []string{"a", "b"} {
			must.OK(t, shares.Add(gslice.ID{IF: name}, 0))
			if got := shares.Step(0, nil).Status[0].Percent; got != want[i] {
				t.Errorf("spread_slack %s: %d functions have %v %%, want %v", spread, i+1, got, want[i])
			}
		}
	}
}
