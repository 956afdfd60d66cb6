// Package recovery decides when a client sends fragments of a request again
// (docs/wire.md, "When something got lost"). It is pure: the caller passes the
// time in, and sends.
//
//	             Sent                   NACK followed
//	fragments ─────────> silence ────────────────────────> the named fragments
//	leave                   │
//	                        └─ AskAt passes: Ask ────────> fragment 0
//
// Three rules protect a congested path:
//
//  1. A NACK that arrives too soon after the last fragment is ignored. It may name
//     fragments that are still on their way.
//  2. That time doubles when a NACK names no fewer fragments than the one before:
//     what was sent again did not arrive, or did not arrive yet.
//  3. The silence before a question doubles with each question.
//
// The first NACK of a request shows how soon the manager notices a silence. Later
// questions follow after 1.5 times that delay. The client may therefore ask as
// often as its deadline allows, while a request that lost nothing asks only after
// Options.ResendAfter.
package recovery

import "time"

const (
	// minSilence is the shortest silence before a question. A manager ignores a
	// question that follows its NACK or its answer more closely (docs/wire.md).
	minSilence = time.Millisecond
	// minIgnore is the min time after fragments were sent again for which a NACK is
	// ignored: more than a round trip in a machine room.
	minIgnore = 500 * time.Microsecond
	// gapPart is the part of resendAfter that an answer may pause before a question. A busy manager pauses while it
	// sends a large answer.
	gapPart = 16
)

// Request is the recovery of one request. The zero value is ready for Begin. Its
// caller serializes all calls. Times are in nanoseconds of one monotonic clock.
type Request struct {
	resendAfter time.Duration

	sending   bool // fragments leave
	asked     bool // and are a question
	answering bool // a fragment of the answer has arrived

	sentAt      int64 // of the last fragment
	leftAt      int64 // of the last fragment that was no question
	askAt       int64
	ignoreUntil int64
	askDelay    time.Duration // before the next question
	ignoreDelay time.Duration // after the last fragment sent again
	nackDelay   time.Duration // the longest from the last fragment to a NACK
	missing     int           // fragments in the last NACK that was followed
}

// Begin starts a request of count fragments. A first question follows a silence of
// resendAfter.
func (r *Request) Begin(count int, resendAfter time.Duration) {
	*r = Request{resendAfter: resendAfter, askDelay: resendAfter, missing: count, sending: true}
}

// Sent reports that the last fragment left for now. roundTrip is the estimate of the
// path's round trip in nanoseconds, 0 if unknown.
func (r *Request) Sent(now, roundTrip int64) {
	r.sending, r.sentAt = false, now
	r.askAt = now + int64(r.askDelay)
	if r.asked {
		// The NACK that answers a question comes after one round trip. All that
		// can be on its way is fragment 0.
		r.asked = false
		return
	}
	r.leftAt = now
	r.ignoreUntil = now + max(int64(r.ignoreDelay), roundTrip)
}

// AskAt is when the client should call Ask; 0 while fragments leave.
func (r *Request) AskAt() int64 {
	if r.sending {
		return 0
	}
	return r.askAt
}

// LeftAt is when the last fragment left, questions excluded; 0 while fragments leave.
func (r *Request) LeftAt() int64 {
	if r.sending {
		return 0
	}
	return r.leftAt
}

// Ask reports whether the silence has lasted long enough. If so, the caller sends
// fragment 0 again and calls Sent when it has left.
func (r *Request) Ask(now int64) bool {
	if r.sending || now < r.askAt {
		return false
	}
	r.sending, r.asked = true, true
	r.askDelay *= 2
	if r.answering {
		r.askDelay = min(r.askDelay, r.resendAfter)
	}
	return true
}

// Prove reports that the manager wants proof of the client's address. The caller
// sends fragment 0 now, as after Ask.
func (r *Request) Prove() {
	r.asked = r.asked || !r.sending
	r.sending = true
}

// Answered reports a fragment of an answer, but not the last missing one. The rest may be on its way, or lost because
// a burst filled a buffer. The next question is due when the answer pauses for longer than a round trip, in
// nanoseconds, 0 if unknown. It is due now if the fragment is the highest that the latest question named: those below that are missing were lost. A
// fragment that the client has already counts too.
func (r *Request) Answered(now, roundTrip int64, last bool) {
	r.answering = true
	r.askDelay = min(max(r.resendAfter/gapPart, time.Duration(2*roundTrip)), r.resendAfter)
	r.askAt = now + int64(r.askDelay)
	if last {
		r.askAt = now
	}
}

// NACK reports that a NACK arrived which names missing fragments, and returns whether
// the caller sends them now. If so, it calls Sent when the last of them has left.
func (r *Request) NACK(now int64, missing int) bool {
	if r.sending {
		return false // fragments leave; the manager repeats the NACK if it matters
	}

	r.nackDelay = max(r.nackDelay, time.Duration(now-r.sentAt))
	r.askDelay = min(max(3*r.nackDelay/2, minSilence), r.resendAfter)
	if now < r.ignoreUntil {
		r.askAt = now + int64(r.askDelay)
		return false
	}

	if r.ignoreDelay == 0 {
		r.ignoreDelay = minIgnore
	} else if missing >= r.missing {
		r.ignoreDelay = min(2*r.ignoreDelay, r.resendAfter)
	}
	r.missing = missing
	r.sending = true
	return true
}
