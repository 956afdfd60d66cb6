package fleet

import (
	"net/netip"
	"testing"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/internal/testing/datapathtest"
)

// TestTrusted lets two ports of one address send. They are one party, or two if
// the address is trusted; the credit of a third client shows which. It is a part of what
// admission grants, so less than a part of all 64 slots.
func TestTrusted(t *testing.T) {
	for _, row := range []struct {
		name    string
		trusted []netip.Prefix
		want    uint16
	}{
		{"one address", nil, 25},
		{"trusted", []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}, 16},
	} {
		t.Run(row.name, func(t *testing.T) {
			cfg := configs.Default()
			cfg.Trusted = row.trusted
			b := newBed(t, cfg, 100)
			c := b.owner(0, 1)
			for range 2 {
				s := b.dial()
				s.Send(1)
				c.Answer(c.Await(1), []byte{1, 2, 3, 4})
				s.Next()
			}
			third := datapathtest.DialRawFrom(t, netip.MustParseAddr("127.0.0.9"), b.port.LocalAddr())
			third.Fragment(1, datapathtest.Picture(1), datapathtest.PictureBytes, 0, 0)
			c.Answer(c.Await(1), nil)
			if _, r, _ := third.Result(); r.Credit != row.want {
				t.Errorf("a third client has a credit of %d, want %d", r.Credit, row.want)
			}
		})
	}
}
