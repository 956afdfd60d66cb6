package client

import (
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/wire"
)

// TestRenewalRefused refuses each renewal at once, while a request begins each millisecond.
func TestRenewalRefused(t *testing.T) {
	manager := must.Get(net.ListenPacket("udp", "127.0.0.1:0"))(t)
	defer manager.Close()
	file := filepath.Join(t.TempDir(), "keys")
	must.OK(t, os.WriteFile(file, []byte("a key that was taken away\n"), 0o600))
	c := must.Get(Dial(t.Context(), manager.LocalAddr().String(), Options{KeyFile: file}))(t)
	defer c.Close()

	sent := map[[wire.NonceBytes]byte]bool{}
	p := c.home
	p.renewAt = 1
	now := p.renewAt
	for range 100 {
		now += int64(time.Millisecond)
		c.mu.Lock()
		c.renewLocked(p, now)
		refusal := wire.Hello{Nonce: p.hello.nonce}
		c.mu.Unlock()
		if p.hello.at == 0 {
			continue // answered, and not begun again
		}
		sent[refusal.Nonce] = true
		must.OK(t, c.handleHello(p, refusal.Append(nil, wire.TypeProof), now))
	}
	if len(sent) != 2 {
		t.Errorf("%d hellos within 100 ms, want one each %v", len(sent), helloEvery)
	}
}
