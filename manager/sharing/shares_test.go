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
	shares := gslice.NewController(shareConfig(&configs.Config{Shares: cfg}))
	id := gslice.ID{IF: "a"}
	shares.Adopt(id, 0, 40)
	const early = 100 * time.Microsecond
	shares.Step(early, nil)
	short := map[gslice.ID]gslice.Observation{id: {Latency: 75 * time.Millisecond, SLO: 50 * time.Millisecond, Throughput: 100, ArrivalRate: 50}}
	if p := shares.Step(800*time.Millisecond, short); len(p) != 0 {
		t.Errorf("changes %+v a look before the end of the hold-down", p)
	}
	if p := shares.Step(time.Second, short); len(p) != 1 {
		t.Errorf("changes %+v at its end, want one", p)
	}
}

// With spread_slack a lone function has the whole device, as in the paper (Fig. 15b), and two have
// what is left in proportion to their demands.
func TestSpreadSlackKey(t *testing.T) {
	for spread, want := range map[string][2]float64{"false": {30, 30}, "true": {100, 50}} {
		cfg, err := configs.Decode("test", []byte("shares: {policy: gslice, spread_slack: "+spread+"}\nfunctions: []\n"))
		must.OK(t, err)
		shares := gslice.NewController(shareConfig(&cfg))
		got := map[string]float64{}
		for i, name := range []string{"a", "b"} {
			shares.Adopt(gslice.ID{IF: name}, 0, 0)
			for _, c := range shares.Step(0, nil) {
				got[c.ID.IF] = c.To
			}
			if got["a"] != want[i] {
				t.Errorf("spread_slack %s: with %d functions a has %v %%, want %v", spread, i+1, got["a"], want[i])
			}
		}
	}
}
