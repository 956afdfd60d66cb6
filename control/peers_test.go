package control

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/testing/must"
)

func TestPeersOrder(t *testing.T) {
	a, b := Peer{netip.MustParseAddrPort("10.0.0.1:5001"), 100}, Peer{netip.MustParseAddrPort("[fd00::2]:5001"), 0.5}
	self := netip.MustParseAddrPort("10.0.0.9:5001")
	many := make([]Peer, MaxPeers+1)
	for name, c := range map[string]struct {
		order PeersOrder
		want  string // empty: it is right
	}{
		"none":             {PeersOrder{}, ""},
		"only a rate":      {PeersOrder{Rate: 100}, ""},
		"two":              {PeersOrder{Peers: []Peer{a, b}, Self: self, Rate: MaxRate, Drain: true}, ""},
		"no self":          {PeersOrder{Peers: []Peer{a}}, "self: is missing"},
		"itself":           {PeersOrder{Peers: []Peer{b, a}, Self: a.Address}, "peers[1].address: 10.0.0.1:5001 is named twice"},
		"one twice":        {PeersOrder{Peers: []Peer{a, a}, Self: self}, "peers[1].address: 10.0.0.1:5001 is named twice"},
		"too many":         {PeersOrder{Peers: many, Self: self}, "peers: 17, want at most 16"},
		"no address":       {PeersOrder{Peers: []Peer{{Weight: 1}}, Self: self}, "peers[0].address: invalid AddrPort"},
		"any address":      {PeersOrder{Peers: []Peer{{netip.MustParseAddrPort("0.0.0.0:5001"), 1}}, Self: self}, "want an address and a port"},
		"port 0":           {PeersOrder{Peers: []Peer{{netip.MustParseAddrPort("10.0.0.1:0"), 1}}, Self: self}, "want an address and a port"},
		"weight 0":         {PeersOrder{Peers: []Peer{{a.Address, 0}}, Self: self}, "peers[0].weight: 0 "},
		"weight of 1e300":  {PeersOrder{Peers: []Peer{{a.Address, 1e300}}, Self: self}, "peers[0].weight: 1e+300 "},
		"negative rate":    {PeersOrder{Rate: -1}, "rate: -1 "},
		"rate above limit": {PeersOrder{Rate: 2 * MaxRate}, "rate: 2e+09 "},
	} {
		if err := c.order.Check(); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}

	text := must.Get(json.Marshal(PeersOrder{Function: "f", Peers: []Peer{a}, Self: self, Rate: 10}))(t)
	if want := `{"function":"f","peers":[{"address":"10.0.0.1:5001","weight":100}],"self":"10.0.0.9:5001","rate":10}`; string(text) != want {
		t.Errorf("%s, want %s", text, want)
	}
}
