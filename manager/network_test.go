//go:build !dpdk

package manager

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/datapath/dpdk"
)

func TestBuildWithoutDPDK(t *testing.T) {
	cfg := configs.Default()
	port := configs.DefaultDPDK()
	port.Port, port.Addresses = "net_ring0", []netip.Addr{netip.MustParseAddr("10.0.0.2")}
	cfg.Source.DPDK = &port
	_, err := openNetwork(&cfg, zerolog.Nop())
	if !errors.Is(err, dpdk.ErrNotBuilt) {
		t.Fatalf("error %v, want ErrNotBuilt", err)
	}
	for _, word := range []string{"libdpdk-dev", "make build-dpdk", "source: udp"} {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("error %q does not name %q", err, word)
		}
	}
}
