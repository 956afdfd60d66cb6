package aggregate

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/penstock/penstock/datapath/cameras"
	"github.com/penstock/penstock/datapath/ingest"
	"github.com/penstock/penstock/shm"
	"github.com/penstock/penstock/wire"
)

// Pictures of cameras: requests whose datagrams are not those of package wire (Config.Camera). They
// take the same path as other requests, with these differences:
//
//   - A request is a picture: address, port and what package cameras says of it.
//   - Packets need not have the same size. A request keeps its descriptors in the order of place,
//     which shows what overlaps. It is complete when their lengths are the picture's.
//   - A camera does not read answers: they go to Config.AnswersTo, under the camera's number for the
//     picture. In place of NACKs there are commands to GigE Vision cameras, and nothing for RTP.
//   - A camera cannot prove its address. Its address gets the share of a client that has.

// addPacket adds a packet of a camera.
func (a *Aggregator) addPacket(d *ingest.Datagram, events *Events) {
	a.stats.Datagrams++
	if d.Shed {
		a.drop(dropShed, d, events)
		return
	}
	var p cameras.Packet
	if err := a.config.Camera.Read(&p, a.bytes(d, 0, a.head), d.Length()); err != nil {
		a.stats.Malformed[wire.ReasonOf(err)]++
		events.release(d)
		return
	}
	if r := &a.slots[a.last]; r.id == p.Picture && r.live() && r.from == d.From {
		a.receivePacket(a.last, d, &p, events)
		return
	}

	hash := a.hash.request(d.From, p.Picture)
	ref, ok := a.find(hash, d.From, p.Picture)
	switch {
	case ok && int(ref) < len(a.slots):
		a.last = ref
		a.receivePacket(ref, d, &p, events)
	case ok:
		a.drop(dropAfter(a.remembered(ref).result.Status), d, events)
	case p.Part == cameras.Trailer: // everything else of its picture was lost
		a.drop(dropLate, d, events)
	default:
		a.beginPicture(requestKey{d.From, p.Picture, hash}, d, &p, events)
	}
}

// beginPicture gives a new picture a slot, or turns it away. A picture that was turned away is
// remembered for as long as an answered one, because a camera may take that long to send the rest.
func (a *Aggregator) beginPicture(k requestKey, d *ingest.Datagram, p *cameras.Packet, events *Events) {
	if !a.config.allows(d.From.Addr()) {
		a.drop(dropAddress, d, events)
		return
	}
	end := record{requestKey: k, result: wire.Result{SentAt: p.SentAt}}
	if p.Refusal.Cause != 0 {
		a.stats.Refused++
		a.stats.Refusal = p.Refusal
		a.drop(dropForeign, d, events)
		end.result.Status = wire.StatusRefused
		a.tell(&a.ended, end, events)
		return
	}
	client := a.senders.touch(true, a.hash.client(d.From), d.From, a.now)
	slot, ok := a.takeSlot(a.party(client), events)
	if !ok {
		a.stats.Busy++
		a.drop(dropBusy, d, events)
		end.result.Status = wire.StatusBusy
		a.tell(&a.ended, end, events)
		return
	}

	r := a.occupy(slot, k, d, client)
	r.count, r.size, r.total = 0, 0, a.pictureBytes
	r.extension.picture = p.Shape
	r.stream, r.extended, r.led = p.Stream, p.Extended, p.Part == cameras.Run
	a.receivePacket(slot, d, p, events)
}

// allows reports whether a camera may send from an address.
func (c *Config) allows(from netip.Addr) bool {
	from = from.WithZone("").Unmap()
	return len(c.Allowed) == 0 || slices.ContainsFunc(c.Allowed, func(p netip.Prefix) bool { return p.Contains(from) })
}

// receivePacket adds a packet to a live picture.
func (a *Aggregator) receivePacket(slot uint32, d *ingest.Datagram, p *cameras.Packet, events *Events) {
	r := &a.slots[slot]
	switch {
	case p.Stream != r.stream:
		a.drop(dropContradictory, d, events)
		return
	case r.state == stateComplete && p.Part != cameras.Trailer:
		a.drop(dropDuplicate, d, events)
		return
	case p.Refusal.Cause != 0 && r.state == stateGathering:
		a.refusePicture(slot, p.Refusal, events)
		a.drop(dropForeign, d, events)
		return
	case p.Part == cameras.Leader && r.led:
		a.drop(dropDuplicate, d, events)
		return
	case p.Bytes != 0 && r.got > 0 && uint32(p.Bytes) != r.total:
		a.refusePicture(slot, cameras.Changed(r.total, uint32(p.Bytes)), events)
		a.drop(dropForeign, d, events)
		return
	}

	switch p.Part {
	case cameras.Leader:
		if p.Bytes != 0 {
			r.total, a.pictureBytes = uint32(p.Bytes), uint32(p.Bytes)
		}
		r.led, r.extension.sentAt, r.extension.picture = true, p.SentAt, p.Shape
		a.stats.Fragments++
		events.release(d)
	case cameras.Trailer:
		a.stats.Fragments++
		events.release(d)
		return
	default:
		if reason, ok := a.placePixels(r, d, p); !ok {
			a.drop(reason, d, events)
			if reason == dropFragmented {
				a.evict(slot, false, events)
			}
			return
		}
		a.stats.Fragments++
		a.heldBytes += uint64(d.Length())
		r.spans = hold(hold(r.spans, d.First), d.Rest)
	}
	a.advance(slot)
	if r.led && r.got == r.total {
		a.complete(slot, events)
	}
}

// maxResends bounds the commands for a picture at a time. When what they name has arrived, or not, the next ones follow.
// A command has resendBytes with its headers. All have at most the bytes of the picture that have arrived, because
// the address may be forged.
const (
	maxResends  = 64
	resendBytes = 56
)

// resend asks the camera for the packets that are missing of a gathering picture: packet 0 is the leader, the pixels begin
// with packet 1.
func (a *Aggregator) resend(r *request, events *Events) {
	most := len(events.Resends) + min(maxResends, int(r.got)/resendBytes)
	ask := func(first, last uint32) {
		if len(events.Resends) < most {
			block := uint64(r.stream)<<32 | uint64(r.id)
			events.Resends = append(events.Resends, Resend{netip.AddrPortFrom(r.from.Addr(), cameras.ControlPort), cameras.Resend{
				Block: block, Extended: r.extended, First: first, Last: last,
			}})
		}
	}
	if !r.led {
		ask(0, 0)
	}
	size, place := cmp.Or(r.size, a.fragmentBytes), uint32(0)
	if size == 0 {
		return // until a packet has shown it
	}
	for _, f := range r.fragments[:r.used] {
		if f.Place > place {
			ask(place/size+1, (f.Place-1)/size+1)
		}
		place = f.Place + uint32(f.Length)
	}
	if place < r.total {
		ask(place/size+1, (r.total-1)/size+1)
	}
}

// refusePicture ends a gathering picture that the model does not take.
func (a *Aggregator) refusePicture(slot uint32, why cameras.Refusal, events *Events) {
	r := &a.slots[slot]
	a.stats.Refused++
	a.stats.Evicted++
	a.stats.Refusal = why
	a.vacate(slot, events)
	result := wire.Result{Status: wire.StatusRefused, Aggregate: time.Duration(a.now - r.first), SentAt: r.extension.sentAt}
	a.tell(&a.ended, record{requestKey: r.requestKey, result: result}, events)
}

// placePixels adds the descriptors of a packet's pixels to a picture, in the order of place. If ok
// is false, it changes nothing, and reason says why.
func (a *Aggregator) placePixels(r *request, d *ingest.Datagram, p *cameras.Packet) (reason Drop, ok bool) {
	place, length := p.Place, uint32(p.Length)
	size := max(r.size, length)
	if p.Part == cameras.Fragment {
		if place, length, size, ok = a.placeFragment(r, p); !ok {
			return dropContradictory, false
		}
		a.fragmentBytes = size
	}

	at := r.used
	for at > 0 && r.fragments[at-1].Place >= place {
		at--
	}
	switch {
	case at < r.used && r.fragments[at].Place == place:
		return dropDuplicate, false
	case at < r.used && r.fragments[at].Place < place+length,
		at > 0 && r.fragments[at-1].Place+uint32(r.fragments[at-1].Length) > place:
		return dropOverlapping, false
	}

	var parts [2]shm.Fragment
	n := describe(parts[:], d, uint32(p.Offset), length, place)
	if int(r.used)+n > len(r.fragments) {
		return dropFragmented, false
	}
	copy(r.fragments[int(at)+n:], r.fragments[at:r.used])
	copy(r.fragments[at:], parts[:n])
	r.used += uint32(n)
	r.got += length
	r.size = size
	return 0, true
}

// placeFragment returns the place of a fragment's pixels in the picture, their number in bytes, and
// the size of the picture's fragments. ok is false if another fragment contradicts it.
//
// The first fragment of a picture shows that size, unless it is the last one. A picture usually has
// fragments of the same size as the one before.
func (a *Aggregator) placeFragment(r *request, p *cameras.Packet) (place, bytes, size uint32, ok bool) {
	total, length, fragment := uint64(r.total), uint64(p.Length), uint64(r.size)
	if fragment == 0 {
		fragment = length
		if usual := uint64(a.fragmentBytes); length < usual && uint64(p.Index)*usual+length == total {
			fragment = usual
		}
	}
	begin := uint64(p.Index) * fragment // below 2^48: a datagram has less than 64 KiB
	switch {
	case begin >= total, length > fragment, length < fragment && begin+length != total:
		return 0, 0, 0, false
	}
	return uint32(begin), uint32(min(length, total-begin)), uint32(fragment), true // some cameras pad the last one
}

// missing returns how many fragments a gathering request lacks. For a picture of a camera it
// estimates them from the largest packet, and counts a leader.
func (a *Aggregator) missing(r *request) uint16 {
	if a.config.Camera == nil {
		return r.count - uint16(r.got)
	}
	size := cmp.Or(r.size, a.fragmentBytes, uint32(a.config.MinFragmentBytes))
	n := (r.total - r.got + size - 1) / size
	if !r.led {
		n++
	}
	return uint16(min(n, 1<<16-1))
}

// answersTo returns the receiver of the answers for requests from an address. It is not valid if
// nothing is sent.
func (a *Aggregator) answersTo(from netip.AddrPort) netip.AddrPort {
	if a.config.Camera != nil {
		return a.config.AnswersTo
	}
	return from
}
