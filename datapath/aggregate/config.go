package aggregate

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"time"

	"github.com/penstock/penstock/datapath/cameras"
	"github.com/penstock/penstock/wire"
)

// Config configures an aggregator. Zero means the default for fields that have one.
type Config struct {
	// Slots is the max number of requests in flight: a power of two from minSlots to
	// maxSlots. With Follow, the number of open slots follows the answers that come in time
	// (open.go); it is at least minSlots.
	Slots  int
	Follow bool
	// RequestBytes is the size of a request with a picture of the card.
	RequestBytes int
	// Takes reports whether the function takes other requests of so many bytes, less than RequestBytes; nil: none.
	Takes func(bytes int) bool
	// LargestPicture is the max size of a picture of another format or shape, which its extension says; 0: the
	// function takes none.
	LargestPicture int
	// MaxFragments is the number of descriptors of a slot in the table. A fragment takes one, or
	// two if it lies in two spans. 2 * max(RequestBytes, LargestPicture) / MinFragmentBytes are always enough.
	MaxFragments int
	// MinFragmentBytes is the min size of every fragment except the last. Requests with smaller
	// fragments are refused.
	MinFragmentBytes int

	// Camera, if set, reads the datagrams: they are those of cameras. GVSP's get Events.Resends instead of NACKs, others nothing, and
	// answers go to AnswersTo, or nowhere if it is not valid. Camera.Largest is LargestPicture. If that is 0, Camera.PictureBytes is
	// RequestBytes.
	Camera    *cameras.Reader
	AnswersTo netip.AddrPort
	// Allowed are the networks of the cameras; none: all addresses may send.
	Allowed []netip.Prefix

	// Streams: the function keeps a state per stream of a client. A complete request whose client has not proved its
	// address is turned away like one without room: the source may be forged, and the state that of another client.
	Streams bool

	// SLO bounds the deadline of a request, measured from its first fragment's arrival at the
	// machine.
	SLO time.Duration
	// Transit is the time that a request spends outside the node, see Within.
	Transit time.Duration
	// Deadline is how long after its first fragment was received an incomplete request is ended;
	// a quarter of SLO by default.
	Deadline time.Duration
	// NACKAfter is how long an incomplete request must be without a new fragment before the
	// manager sends a NACK. The wait doubles for each further NACK, up to MaxNACKs NACKs; a
	// new fragment starts this again. The default is an eighth of Deadline, from 100 µs to 5 ms.
	// 3 NACKs (after 1, 3 and 7 eighths) fit in it.
	NACKAfter time.Duration
	// MaxNACKs is the max number of NACKs in a row without effect: 3 by default, at most 8.
	// A negative value turns NACKs off; clients that ask still get an answer.
	MaxNACKs int

	// Trusted addresses, such as a gateway's, stand for many machines each. Every port of
	// such an address gets the share of an address.
	Trusted []netip.Prefix

	// AnsweredFor is how long an answered request is remembered: 2 s by default, as long as
	// clients try (docs/wire.md). AnsweredRequests is the max number of these (16,384 by
	// default), AnsweredBytes the max size of the stored payloads (4 MiB). A larger payload
	// is never repeated.
	AnsweredFor      time.Duration
	AnsweredRequests int
	AnsweredBytes    int
	// TurnedAwayFor is how long a request that was turned away, evicted or refused is
	// remembered: 100 ms by default. TurnedAwayRequests is the max number of these: by
	// default 16 for each slot, at most 16,384.
	TurnedAwayFor      time.Duration
	TurnedAwayRequests int
}

// The bounds of Config.Slots: the design requires the min, shm.Geometry has the max.
const (
	minSlots = 64
	maxSlots = 1 << 16
)

// againAfter is the min time from an answer or a NACK to the next one that a client's
// question for the same request causes. Earlier questions are ignored.
const againAfter = time.Millisecond

// maxAgainBytes bounds the payloads in Events.Again, up to one more. A client that asks for fragments as fast as it
// can would otherwise keep the receiver from the requests of others. Further questions are ignored.
const maxAgainBytes = 1 << 20

const (
	// maxNACKs keeps NACKAfter << MaxNACKs far below the max of an int64.
	maxNACKs = 8
	// minClients is the min number of clients that the table has room for.
	minClients = 1024
	// activeFor is how long after its last request a client counts for the fair shares. A
	// camera with one picture per second keeps its share.
	activeFor = 2 * time.Second
)

func (c Config) withDefaults() Config {
	or := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	or(&c.Deadline, c.SLO/4)
	or(&c.NACKAfter, min(max(c.Deadline/8, 100*time.Microsecond), 5*time.Millisecond))
	or(&c.AnsweredFor, 2*time.Second)
	or(&c.TurnedAwayFor, 100*time.Millisecond)
	switch {
	case c.MaxNACKs < 0, c.Camera != nil && c.Camera.Format != cameras.GVSP:
		c.MaxNACKs = 0
	case c.MaxNACKs == 0:
		c.MaxNACKs = 3
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
var errConfig = errors.New("bad aggregation options")

// Validate returns the error with which NewSeveral would panic.
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
	case c.LargestPicture < 0 || uint64(c.LargestPicture) > math.MaxUint32:
		return wrong("pictures of %d bytes: want 0 to 4 GiB", c.LargestPicture)
	case c.Camera != nil && c.Camera.Largest != c.LargestPicture:
		return wrong("pictures of up to %d bytes, and %d of a camera: want the same", c.LargestPicture, c.Camera.Largest)
	case c.Camera != nil && c.LargestPicture == 0 && c.Camera.PictureBytes() != c.RequestBytes:
		return wrong("pictures of %d bytes in requests of %d: want the same", c.Camera.PictureBytes(), c.RequestBytes)
	case c.MinFragmentBytes < 1:
		return wrong("fragments of %d bytes: want at least 1", c.MinFragmentBytes)
	case c.MaxFragments < 1:
		return wrong("%d descriptors per request: want at least 1", c.MaxFragments)
	case c.SLO <= 0 || c.Deadline <= 0 || c.NACKAfter <= 0:
		return wrong("SLO %v, deadline %v, NACK after %v: want more than 0", c.SLO, c.Deadline, c.NACKAfter)
	case c.MaxNACKs > maxNACKs:
		return wrong("%d NACKs: want at most %d", c.MaxNACKs, maxNACKs)
	case c.AnsweredFor < 0 || c.TurnedAwayFor < 0:
		return wrong("ends remembered for %v and %v: want 0 or more", c.AnsweredFor, c.TurnedAwayFor)
	case c.AnsweredRequests < 1 || c.TurnedAwayRequests < 1 || c.AnsweredBytes < 1:
		return wrong("room for %d and %d ends and %d bytes: want at least 1", c.AnsweredRequests, c.TurnedAwayRequests, c.AnsweredBytes)
	}
	return nil
}

// clients is the number of clients that an aggregator has room for: more than there are
// slots.
func (c *Config) clients() int { return max(minClients, 2*c.Slots) }

// maxCount is the max fragment count of a request: no fragment is too small, and each has a
// descriptor.
func (c *Config) maxCount() int {
	return min((max(c.RequestBytes, c.LargestPicture)-1)/c.MinFragmentBytes+1, c.MaxFragments, wire.MaxFragments)
}

// Within returns the part of an objective, or of a client's own deadline, that is left for
// the node. transit, at most a tenth of it, is for the first fragment's path to the node and the
// result's path back.
func Within(objective, transit time.Duration) time.Duration {
	return objective - min(transit, objective/10)
}
