package datapath

import (
	"errors"
	"math/rand/v2"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/datapath/aggregate"
	"github.com/penstock/penstock/datapath/ingest"
	"github.com/penstock/penstock/wire"
)

// replyFragmentBytes is the maximum size of a result's fragment.
const replyFragmentBytes = aggregate.ReplyFragmentBytes

// outboxBytes is how many bytes an outbox holds before it sends them: it does not grow to the size of the largest answer.
const outboxBytes = 1 << 20

// outbox collects datagrams to be sent together through a source, which the thread that uses it sets before. It
// allocates nothing once it has grown to the size of a burst.
type outbox struct {
	source  ingest.Source
	bytes   []byte
	ends    []int // of each datagram in bytes
	to      []netip.AddrPort
	packets []ingest.Packet
	lost    int // datagrams that the source did not take
}

// result adds an answer, in as many datagrams as its payload needs. It copies the
// payload. It omits the payload if the status is not ok, because the client may
// have to prove its address first. again marks an answer that was given before. Answers about
// pictures of cameras have no valid address if the operator set none (Options.AnswersTo).
func (o *outbox) result(to netip.AddrPort, id uint32, r *wire.Result, payload []byte, again bool) {
	if !to.IsValid() {
		return
	}
	if r.Status != wire.StatusOK {
		payload = nil
	}
	n, first := wire.Fragments(len(payload), replyFragmentBytes), 0
	if again {
		// A full buffer loses the end of a burst. Each repeat must lose other fragments.
		first = rand.IntN(n)
	}
	for i := range n {
		o.bytes = wire.AppendResult(o.bytes, id, r, payload, replyFragmentBytes, (first+i)%n, again)
		o.done(to)
	}
}

// missing adds the fragments of an answer that its client asks for.
func (o *outbox) missing(a *aggregate.Answer) {
	for i := range a.Wanted.All(wire.Fragments(a.Total, replyFragmentBytes)) {
		o.bytes = wire.AppendPart(o.bytes, a.RequestID, &a.Result, a.Total, a.Payload, a.From, replyFragmentBytes, i, true)
		o.done(a.To)
	}
}

// nack adds NACKs for a request's missing fragments.
func (o *outbox) nack(to netip.AddrPort, id, total uint32, count uint16, present []uint64) {
	for from := 0; from < int(count); {
		before := len(o.bytes)
		o.bytes, from = wire.AppendNACK(o.bytes, id, total, count, present, from)
		if len(o.bytes) > before {
			o.done(to)
		}
	}
}

func (o *outbox) done(to netip.AddrPort) {
	o.ends, o.to = append(o.ends, len(o.bytes)), append(o.to, to)
	if len(o.bytes) >= outboxBytes {
		o.flush()
	}
}

// send passes all collected datagrams to the source and returns how many it did
// not take since the last send.
func (o *outbox) send() (lost int) {
	if len(o.ends) > 0 {
		o.flush()
	}
	lost, o.lost = o.lost, 0
	return lost
}

// flush passes the collected datagrams to the source. An unreachable address costs only its own reply; a full socket
// costs the rest. They are lost like any datagram: clients ask again.
func (o *outbox) flush() {
	from := 0
	for i, end := range o.ends {
		o.packets = append(o.packets, ingest.Packet{To: o.to[i], Data: o.bytes[from:end]})
		from = end
	}
	for left := o.packets; len(left) > 0; {
		n, err := o.source.Send(left)
		left = left[min(n, len(left)):]
		switch {
		case err == nil && n == 0, errors.Is(err, unix.EAGAIN), errors.Is(err, ingest.ErrClosed):
			o.lost += len(left)
			left = nil
		case err != nil && len(left) > 0:
			o.lost++
			left = left[1:]
		}
	}
	clear(o.packets)
	o.bytes, o.ends, o.to, o.packets = o.bytes[:0], o.ends[:0], o.to[:0], o.packets[:0]
}
