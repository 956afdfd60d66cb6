package aggregate

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/penstock/penstock/datapath/ingest"
	"github.com/penstock/penstock/wire"
)

const (
	goodKey  = "the key of the function"
	otherKey = "another key"
)

// onKeys runs a test on a harness with a key.
func onKeys(t *testing.T, test func(b *harness)) {
	t.Helper()
	onBed(t, nil, func(b *harness) {
		b.a.SetKeys([][]byte{[]byte(goodKey)})
		test(b)
	})
}

// greet sends a hello or a proof, and returns the answer; nil if there is none.
func (b *harness) greet(from netip.AddrPort, t wire.Type, h wire.Hello) *Greeting {
	b.t.Helper()
	e := b.add(b.land(from, h.Append(nil, t), 0))
	if len(e.Reported)+len(e.Again)+len(e.NACKs)+len(e.Complete) > 0 {
		b.t.Fatalf("%v makes %+v", t, e)
	}
	switch len(e.Greetings) {
	case 0:
		return nil
	case 1:
		if g := e.Greetings[0]; g.To == from && g.Type == t && g.Nonce == h.Nonce {
			return &g
		}
	}
	b.t.Fatalf("%v %+v of %v gets %+v", t, h, from, e.Greetings)
	return nil
}

// prepare returns a proof for a new hello, under a key.
func (b *harness) prepare(from netip.AddrPort, secret string) wire.Hello {
	b.t.Helper()
	h := wire.Hello{Nonce: [wire.NonceBytes]byte{1, byte(b.now), byte(b.now >> 8), byte(b.now >> 16), byte(b.next)}}
	answer := b.greet(from, wire.TypeHello, h)
	if answer == nil || answer.Value == 0 {
		b.t.Fatalf("hello of %v gets %+v", from, answer)
	}
	h.Value = answer.Value
	h.Sign([]byte(secret))
	return h
}

// token returns the token for a new proof.
func (b *harness) token(from netip.AddrPort, secret string) uint64 {
	b.t.Helper()
	answer := b.greet(from, wire.TypeProof, b.prepare(from, secret))
	if answer == nil {
		b.t.Fatalf("proof of %v gets nothing", from)
	}
	return answer.Value
}

// with returns a request with a token.
func with(token uint64, id int) []fragment {
	f := all(id)
	f[0].extension = &wire.Extension{Cookie: token, SentAt: 5}
	return f
}

// refuses fails the test unless a request is refused for lack of a token, and nothing of it is kept.
func (b *harness) refuses(name string, from netip.AddrPort, request []fragment) {
	b.t.Helper()
	before := b.a.Stats()
	e := b.send(from, request...)
	after := b.a.Stats()
	if len(e.Reported) != 1 || e.Reported[0].To != from || e.Reported[0].Status != wire.StatusRefused || !e.Reported[0].NeedsToken {
		b.t.Fatalf("%s: got %+v", name, e.Reported)
	}
	if dropped := after.Dropped[dropToken] - before.Dropped[dropToken]; dropped != uint64(len(request)) || after.Begun != before.Begun ||
		after.Clients > before.Clients || after.Remembered > before.Remembered {
		b.t.Errorf("%s: before %+v, after %+v", name, before, after)
	}
}

func TestToken(t *testing.T) {
	local, other := address(1), netip.MustParseAddrPort("192.0.2.1:5001")
	for _, from := range []netip.AddrPort{outsider, local, netip.MustParseAddrPort("[2001:db8::1]:5000")} {
		onKeys(t, func(b *harness) {
			b.refuses("no extension", from, all(1))
			b.refuses("no token", from, with(0, 1))
			b.refuses("a guess", from, with(1, 1))
			b.refuses("the cookie of a function without keys", from, with(b.a.common.cookies.hash(b.now/int64(cookieEpoch), from), 1))

			token := b.token(from, goodKey)
			b.refuses("a token of another port", other, with(token, 1))
			e := b.send(from, with(token, 1)...)
			if len(e.Complete) != 1 || e.Begun != 1 {
				t.Fatalf("the request with a token: %+v", e)
			}
			if r := b.end(e.Complete[0], wire.StatusOK, "an answer"); r.Status != wire.StatusOK || r.SentAt != 5 {
				t.Errorf("answer is %+v", r)
			}
			b.now += int64(2 * againAfter)
			if e := b.send(from, fragment{id: 1, again: true, extension: &wire.Extension{Cookie: token}}); len(e.Again) != 1 || string(e.Again[0].Payload) != "an answer" {
				t.Errorf("a question with the token gets %+v", e)
			}
			b.refuses("a question without a token", from, []fragment{{id: 1, again: true}})

			b.pass(2 * cookieEpoch)
			b.refuses("an expired token", from, with(token, 2))
		})
	}
}

// TestTokenOrder sends fragments before fragment 0 with the token.
func TestTokenOrder(t *testing.T) {
	onKeys(t, func(b *harness) {
		token := b.token(outsider, goodKey)
		request := with(token, 1)
		if e := b.send(outsider, request[1:3]...); len(e.Reported)+len(e.NACKs) != 0 || b.a.Stats().Begun != 0 {
			t.Fatalf("fragments without fragment 0: %+v", e)
		}
		b.send(outsider, request[0])
		b.send(outsider, request[3:]...)
		if e := b.pass(3 * time.Millisecond); len(e.NACKs) != 1 {
			t.Fatalf("the missing fragments: %+v", e)
		}
		e := b.send(outsider, request[1:3]...)
		if len(e.Complete) != 1 {
			t.Fatalf("all fragments: %+v", e)
		}
		b.end(e.Complete[0], wire.StatusOK, "")
	})
}

func TestProofRefused(t *testing.T) {
	other := netip.MustParseAddrPort("192.0.2.9:5000")
	for name, test := range map[string]func(b *harness) *Greeting{
		"replayed": func(b *harness) *Greeting {
			proof := b.prepare(outsider, goodKey)
			if g := b.greet(outsider, wire.TypeProof, proof); g == nil || g.Value == 0 {
				b.t.Fatalf("the first time: %+v", g)
			}
			return b.greet(outsider, wire.TypeProof, proof)
		},
		"replayed in the next epoch": func(b *harness) *Greeting {
			proof := b.prepare(outsider, goodKey)
			b.greet(outsider, wire.TypeProof, proof)
			b.pass(challengeEpoch)
			return b.greet(outsider, wire.TypeProof, proof)
		},
		"of another address": func(b *harness) *Greeting { return b.greet(other, wire.TypeProof, b.prepare(outsider, goodKey)) },
		"of another port": func(b *harness) *Greeting {
			return b.greet(netip.AddrPortFrom(outsider.Addr(), 1), wire.TypeProof, b.prepare(outsider, goodKey))
		},
		"old": func(b *harness) *Greeting {
			proof := b.prepare(outsider, goodKey)
			b.pass(2 * challengeEpoch)
			return b.greet(outsider, wire.TypeProof, proof)
		},
		"without a hello": func(b *harness) *Greeting {
			h := wire.Hello{Value: 1}
			h.Sign([]byte(goodKey))
			return b.greet(outsider, wire.TypeProof, h)
		},
		"of another function": func(b *harness) *Greeting {
			another := newHarness(b.t, nil)
			another.a.SetKeys([][]byte{[]byte(goodKey)})
			return b.greet(outsider, wire.TypeProof, another.prepare(outsider, goodKey))
		},
	} {
		t.Run(name, func(t *testing.T) {
			onKeys(t, func(b *harness) {
				if got := test(b); got != nil {
					t.Errorf("got %+v, want no answer", got)
				}
				want(b, "refused proofs", b.a.Stats().Dropped[dropProof], 1)
			})
		})
	}
	t.Run("wrong key", func(t *testing.T) {
		onKeys(t, func(b *harness) {
			want(b, "token", b.token(outsider, otherKey), 0)
			want(b, "refused proofs", b.a.Stats().Dropped[dropProof], 1)
			want(b, "challenges used", len(b.a.handshakes.used), 0)
		})
	})
}

func TestSetKeys(t *testing.T) {
	onKeys(t, func(b *harness) {
		old := b.token(outsider, goodKey)
		b.a.SetKeys([][]byte{[]byte(otherKey), []byte(goodKey)})
		next := b.token(outsider, otherKey)
		for id, token := range []uint64{old, next} {
			e := b.send(outsider, with(token, id)...)
			if len(e.Complete) != 1 {
				t.Fatalf("both keys, request %d: %+v", id, e)
			}
			b.end(e.Complete[0], wire.StatusOK, "")
		}
		b.a.SetKeys([][]byte{[]byte(otherKey)})
		b.refuses("a token of a removed key", outsider, with(old, 2))
		e := b.send(outsider, with(next, 3)...)
		if len(e.Complete) != 1 {
			t.Fatalf("the key that remains: %+v", e)
		}
		b.end(e.Complete[0], wire.StatusOK, "")
		b.a.SetKeys([][]byte{[]byte(otherKey), []byte(goodKey)})
		b.refuses("a token of a key that was removed and added", outsider, with(old, 4))
	})
}

// TestHelloFlood sends many hellos, wrong proofs and requests without a token from many addresses: nothing grows, and a client
// with a key is served meanwhile.
func TestHelloFlood(t *testing.T) {
	onKeys(t, func(b *harness) {
		token := b.token(outsider, goodKey)
		hello, proof := wire.Hello{}, wire.Hello{Value: 77}
		var d [3][]byte
		d[0], d[1], d[2] = hello.Append(nil, wire.TypeHello), proof.Append(nil, wire.TypeProof), fragment{id: 1}.datagram()
		var lands [3]ingest.Datagram
		for i := range lands {
			lands[i].First = ingest.Span{Offset: uint64(len(b.memory) - 1000*(i+1)), Length: uint32(len(d[i]))}
			copy(b.memory[lands[i].First.Offset:], d[i])
		}
		var events Events
		sender := 0
		flood := func() {
			for i := range lands {
				sender++
				lands[i].From = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(sender >> 16), byte(sender >> 8), byte(sender)}), 5000)
			}
			events.Reset()
			b.a.Add(b.now, lands[:], &events)
			if len(events.Greetings) != 1 || len(events.Reported) != 1 {
				t.Fatalf("the flood gets %+v", events)
			}
		}
		flood()
		if n := testing.AllocsPerRun(100_000, flood); n != 0 {
			t.Errorf("%v allocations per hello, proof and request", n)
		}
		if s := b.a.Stats(); s.Clients != 0 || s.Remembered != 0 || len(b.a.handshakes.used)+len(b.a.handshakes.before) != 1 {
			t.Errorf("after the flood: %+v, %d challenges", s, len(b.a.handshakes.used))
		}
		b.end(b.send(outsider, with(token, 1)...).Complete[0], wire.StatusOK, "")
	})
}

// TestProofRate sends proofs of one address, all with another key, and those of a second address.
func TestProofRate(t *testing.T) {
	onKeys(t, func(b *harness) {
		answered := func(from netip.AddrPort) (n int) {
			for range 4 * proofBurst {
				if b.greet(from, wire.TypeProof, b.prepare(from, otherKey)) != nil {
					n++
				}
			}
			return n
		}
		if n := answered(outsider); n > proofBurst+2 {
			t.Errorf("%d proofs at once are checked", n)
		}
		if n := answered(netip.MustParseAddrPort("198.51.100.7:5000")); n < proofBurst {
			t.Errorf("%d proofs of another address are checked", n)
		}
		b.pass(10 * proofEvery)
		if n := answered(outsider); n < 9 || n > 11 {
			t.Errorf("%d proofs are checked after 10 ms", n)
		}
	})
}

func TestUsedBounded(t *testing.T) {
	var s handshakes
	for challenge := range uint64(maxUsed) {
		if !s.use(7, challenge) {
			t.Fatalf("challenge %d is refused", challenge)
		}
	}
	if s.use(7, maxUsed) {
		t.Error("one too many is accepted")
	}
	if s.use(8, 1) || !s.use(8, maxUsed) {
		t.Error("the next epoch accepts a used one, or nothing")
	}
	if !s.use(10, 1) || len(s.before) != 0 {
		t.Error("a later epoch remembers what is too old to be accepted")
	}
}

func TestHelloWithoutKeys(t *testing.T) {
	onBed(t, nil, func(b *harness) {
		for _, kind := range []wire.Type{wire.TypeHello, wire.TypeProof} {
			if got := b.greet(outsider, kind, wire.Hello{}); got != nil {
				t.Errorf("%v gets %+v", kind, got)
			}
		}
		want(b, "malformed", b.a.Stats().Malformed[wire.ReasonType], 2)
	})
}

// FuzzGreet checks that no datagram without a right proof gets a token or a slot, and that no answer is larger than 3 times
// the datagram.
func FuzzGreet(f *testing.F) {
	proof := wire.Hello{Value: 7}
	proof.Sign([]byte(goodKey))
	f.Add(new(wire.Hello).Append(nil, wire.TypeHello), uint16(0))
	f.Add(proof.Append(nil, wire.TypeProof), uint16(30))
	f.Add(fragment{id: 1, extension: &wire.Extension{Cookie: 1}}.datagram(), uint16(50))
	f.Fuzz(func(t *testing.T, d []byte, at uint16) {
		if len(d) > wire.MaxDatagram {
			return
		}
		b := newHarness(t, nil)
		b.a.SetKeys([][]byte{[]byte(goodKey)})
		e := b.add(b.land(outsider, slices.Clone(d), int(at)))
		sent := 0
		for _, g := range e.Greetings {
			if g.Type == wire.TypeProof && g.Value != 0 {
				t.Errorf("% x gets a token", d)
			}
			sent += 28 + wire.HelloSize
		}
		for range e.Reported {
			sent += 28 + wire.HeaderSize + wire.BlockSize
		}
		if sent > 3*(28+len(d)) || len(e.Again)+len(e.NACKs)+len(e.Complete) > 0 || b.a.Stats().Begun > 0 {
			t.Errorf("% x makes %+v", d, e)
		}
	})
}
