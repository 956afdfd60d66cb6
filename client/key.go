package client

import (
	"crypto/rand"
	"fmt"
	"os"
	"time"

	"github.com/penstock/penstock/wire"
)

// A function with keys. The client sends a hello when a request was refused for lack of a token, or the token gets
// old. It has no timer: a lost datagram of the handshake leaves the request unanswered, so that the client asks again
// (package recovery), and is refused again.

const (
	// renewAfter is the age at which a token is renewed. It is valid for at least a minute (docs/wire.md).
	renewAfter = 30 * time.Second
	// helloEvery is the min time between two hellos: until then an answer may come.
	helloEvery = 50 * time.Millisecond
)

// hello is the handshake for a token.
type hello struct {
	nonce   [wire.NonceBytes]byte
	at      int64 // of the last hello; 0: it was answered
	refused bool  // the function does not have the key
}

// asksForTokenLocked reports whether an answer only asks for a token that the client can get, and then sees to it.
func (c *Client) asksForTokenLocked(r *request, result *wire.Result, at int64) bool {
	if !result.NeedsToken || c.options.KeyFile == "" {
		return false
	}
	if r.proof.echoed != r.path.cookie { // another request has got a token meanwhile
		c.sendAgainLocked(r)
		return true
	}
	r.needsToken = true
	c.helloLocked(r.path, at)
	return true
}

// sendAgainLocked begins a request again: the manager has kept nothing of it.
func (c *Client) sendAgainLocked(r *request) {
	r.needsToken = false
	c.proveLocked(r, r.next)
}

// refuseLocked ends a request for which there is no token.
func (c *Client) refuseLocked(r *request, now int64) {
	r.result.setAnswer(&wire.Result{Status: wire.StatusRefused, NeedsToken: true}, nil)
	c.endLocked(r, now)
	r.path.credit.recordAnswer(0, 0)
}

// renewLocked gets another token if this one gets old.
func (c *Client) renewLocked(p *path, now int64) {
	if p.renewAt != 0 && now > p.renewAt {
		c.helloLocked(p, now)
	}
}

// helloLocked sends a hello, unless the answer to one may be on its way. A full socket loses it.
func (c *Client) helloLocked(p *path, now int64) {
	if p.hello.at != 0 && now-p.hello.at < int64(helloEvery) {
		return
	}
	p.hello = hello{at: now}
	rand.Read(p.hello.nonce[:]) // never fails (crypto/rand)
	h := wire.Hello{Nonce: p.hello.nonce}
	_, _ = p.conn.Write(h.Append(nil, wire.TypeHello))
}

// handleHello sends the proof that a manager's hello asks for, or takes the token.
func (c *Client) handleHello(p *path, b []byte, at int64) error {
	kind, h, err := wire.DecodeHello(b)
	if err != nil {
		return err
	}
	var keys [][]byte
	if kind == wire.TypeHello && c.options.KeyFile != "" {
		keys, _ = readKeys(c.options.KeyFile) // Dial has read it: if it has become wrong, the requests end unanswered
	}

	c.mu.Lock()
	defer c.mu.Unlock()
	if h.Nonce != p.hello.nonce || p.hello.at == 0 {
		c.counts.foreign.Add(1)
		return nil
	}
	if kind == wire.TypeHello {
		if len(keys) > 0 {
			h.Sign(keys[0])
			_, _ = p.conn.Write(h.Append(nil, wire.TypeProof))
		}
		return nil
	}
	p.hello = hello{refused: h.Value == 0}
	if p.hello.refused {
		c.flying.checkAt = 0 // expireLocked ends the requests
		if p.renewAt != 0 {
			p.renewAt = at + int64(helloEvery) // a wrong key may be corrected
		}
	} else {
		p.cookie, p.renewAt = h.Value, at+int64(renewAfter)
		for r := c.flying.head; r != nil; r = r.links[stageList].next {
			if r.needsToken && r.path == p {
				c.sendAgainLocked(r)
			}
		}
	}
	c.wakeSender()
	return nil
}

// readKeys reads the keys in a file.
func readKeys(file string) ([][]byte, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read keys: %w", err)
	}
	return wire.DecodeKeys(file, text)
}
