//go:build dpdk && cgo

package bench

import (
	"context"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/testing/must"
)

// The figures need a quiet machine. This test only checks that nothing is lost,
// allocated or kept.
func TestIngestDPDK(t *testing.T) {
	r, err := RunIngestDPDK(context.Background(), DPDKOptions{Each: 500 * time.Millisecond, Soak: 2 * time.Second})
	must.OK(t, err)
	for _, c := range r.OneCore {
		t.Logf("%d pieces, %s written: %.2f M/s, bare %.2f M/s, ratio %.2f", c.Fragments, c.Frames, c.DatagramsPerSecond/1e6, c.BareDatagramsPerSecond/1e6, c.Ratio)
		if c.Requests == 0 || c.Lost > 0 {
			t.Errorf("%d pieces, %s written: %d requests, %d lost", c.Fragments, c.Frames, c.Requests, c.Lost)
		}
		// The runtime's own goroutines sometimes allocate.
		if c.AllocsPerDatagram > 0.001 {
			t.Errorf("%d pieces, %s written: %v allocations a datagram", c.Fragments, c.Frames, c.AllocsPerDatagram)
		}
	}
	s := r.Soak
	if s.Requests == 0 || s.MbufsAbsent > 0 {
		t.Errorf("soak: %+v; want requests, and every mbuf back", *s)
	}
}
