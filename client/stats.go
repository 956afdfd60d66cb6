package client

import (
	"sync/atomic"

	"github.com/penstock/penstock/wire"
)

// Stats holds counters since Dial.
type Stats struct {
	// Datagrams and Bytes were sent, headers included. Resends counts the
	// datagrams that had been sent before.
	Datagrams, Bytes, Resends uint64
	// Sends is the number of system calls for them.
	Sends uint64
	// Late is the number of requests that ended with ErrLate: they were never
	// sent.
	Late uint64
	// NACKs is the number of NACKs received for requests in flight.
	NACKs uint64
	// Proofs is how often the manager asked for proof that this client receives
	// at its address.
	Proofs uint64
	// Answers is the number of answered requests. Duplicates counts answers and
	// NACKs for requests that had ended. Foreign counts those for none of this
	// client's requests.
	Answers, Duplicates, Foreign uint64
	// Unreachable is how often the kernel reported that no process listens at
	// the address (ECONNREFUSED).
	Unreachable uint64
	// SendErrors and ReceiveErrors count other errors. The datagrams that an
	// error affects count as lost on the network.
	SendErrors, ReceiveErrors uint64
	// Malformed counts datagrams that break the rules of docs/wire.md, by the word of wire.Reason. It has no zeros.
	Malformed map[string]uint64
}

// counts holds the live counters of Stats.
type counts struct {
	datagrams, bytes, resends, sends      atomic.Uint64
	late, nacks, proofs                   atomic.Uint64
	answers, duplicates, foreign          atomic.Uint64
	unreachable, sendErrors, receiveError atomic.Uint64
	malformed                             [wire.NumReasons]atomic.Uint64
}

// Stats reads the counters, one at a time.
func (c *Client) Stats() Stats {
	n := &c.counts
	s := Stats{
		Datagrams: n.datagrams.Load(), Bytes: n.bytes.Load(), Resends: n.resends.Load(), Sends: n.sends.Load(),
		Late: n.late.Load(), NACKs: n.nacks.Load(), Proofs: n.proofs.Load(), Answers: n.answers.Load(), Duplicates: n.duplicates.Load(), Foreign: n.foreign.Load(),
		Unreachable: n.unreachable.Load(), SendErrors: n.sendErrors.Load(), ReceiveErrors: n.receiveError.Load(),
		Malformed: make(map[string]uint64),
	}
	for i := range n.malformed {
		if count := n.malformed[i].Load(); count > 0 {
			s.Malformed[wire.Reason(i).String()] = count
		}
	}
	return s
}
