package aggregate

import (
	"net/netip"

	"github.com/penstock/penstock/datapath/cameras"
	"github.com/penstock/penstock/datapath/ingest"
	"github.com/penstock/penstock/wire"
)

// Events is the result of calls: each call appends. The caller owns it, one per
// thread, and reuses it. Everything that it refers to is its own memory, so it
// may be read after the aggregator's lock was released.
type Events struct {
	// Release holds packet memory to return to the source now.
	Release []ingest.Span
	// Complete holds slots whose request has become complete, to be published. The
	// caller ends each with End.
	Complete []uint32
	// Begun counts the requests that have begun and whose client has proved that it receives at
	// its address, so that it is worth to prepare for them. Pictures of cameras do not count.
	Begun int
	// Reported holds answers to requests that will not run: refused, busy,
	// incomplete.
	Reported []Answer
	// Again holds answers that were sent before, and that clients asked for
	// again. They are sent with the retransmitted flag.
	Again []Answer
	// NACKs holds the NACKs to send to clients.
	NACKs []NACK
	// Resends holds what cameras shall send again.
	Resends []Resend
	// Greetings holds the answers to hellos and proofs.
	Greetings []Greeting

	present  []uint64
	payloads []byte
}

// Reset empties the events. The next call that fills them overwrites what was
// read from them.
func (e *Events) Reset() {
	e.Release, e.Complete, e.Reported, e.Again, e.NACKs = e.Release[:0], e.Complete[:0], e.Reported[:0], e.Again[:0], e.NACKs[:0]
	e.Resends, e.Greetings, e.present, e.payloads, e.Begun = e.Resends[:0], e.Greetings[:0], e.present[:0], e.payloads[:0], 0
}

// Answer is a result to send. The caller fills in ModelVersion if the request
// did not run.
type Answer struct {
	To        netip.AddrPort
	RequestID uint32
	wire.Result
	Payload []byte
	// Wanted, if not empty, names the fragments that the client asks for. Payload is then the part of
	// the payload from byte From on that contains them. Total is the size of the payload.
	Wanted      wire.Missing
	From, Total int
}

// NACK is a NACK, with the arguments of wire.AppendNACK.
type NACK struct {
	To        netip.AddrPort
	RequestID uint32
	Total     uint32 // bytes of the request
	Count     uint16 // fragments of the request
	// Present has bit i%64 of word i/64 set for each received fragment i.
	Present []uint64
}

// Resend is a message to a camera.
type Resend struct {
	To netip.AddrPort
	cameras.Resend
}

// Greeting is the answer to a hello or a proof, which is of the same type.
type Greeting struct {
	To   netip.AddrPort
	Type wire.Type
	wire.Hello
}

// release adds a datagram to Release.
func (e *Events) release(d *ingest.Datagram) {
	e.Release = hold(hold(e.Release, d.First), d.Rest)
}

func (e *Events) sendNACK(r *request) {
	words := (int(r.count) + 63) / 64
	at := len(e.present)
	e.present = append(e.present, r.present[:words]...)
	e.NACKs = append(e.NACKs, NACK{
		To: r.from, RequestID: r.id, Total: r.total, Count: r.count, Present: e.present[at : at+words : at+words],
	})
}

// keep copies a payload, because its memory will be reused.
func (e *Events) keep(payload []byte) []byte {
	at := len(e.payloads)
	e.payloads = append(e.payloads, payload...)
	return e.payloads[at:len(e.payloads):len(e.payloads)]
}

// maxSpanBytes bounds what hold joins. It is far below the max of a Span's u32.
const maxSpanBytes = 1 << 30

// hold appends a span, or extends the last span if the new one follows it. The
// datagrams of one read are back to back, so a request of hundreds of datagrams
// has few spans.
func hold(spans []ingest.Span, s ingest.Span) []ingest.Span {
	if s.Length == 0 {
		return spans
	}
	if n := len(spans); n > 0 {
		if last := &spans[n-1]; last.Offset+uint64(last.Length) == s.Offset && last.Length < maxSpanBytes {
			last.Length += s.Length
			return spans
		}
	}
	return append(spans, s)
}
