package aggregate

import (
	"bytes"
	"net/netip"
	"slices"
	"time"

	"github.com/penstock/penstock/datapath/ingest"
	"github.com/penstock/penstock/wire"
)

// Keys of a function. Fragment 0 of each request must then have a token, which is the cookie of the key
// (proof.go). A client gets it for a hello and a proof (docs/wire.md):
//
//  1. The challenge in the answer to a hello is a hash of the client's address and nonce, and of the time. Nothing
//     is stored.
//  2. A proof must have a challenge of its address that is at most two epochs old. Few proofs of an
//     address per second get further: only now is something expensive computed.
//  3. A correct proof uses its challenge up. So only clients with a key take memory, and it is bounded.
//
// A request needs no more than a comparison with the token, once.

// clientKey is a key of a function. Its tokens are valid while the function has it.
type clientKey struct {
	secret []byte
	tokens cookies
}

const (
	// challengeEpoch is how long a challenge of a nonce stays the same. It is accepted for one more epoch.
	challengeEpoch = 2 * time.Second
	// maxUsed bounds the proofs that are accepted per epoch and aggregator.
	maxUsed = 1 << 14
	// proofEvery and proofBurst bound the proofs of an address that are checked. Each takes some microseconds.
	proofEvery = time.Millisecond
	proofBurst = 64
)

// handshakes are the clients of an aggregator that ask for a token. The zero value is ready.
type handshakes struct {
	// nextProof is when the next proof of an address is checked; it may lag by proofBurst. Addresses with the same hash
	// share it.
	nextProof [256]int64
	// used and before have the challenges of the proofs that were accepted in this epoch and in the last one.
	epoch        int64
	used, before map[uint64]struct{}
}

// SetKeys sets the keys of the function, for all its aggregators. With nil, requests need no token. Tokens of keys that
// remain stay valid. Any goroutine may call it.
func (a *Aggregator) SetKeys(secrets [][]byte) {
	before := a.common.keys.Load()
	if secrets == nil {
		a.common.keys.Store(nil)
		return
	}
	keys := make([]clientKey, len(secrets))
	for i, secret := range secrets {
		keys[i] = clientKey{secret, newCookies()}
		if before == nil {
			continue
		}
		if at := slices.IndexFunc(*before, func(k clientKey) bool { return bytes.Equal(k.secret, secret) }); at >= 0 {
			keys[i] = (*before)[at]
		}
	}
	a.common.keys.Store(&keys)
}

// proves reports whether a client's cookie proves its address, and that it has a key if the function has any.
func (c *common) proves(now int64, from netip.AddrPort, cookie uint64) bool {
	if keys := c.keys.Load(); keys != nil {
		return slices.ContainsFunc(*keys, func(k clientKey) bool { return k.tokens.proves(now, from, cookie) })
	}
	return c.cookies.proves(now, from, cookie)
}

// needsToken reports whether requests need a token.
func (c *common) needsToken() bool { return c.keys.Load() != nil }

// needToken drops a fragment without a valid token, and says so for fragment 0. Nothing is remembered.
func (a *Aggregator) needToken(d *ingest.Datagram, h *wire.Header, events *Events) {
	a.drop(dropToken, d, events)
	if h.Index != 0 {
		return
	}
	refused := wire.Result{Status: wire.StatusRefused, NeedsToken: true}
	if e, ok := a.extension(d); ok && h.Flags&wire.FlagExtension != 0 {
		refused.SentAt = e.SentAt
	}
	a.inform(&refused, d.From)
	events.Reported = append(events.Reported, Answer{To: d.From, RequestID: h.RequestID, Result: refused})
}

// greet answers a hello or a proof. It returns an error if the function needs no token, or the datagram breaks a rule.
func (a *Aggregator) greet(d *ingest.Datagram, events *Events) error {
	keys := a.common.keys.Load()
	if keys == nil {
		return wire.ErrType
	}
	var scratch [wire.HelloSize]byte
	kind, hello, err := wire.DecodeHello(a.bytes(d, 0, scratch[:]))
	if err != nil {
		return err
	}

	answer := Greeting{To: d.From, Type: kind, Hello: wire.Hello{Nonce: hello.Nonce}}
	ok := true
	if kind == wire.TypeHello {
		answer.Value = a.challenge(0, d.From, &hello)
	} else if answer.Value, ok = a.token(*keys, d.From, &hello); !ok {
		a.drop(dropProof, d, events)
		return nil
	}
	events.Greetings = append(events.Greetings, answer)
	if answer.Value == 0 { // the function does not have the key
		a.drop(dropProof, d, events)
		return nil
	}
	a.stats.Greeted++
	events.release(d)
	return nil
}

// challenge returns the challenge for a nonce that was made some epochs ago.
func (a *Aggregator) challenge(ago int64, from netip.AddrPort, h *wire.Hello) uint64 {
	return a.common.challenges.hash(a.now/int64(challengeEpoch)-ago, from, h.Nonce[:]...)
}

// token returns the token for a proof, 0 for a key that the function does not have. ok is false if the proof gets no
// answer.
func (a *Aggregator) token(keys []clientKey, from netip.AddrPort, h *wire.Hello) (token uint64, ok bool) {
	if h.Value != a.challenge(0, from, h) && h.Value != a.challenge(1, from, h) {
		return 0, false
	}
	if !a.handshakes.admit(a.now, a.hash.client(netip.AddrPortFrom(from.Addr(), 0))) {
		return 0, false
	}
	i := slices.IndexFunc(keys, func(k clientKey) bool { return h.Signed(k.secret) })
	if i < 0 {
		return 0, true
	}
	return keys[i].tokens.hash(a.now/int64(cookieEpoch), from), a.handshakes.use(a.now/int64(challengeEpoch), h.Value)
}

// admit reports whether another proof of an address is checked now.
func (s *handshakes) admit(now int64, hash uint32) bool {
	next := &s.nextProof[hash%uint32(len(s.nextProof))]
	if *next > now {
		return false
	}
	*next = max(*next, now-int64(proofBurst*proofEvery)) + int64(proofEvery)
	return true
}

// use uses a challenge up. It returns false if it was used before, or too many were in this epoch.
func (s *handshakes) use(epoch int64, challenge uint64) bool {
	if epoch != s.epoch || s.used == nil {
		if s.used, s.before = s.before, s.used; s.used == nil {
			s.used = map[uint64]struct{}{}
		}
		clear(s.used)
		if epoch > s.epoch+1 {
			clear(s.before)
		}
		s.epoch = epoch
	}
	_, used := s.used[challenge]
	_, before := s.before[challenge]
	if used || before || len(s.used) == maxUsed {
		return false
	}
	s.used[challenge] = struct{}{}
	return true
}
