package aggregate

import (
	"net/netip"

	"github.com/penstock/penstock/manager/ingest"
	"github.com/penstock/penstock/wire"
)

// Events is what came of a call: each call appends. It belongs to the caller, one
// a thread, and is used again and again; all that it refers to is its own, so it
// may be read after the aggregator's lock was let go.
type Events struct {
	// Release is packet memory to give back to the source, now.
	Release []ingest.Span
	// Whole is slots whose request has become whole, to be published; the caller
	// ends each with End.
	Whole []uint32
	// Told is answers to requests that will not be run: refused, busy, incomplete.
	Told []Answer
	// Again is answers that were given before, asked for once more; they go out
	// with the retransmitted flag.
	Again []Answer
	// Wishes is what to ask clients for.
	Wishes []Wish

	present  []uint64
	payloads []byte
}

// Reset empties the events; what was read from them is overwritten by the next
// call that fills them.
func (e *Events) Reset() {
	e.Release, e.Whole, e.Told, e.Again, e.Wishes = e.Release[:0], e.Whole[:0], e.Told[:0], e.Again[:0], e.Wishes[:0]
	e.present, e.payloads = e.present[:0], e.payloads[:0]
}

// Answer is a result to send. ModelVersion is the caller's to fill in where the
// request was not run.
type Answer struct {
	To        netip.AddrPort
	RequestID uint32
	wire.Result
	Payload []byte
}

// Wish is what wire.AppendWish takes.
type Wish struct {
	To        netip.AddrPort
	RequestID uint32
	Total     uint32 // bytes of the request
	Count     uint16 // pieces of the request
	// Present has bit i%64 of word i/64 set for each piece i that has come.
	Present []uint64
}

// release gives a datagram back.
func (e *Events) release(d *ingest.Datagram) {
	e.Release = hold(hold(e.Release, d.First), d.Rest)
}

func (e *Events) wish(r *request, total uint32) {
	words := (int(r.count) + 63) / 64
	at := len(e.present)
	e.present = append(e.present, r.present[:words]...)
	e.Wishes = append(e.Wishes, Wish{
		To: r.from, RequestID: r.id, Total: total, Count: r.count, Present: e.present[at : at+words : at+words],
	})
}

// keep copies a payload, for the memory that it lies in is used again.
func (e *Events) keep(payload []byte) []byte {
	at := len(e.payloads)
	e.payloads = append(e.payloads, payload...)
	return e.payloads[at:len(e.payloads):len(e.payloads)]
}

// maxSpanBytes bounds what hold joins, well within a Span's u32.
const maxSpanBytes = 1 << 30

// hold appends a span, joined to the last where it follows it: the datagrams of
// one read lie back to back, so that a request of hundreds has few spans.
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
