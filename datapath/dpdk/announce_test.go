//go:build dpdk && cgo

package dpdk

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestAnnounceAddresses(t *testing.T) {
	var said []int
	var a announcer
	for second := range 100 {
		a.tell(int64(second)*int64(time.Second), func() { said = append(said, second) })
	}
	if want := []int{0, 1, 3, 7, 15}; !slices.Equal(said, want) {
		t.Errorf("announced after %v seconds, want %v", said, want)
	}
}

func TestAnnounceTapRestart(t *testing.T) {
	one, other := netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("fd00::2")
	spec := describe("net_tap0,iface=dtap0", one, 1500, 1).spec
	if again := describe("net_tap0,iface=dtap0", one, 1500, 1).spec; again != spec || !strings.Contains(spec, ",mac=") {
		t.Errorf("first %q, then %q", spec, again)
	}
	if describe("net_tap0,iface=dtap0", other, 1500, 1).spec == spec {
		t.Error("two machines have one Ethernet address")
	}
	if given := "net_tap0,mac=02:00:00:00:00:07"; describe(given, one, 1500, 1).spec != given {
		t.Error("an address that was given is not taken")
	}
	for _, addr := range []netip.Addr{one, other} {
		if mac := stableMAC(addr); mac[0]&3 != 2 {
			t.Errorf("%v has %v, which is no machine's own", addr, mac)
		}
	}
}
