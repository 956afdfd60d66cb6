package aggregate

import (
	"github.com/penstock/penstock/datapath/cameras"
	"github.com/penstock/penstock/wire"
)

// Drop is the reason why a well-formed datagram was of no use.
type Drop uint8

// The reasons.
const (
	// dropLate: the request was answered already.
	dropLate Drop = iota
	// dropDuplicate: the fragment was received before.
	dropDuplicate
	// dropContradictory: total, count or fragment size differ from those of the
	// request's first fragment.
	dropContradictory
	// dropOverlapping: the fragment is contradictory, and covers bytes received
	// before.
	dropOverlapping
	// dropForeign: the request does not suit the model: its size differs, or
	// its fragments are too many or too small.
	dropForeign
	// dropBusy: the request got no slot, or lost it, or its client was moved.
	dropBusy
	// dropFragmented: the fragment needed one descriptor more than there are; its
	// request is evicted.
	dropFragmented
	// dropShed: a remainder of a request that was shed before it was received.
	dropShed
	// dropToken: the function has keys, and the request no valid token.
	dropToken
	// dropProof: the proof is wrong, was seen before, is too old, or one of too many.
	dropProof
	// dropAddress: the address is not one of the function's cameras.
	dropAddress
	// numDrops is the size of an array indexed by Drop.
	numDrops
)

// dropAfter is the reason for a datagram of a request that has ended with that status.
func dropAfter(status wire.Status) Drop {
	switch status {
	case wire.StatusRefused:
		return dropForeign
	case wire.StatusBusy, wire.StatusMoved:
		return dropBusy
	}
	return dropLate
}

var dropWords = [numDrops]string{"late", "duplicate", "contradictory", "overlapping", "foreign", "busy", "fragmented", "shed", "token", "proof", "address"}

func (d Drop) String() string {
	if d < numDrops {
		return dropWords[d]
	}
	return "unknown"
}

// Stats holds counters since NewSeveral. Datagrams is the sum of Fragments, Greeted, Malformed and
// Dropped. Begun is the sum of Complete, Incomplete, Evicted and Gathering.
type Stats struct {
	Datagrams uint64
	// Fragments counts fragments that were added to their request.
	Fragments uint64
	// Greeted counts the hellos and correct proofs that were answered.
	Greeted uint64
	// Malformed counts datagrams that break a rule of package wire, by reason.
	Malformed [wire.NumReasons]uint64
	// Dropped counts well-formed datagrams that were of no use, by reason.
	Dropped [numDrops]uint64

	// Begun requests got a slot, and became Complete, Incomplete or
	// Evicted.
	Begun, Complete, Incomplete, Evicted uint64
	// Refused and Busy requests got no slot. Shed counts those of Busy that
	// were shed before they were received. Refused pictures of cameras may be
	// Evicted ones: only a later packet shows that the model does not take them.
	Refused, Busy, Shed uint64
	// Refusal is why a camera's picture was refused most recently.
	Refusal cameras.Refusal

	// NACKs counts NACKs, Again repeated answers. Forgotten counts answers
	// that could not be repeated, because their payload was gone.
	NACKs, Again, Forgotten uint64
	// Withheld counts the busy blocks sent instead of an answer to clients that
	// must prove their address first.
	Withheld uint64

	// What is held now: incomplete requests, complete requests that have not
	// ended, clients seen lately, remembered requests, and slab bytes of the
	// datagrams of live requests.
	Gathering, InFlight, Clients, Remembered int
	HeldBytes                                uint64
}

// Offered counts the requests that the model takes, also those turned away because there was no room.
func (s *Stats) Offered() uint64 { return s.Begun + s.Busy }

// Add adds the counters of another aggregator of the same function.
func (s *Stats) Add(o *Stats) {
	s.Datagrams += o.Datagrams
	s.Fragments += o.Fragments
	s.Greeted += o.Greeted
	for i := range s.Malformed {
		s.Malformed[i] += o.Malformed[i]
	}
	for i := range s.Dropped {
		s.Dropped[i] += o.Dropped[i]
	}
	s.Begun += o.Begun
	s.Complete += o.Complete
	s.Incomplete += o.Incomplete
	s.Evicted += o.Evicted
	s.Refused += o.Refused
	s.Busy += o.Busy
	s.Shed += o.Shed
	if o.Refusal.Cause != 0 {
		s.Refusal = o.Refusal
	}
	s.NACKs += o.NACKs
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
	s.Gathering = int(s.Begun - s.Complete - s.Incomplete - s.Evicted)
	s.InFlight = a.taken - s.Gathering
	s.Clients = a.senders.active()
	s.Remembered = a.ended.n + a.turned.n
	s.HeldBytes = a.heldBytes
	return s
}
