package client

import (
	"sync/atomic"

	"github.com/penstock/penstock/wire"
)

// Stats counts since Dial.
type Stats struct {
	// Datagrams and Bytes left, headers included; Resends is how many of the
	// datagrams had been sent before.
	Datagrams, Bytes, Resends uint64
	// Sends is how many system calls that took.
	Sends uint64
	// Late is how many requests ended with ErrLate: they were never sent.
	Late uint64
	// Wishes is how many retransmit wishes came for requests in flight.
	Wishes uint64
	// Proofs is how often the manager asked for proof that this client receives
	// at its address.
	Proofs uint64
	// Answers is how many requests were answered; Duplicates counts datagrams
	// that answered, or asked for, what had ended; Foreign those that fit none of
	// this client's requests.
	Answers, Duplicates, Foreign uint64
	// Unreachable is how often the kernel reported that nobody listens at the
	// address (ECONNREFUSED).
	Unreachable uint64
	// SendErrors and ReceiveErrors count other errors; the datagrams that they
	// cost count as lost on the way.
	SendErrors, ReceiveErrors uint64
	// Malformed counts datagrams that the wire package refused, by reason.
	Malformed [wire.NumReasons]uint64
}

// counts is Stats while it grows.
type counts struct {
	datagrams, bytes, resends, sends      atomic.Uint64
	late, wishes, proofs                  atomic.Uint64
	answers, duplicates, foreign          atomic.Uint64
	unreachable, sendErrors, receiveError atomic.Uint64
	malformed                             [wire.NumReasons]atomic.Uint64
}

// Stats reads the counters, each by itself.
func (c *Client) Stats() Stats {
	n := &c.counts
	s := Stats{
		Datagrams: n.datagrams.Load(), Bytes: n.bytes.Load(), Resends: n.resends.Load(), Sends: n.sends.Load(),
		Late: n.late.Load(), Wishes: n.wishes.Load(), Proofs: n.proofs.Load(), Answers: n.answers.Load(), Duplicates: n.duplicates.Load(), Foreign: n.foreign.Load(),
		Unreachable: n.unreachable.Load(), SendErrors: n.sendErrors.Load(), ReceiveErrors: n.receiveError.Load(),
	}
	for i := range s.Malformed {
		s.Malformed[i] = n.malformed[i].Load()
	}
	return s
}
