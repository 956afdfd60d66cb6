package aggregate

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"time"

	"github.com/penstock/penstock/wire"
)

// Config is what an aggregator is made for. Fields that say so have a default,
// which zero stands for.
type Config struct {
	// Slots is how many requests may be in flight: a power of two from minSlots
	// to maxSlots. With Follow, only as many slots are open as answers come in time
	// (open.go), at least minSlots.
	Slots  int
	Follow bool
	// RequestBytes is the exact size of a request.
	RequestBytes int
	// MaxPieces is how many descriptors a slot has in the table. A piece takes
	// one, or two where it lies in two spans; 2 * RequestBytes / MinPieceBytes are
	// always enough.
	MaxPieces int
	// MinPieceBytes is the least size of a piece, but the last; smaller ones are
	// refused.
	MinPieceBytes int

	// SLO bounds the deadline of a request, from its first piece's arrival at the machine.
	SLO time.Duration
	// Transit is what of a request's time is not the node's, see Within.
	Transit time.Duration
	// Deadline is when a request that is not whole is given up, from when its first
	// piece was received; a quarter of SLO by default.
	Deadline time.Duration
	// WishAfter is how long an incomplete request is without a new piece before the
	// manager sends a NACK. It waits twice as long for each further NACK, and stops
	// after MaxWishes; a new piece starts this again. The default is an eighth of
	// Deadline, from 100 µs to 5 ms: 3 NACKs (after 1, 3 and 7 eighths) fit in it.
	WishAfter time.Duration
	// MaxWishes is how many NACKs in a row may be without an effect: 3 by default,
	// at most 8. A negative value turns them off; questions are still answered.
	MaxWishes int

	// Trusted addresses stand for many machines each, as a gateway's does: every
	// port of theirs gets the share of an address.
	Trusted []netip.Prefix

	// AnsweredFor is how long an answered request is remembered; 2 s by default,
	// as long as clients try (docs/wire.md). AnsweredRequests bounds how many are
	// (16,384 by default), AnsweredBytes the payloads that are kept (4 MiB).
	AnsweredFor      time.Duration
	AnsweredRequests int
	AnsweredBytes    int
	// TurnedAwayFor is how long one that was turned away, evicted or refused is
	// remembered; 100 ms by default. TurnedAwayRequests bounds how many are: 16
	// for each slot by default, at most 16,384.
	TurnedAwayFor      time.Duration
	TurnedAwayRequests int
}

// The bounds of Config.Slots: what the design promises, and what shm.Geometry
// takes.
const (
	minSlots = 64
	maxSlots = 1 << 16
)

// againAfter is the shortest time between an answer or a wish and the next one that
// a client's question for the same request draws. An earlier question is ignored.
const againAfter = time.Millisecond

const (
	// maxWishes keeps WishAfter << MaxWishes far from the end of an int64.
	maxWishes = 8
	// minClients is how many clients are told apart at the least.
	minClients = 1024
	// activeFor is how long after its last request a client counts for the fair
	// parts: a camera with one picture a second still has its place.
	activeFor = 2 * time.Second
)

func (c Config) withDefaults() Config {
	or := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	or(&c.Deadline, c.SLO/4)
	or(&c.WishAfter, min(max(c.Deadline/8, 100*time.Microsecond), 5*time.Millisecond))
	or(&c.AnsweredFor, 2*time.Second)
	or(&c.TurnedAwayFor, 100*time.Millisecond)
	switch {
	case c.MaxWishes == 0:
		c.MaxWishes = 3
	case c.MaxWishes < 0:
		c.MaxWishes = 0
	}
	if c.AnsweredRequests == 0 {
		c.AnsweredRequests = 16 << 10
	}
	if c.AnsweredBytes == 0 {
		c.AnsweredBytes = 4 << 20
	}
	if c.TurnedAwayRequests == 0 {
		c.TurnedAwayRequests = min(16*c.Slots, 16<<10)
	}
	return c
}

// errConfig is wrapped by what Validate returns.
var errConfig = errors.New("aggregation cannot be configured like this")

// Validate says what New would panic with.
func (c Config) Validate() error {
	c = c.withDefaults()
	wrong := func(format string, args ...any) error {
		return fmt.Errorf("%w: "+format, append([]any{errConfig}, args...)...)
	}
	switch {
	case c.Slots < minSlots || c.Slots > maxSlots || c.Slots&(c.Slots-1) != 0:
		return wrong("%d slots: want a power of two from %d to %d", c.Slots, minSlots, maxSlots)
	case c.RequestBytes < 1 || uint64(c.RequestBytes) > math.MaxUint32:
		return wrong("requests of %d bytes: want 1 to 4 GiB", c.RequestBytes)
	case c.MinPieceBytes < 1:
		return wrong("pieces of %d bytes: want at least 1", c.MinPieceBytes)
	case c.MaxPieces < 1:
		return wrong("%d descriptors a request: want at least 1", c.MaxPieces)
	case c.SLO <= 0 || c.Deadline <= 0 || c.WishAfter <= 0:
		return wrong("SLO %v, deadline %v, wish after %v: want more than 0", c.SLO, c.Deadline, c.WishAfter)
	case c.MaxWishes > maxWishes:
		return wrong("%d wishes: want at most %d", c.MaxWishes, maxWishes)
	case c.AnsweredFor < 0 || c.TurnedAwayFor < 0:
		return wrong("ends remembered for %v and %v: want 0 or more", c.AnsweredFor, c.TurnedAwayFor)
	case c.AnsweredRequests < 1 || c.TurnedAwayRequests < 1 || c.AnsweredBytes < 1:
		return wrong("room for %d and %d ends and %d bytes: want at least 1", c.AnsweredRequests, c.TurnedAwayRequests, c.AnsweredBytes)
	}
	return nil
}

// clients is how many clients an aggregator tells apart: more than have slots.
func (c *Config) clients() int { return max(minClients, 2*c.Slots) }

// maxCount is the largest piece count of a request: no piece is too small, and
// each has a descriptor.
func (c *Config) maxCount() int {
	return min((c.RequestBytes-1)/c.MinPieceBytes+1, c.MaxPieces, wire.MaxPieces)
}

// Within is what an objective, or a client's own deadline, leaves the node: transit, a tenth
// of it at most, is for the way of the first piece to the node and of the result back.
func Within(objective, transit time.Duration) time.Duration {
	return objective - min(transit, objective/10)
}
