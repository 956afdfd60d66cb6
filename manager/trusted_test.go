package manager

import (
	"net/netip"
	"testing"

	"github.com/penstock/penstock/configs"
)

// TestTrusted lets two ports of one address send. They are one party, or two if
// the address is trusted; the credit of a third client shows which.
func TestTrusted(t *testing.T) {
	for _, row := range []struct {
		name    string
		trusted []netip.Prefix
		want    uint16
	}{
		{"one address", nil, 64 / 2},
		{"trusted", []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, 64 / 3},
	} {
		t.Run(row.name, func(t *testing.T) {
			cfg := configs.Default()
			cfg.Trusted = row.trusted
			b := newBedFor(t, cfg, nil, testCard(), 100)
			c := b.owner(0, 1)
			for range 2 {
				s := b.dial()
				s.send(1)
				b.answer(c, b.take(c, 1), []byte{1, 2, 3, 4})
				s.next()
			}
			r := b.receivers[0]
			r.mu.Lock()
			got := r.aggregate.Credit(netip.MustParseAddrPort("127.0.0.9:5000"))
			r.mu.Unlock()
			if got != row.want {
				t.Errorf("a third client has a credit of %d, want %d", got, row.want)
			}
		})
	}
}
