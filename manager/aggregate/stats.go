package aggregate

import "github.com/penstock/penstock/wire"

// Drop says in one word why a well-formed datagram was of no use.
type Drop uint8

// The reasons.
const (
	// dropLate pieces are of a request that was answered.
	dropLate Drop = iota
	// dropDuplicate pieces are here already.
	dropDuplicate
	// dropContradictory pieces have another total, count or piece size than the
	// first of their request.
	dropContradictory
	// dropOverlapping pieces are contradictory, and cover bytes that are here.
	dropOverlapping
	// dropForeign pieces are of requests that are not the model's: of another
	// size, or in pieces that are too many or too small.
	dropForeign
	// dropBusy pieces are of requests that got no slot, or lost it.
	dropBusy
	// dropFragmented pieces needed one descriptor more than there are; their
	// request is evicted.
	dropFragmented
	// dropShed are what is left of requests that were shed before they were received.
	dropShed
	// numDrops is the size of an array indexed by Drop.
	numDrops
)

var dropWords = [numDrops]string{"late", "duplicate", "contradictory", "overlapping", "foreign", "busy", "fragmented", "shed"}

func (d Drop) String() string {
	if d < numDrops {
		return dropWords[d]
	}
	return "unknown"
}

// Stats counts since New. Datagrams is the sum of Pieces, Malformed and Dropped;
// Begun is the sum of Whole, Incomplete, Evicted and Gathering.
type Stats struct {
	Datagrams uint64
	// Pieces were put where they belong.
	Pieces uint64
	// Malformed datagrams break a rule of package wire, by reason.
	Malformed [wire.NumReasons]uint64
	// Dropped datagrams are well-formed, by reason.
	Dropped [numDrops]uint64

	// Begun requests got a slot, and became Whole, Incomplete or Evicted.
	Begun, Whole, Incomplete, Evicted uint64
	// Refused and Busy requests got none. Shed ones are those of Busy that were shed before
	// they were received.
	Refused, Busy, Shed uint64

	// Wishes were sent, answers given Again; Forgotten answers could not be,
	// because their payload was gone.
	Wishes, Again, Forgotten uint64
	// Withheld counts the busy blocks that were sent in place of an answer to
	// clients that have to prove their address first.
	Withheld uint64

	// What is held now: requests that gather, requests that are whole and not
	// ended, clients seen lately, requests that have ended and are remembered,
	// slab bytes of the datagrams of live requests.
	Gathering, InFlight, Clients, Remembered int
	HeldBytes                                uint64
}

// Add adds the counters of another aggregator of the same function.
func (s *Stats) Add(o *Stats) {
	s.Datagrams += o.Datagrams
	s.Pieces += o.Pieces
	for i := range s.Malformed {
		s.Malformed[i] += o.Malformed[i]
	}
	for i := range s.Dropped {
		s.Dropped[i] += o.Dropped[i]
	}
	s.Begun += o.Begun
	s.Whole += o.Whole
	s.Incomplete += o.Incomplete
	s.Evicted += o.Evicted
	s.Refused += o.Refused
	s.Busy += o.Busy
	s.Shed += o.Shed
	s.Wishes += o.Wishes
	s.Again += o.Again
	s.Forgotten += o.Forgotten
	s.Withheld += o.Withheld
	s.Gathering += o.Gathering
	s.InFlight += o.InFlight
	s.Clients += o.Clients
	s.Remembered += o.Remembered
	s.HeldBytes += o.HeldBytes
}

// Stats reads the counters.
func (a *Aggregator) Stats() Stats {
	s := a.stats
	s.Gathering = int(s.Begun - s.Whole - s.Incomplete - s.Evicted)
	s.InFlight = a.taken - s.Gathering
	s.Clients = a.clients.active() + a.strangers.active()
	s.Remembered = a.ended.n + a.turned.n
	s.HeldBytes = a.heldBytes
	return s
}
