package client

import (
	"math"
	"net"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/wire"
)

// The lifetime of a move is bounded on both sides.
func TestMovedLifetime(t *testing.T) {
	for lifetime, want := range map[time.Duration]time.Duration{
		0: time.Second, time.Second: time.Second, 30 * time.Second: 30 * time.Second, time.Hour: time.Minute, math.MaxInt64: time.Minute,
	} {
		here, there := sink(t), sink(t)
		c := must.Get(Dial(t.Context(), here.LocalAddr().String()+","+there.LocalAddr().String(), Options{}))(t)
		defer c.Close()
		c.mu.Lock()
		r := c.newRequestLocked()
		r.path, r.flying, r.follows = c.home, true, true
		c.flying.pushBack(r)
		c.home.inFlight++
		to := there.LocalAddr().(*net.UDPAddr).AddrPort()
		const now = 1000
		c.moveLocked(r, &wire.Result{Status: wire.StatusMoved, Moved: to, Lifetime: lifetime}, now)
		c.queued.remove(r)
		for _, at := range []struct {
			after time.Duration
			away  bool
		}{{0, true}, {want - 1, true}, {want, false}, {want - 1, false}} {
			if p := c.pathLocked(now + int64(at.after)); (p != c.home) != at.away {
				t.Errorf("lifetime %v: away after %v: %v, want %v", lifetime, at.after, p != c.home, at.away)
			}
		}
		c.mu.Unlock()
	}
}
