// Package aggregate assembles requests from fragments. It takes datagrams as they arrived in the
// slab. It returns slots with complete requests, answers and NACKs for clients, and packet
// memory that is no longer needed.
//
// The path of a datagram, in the order of this file:
//
//  1. Add reads its header and checks it (package wire). A hello or a proof is answered (keys.go).
//  2. Add finds its request: usually that of the previous datagram in the batch.
//     Otherwise it looks up (source address, source port, request id) among the live
//     slots and the requests that ended lately.
//  3. A new request takes a free slot. Otherwise it is refused (it lacks a token, or its size is
//     not the model's), moved to another node (moved.go), or turned away (no slot is free).
//  4. The fragment is checked against the request's other fragments and marked in its
//     bitmap. Descriptors of its payload are written straight into the request table.
//  5. Fragment 0 says whether the picture is the card's, or of which format and shape it is. The request is refused if
//     that is not its size. A later fragment 0 changes nothing.
//  6. The last missing fragment completes the request: the caller publishes its slot.
//
// The packets of cameras take another way in (cameras.go).
//
// The life of a slot:
//
//	        first fragment             last fragment                End
//	free ───────────────> gathering ──────────> complete ───────────┐
//	 ^                        │ Expire: incomplete  │ AnswerEarly    │
//	 │                        │ EvictOldest,        v                │
//	 │                        │ evictAbove: evicted answered         │
//	 │                        │                     │ Free           │
//	 └────────────────────────┴─────────────────────┴────────────────┘
//
// A slot in state answered has no request any more: its client has the answer, and may ask
// for it again. Until no process can read the slot, it counts for its client's credit, and
// its spans stay in place.
//
// Every request that begins becomes exactly one of complete, incomplete and evicted. Its client
// gets one answer, unless it asks again, and its spans are in Events.Release once.
//
// # Requests that have ended
//
// A request that held a slot and was answered (ok, late, incomplete, failed) is remembered
// for AnsweredFor. Its further fragments are late and dropped, so it never runs twice. A client
// that asks (fragment 0, retransmitted) gets the same answer again, with its current credit, at
// most once every againAfter. That also holds for incomplete requests: a client tries again
// under a new id.
//
// A request that was turned away, evicted or refused is remembered for TurnedAwayFor, long
// enough for the rest of its fragments to arrive. After that the same id begins a new request.
// If the client had not proved its address (proof.go), or was moved, fragment 0 with its cookie
// begins the request again at once. The file fair.go divides the slots when they run short. A request
// that was shed before it was received (ingest.Datagram.Shed) is turned away with status
// busy. It gets the client's credit, because there is room for other requests. Both memories
// are bounded and drop their oldest entries first.
//
// The package is pure: the caller passes the time (nanoseconds of shm.Now's clock), and there
// is no I/O. Nothing is allocated once buffers have grown to the size of a burst. The holder
// of the caller's lock owns an Aggregator and everything that it returns: two goroutines must
// not call one at the same time. Several aggregators may serve one function concurrently, see
// NewSeveral.
package aggregate

import (
	"net/netip"
	"time"

	"github.com/penstock/penstock/datapath/cameras"
	"github.com/penstock/penstock/datapath/ingest"
	"github.com/penstock/penstock/shm"
	"github.com/penstock/penstock/wire"
)

// Table receives the descriptors for inference functions: *shm.Table. Each of several
// aggregators calls Fragments once for each slot, and writes only to slots that it has taken.
type Table interface {
	// Fragments returns a slot's descriptors, Config.MaxFragments of them, to be written in place.
	Fragments(slot uint32) []shm.Fragment
	// SetRequest writes the rest about a slot's request, when it is complete.
	SetRequest(slot uint32, r shm.Request)
}

// Aggregator holds the requests of one inference function, or of some of its clients.
type Aggregator struct {
	config Config
	common *common
	memory []byte
	table  Table
	// head has room for the beginning of a camera's packet that lies in two spans. fragmentBytes is
	// the size of the fragments of the latest picture, pictureBytes that of the picture; 0: unknown.
	head                        []byte
	fragmentBytes, pictureBytes uint32
	// now is the latest time that any caller has passed. Threads that wait for one lock may
	// pass their times out of order.
	now      int64
	draining bool

	slots []request // by slot; a slot of another aggregator is free here
	taken int       // slots that are not free here
	last  uint32    // the slot of the last fragment
	// requests finds live slots (0 … Slots-1) and remembered requests (from Slots on).
	requests index
	hash     hasher

	gathering gathering
	ended     history // answered
	turned    history // turned away, evicted, refused
	answers   arena   // the payloads of ended
	senders   senders

	handshakes handshakes

	heldBytes uint64
	stats     Stats
}

// request is the contents of a slot. The last three fields keep their memory.
type request struct {
	requestKey
	state  state
	client clientRef

	total uint32 // bytes of the picture
	count uint16 // number of fragments; 0 for a camera's picture
	size  uint32 // bytes of every fragment except the last; of the largest if they differ
	got   uint32 // received fragments, or bytes of a camera's picture
	used  uint32 // used descriptors

	stream   uint32 // of a camera (cameras.Packet)
	extended bool   // the picture's block id has 64 bits
	led      bool   // the leader of a camera's picture was received, or its format has none

	replies   replyLimit
	extension extension
	nacks     nacks

	first    int64 // when the first fragment was received
	arrived  int64 // when the first fragment reached the machine, before it waited to be received
	complete int64
	progress int64 // last new fragment

	present   []uint64 // bit i%64 of word i/64: fragment i was received
	fragments []shm.Fragment
	spans     []ingest.Span // the datagrams with their headers; adjacent ones merged
}

// requestKey identifies a request.
type requestKey struct {
	from netip.AddrPort
	id   uint32
	hash uint32 // of from and id
}

// replyLimit bounds what is sent to a client that has not proved its address.
type replyLimit struct {
	headers uint32 // header bytes of each of its datagrams
	budget  budget // bytes that may be sent
}

// extension is what the extension of a request's header says, if it was received.
type extension struct {
	received bool
	priority uint8
	lowest   uint16 // score
	stream   uint32
	picture  wire.Picture
	wanted   int64 // for how long after request.first an answer is useful; 0: unknown
	sentAt   uint64
}

// nacks are the NACKs that were sent for a request.
type nacks struct {
	sent uint8 // since the last new fragment
	mark int64 // last new fragment or NACK
	last int64 // last NACK, or the beginning
}

type state uint8

const (
	stateFree state = iota
	// stateAnswered: the client was answered, and a process may still use the slot.
	stateAnswered
	stateGathering
	stateComplete
)

// live reports whether a slot has a request that was not answered.
func (r *request) live() bool { return r.state > stateAnswered }

func newAggregator(config Config, memory []byte, table Table, shared *common) *Aggregator {
	a := &Aggregator{
		config:  config,
		common:  shared,
		memory:  memory,
		table:   table,
		slots:   make([]request, config.Slots),
		hash:    newHasher(),
		answers: newArena(config.AnsweredBytes),
		senders: newSenders(config.clients(), shared),

		gathering: newGathering(config.Slots, config.MaxNACKs),
	}
	a.requests = newIndex(config.Slots + config.AnsweredRequests + config.TurnedAwayRequests)
	a.ended = newHistory(config.AnsweredRequests, config.Slots)
	a.turned = newHistory(config.TurnedAwayRequests, config.Slots+config.AnsweredRequests)
	if config.Camera != nil {
		a.head = make([]byte, cameras.HeadBytes)
		a.pictureBytes = uint32(config.Camera.PictureBytes())
	}
	words := (config.maxCount() + 63) / 64
	bitmaps := make([]uint64, config.Slots*words)
	for i := range a.slots {
		r := &a.slots[i]
		r.present = bitmaps[i*words:][:words:words]
		r.fragments = table.Fragments(uint32(i))
		if len(r.fragments) < config.MaxFragments {
			panic("aggregate: the table has fewer descriptors than Config.MaxFragments")
		}
		r.fragments = r.fragments[:config.MaxFragments]
	}
	return a
}

// Add takes a batch of datagrams and ownership of their spans. It returns each span through
// some Events.Release, exactly once.
func (a *Aggregator) Add(now int64, batch []ingest.Datagram, events *Events) {
	a.tick(now)
	for i := range batch {
		if a.config.Camera != nil {
			a.addPacket(&batch[i], events)
		} else {
			a.add(&batch[i], events)
		}
	}
	if a.common.several {
		a.makeRoom(events)
	}
}

// tick advances the clock and drops what has been remembered for long enough.
func (a *Aggregator) tick(now int64) {
	a.now = max(a.now, now)
	for a.ended.expired(a.now) {
		a.forget(&a.ended)
	}
	for a.turned.expired(a.now) {
		a.forget(&a.turned)
	}
	if a.ended.n == 0 && a.turned.n == 0 {
		a.answers.next = 0 // no record has a payload: use the memory again that was used before
	}
}

// forget drops the oldest record.
func (a *Aggregator) forget(m *history) {
	if hash, ref, void := m.pop(); !void {
		a.requests.remove(hash, ref)
	}
}

func (a *Aggregator) add(d *ingest.Datagram, events *Events) {
	a.stats.Datagrams++
	var scratch [wire.HeaderSize]byte
	var h wire.Header
	b := a.bytes(d, 0, scratch[:])
	err := h.Read(b, d.Length())
	if err != nil && d.Shed {
		err = h.ReadCut(b)
	}
	if err == nil && h.Type != wire.TypeData {
		if err = a.greet(d, events); err == nil {
			return
		}
	}
	if err != nil {
		a.stats.Malformed[wire.ReasonOf(err)]++
		events.release(d)
		return
	}
	if r := &a.slots[a.last]; r.id == h.RequestID && r.live() && r.from == d.From {
		a.receiveFragment(a.last, d, &h, events)
		return
	}
	hash := a.hash.request(d.From, h.RequestID)
	ref, ok := a.find(hash, d.From, h.RequestID)
	switch {
	case !ok:
		a.begin(requestKey{d.From, h.RequestID, hash}, d, &h, events)
	case int(ref) < len(a.slots):
		a.last = ref
		a.receiveFragment(ref, d, &h, events)
	default:
		a.late(ref, d, &h, events)
	}
}

// bytes returns up to len(scratch) bytes of a datagram from an offset, fewer if the datagram
// ends before. If they lie in one span, the result is in the slab. Otherwise they are copied
// to scratch.
func (a *Aggregator) bytes(d *ingest.Datagram, from int, scratch []byte) []byte {
	to, first := min(from+len(scratch), d.Length()), int(d.First.Length)
	switch {
	case from >= to:
		return nil
	case to <= first:
		return a.memory[d.First.Offset+uint64(from) : d.First.Offset+uint64(to)]
	case from >= first:
		return a.memory[d.Rest.Offset+uint64(from-first) : d.Rest.Offset+uint64(to-first)]
	}
	n := copy(scratch, a.memory[d.First.Offset+uint64(from):d.First.Offset+uint64(first)])
	n += copy(scratch[n:], a.memory[d.Rest.Offset:d.Rest.Offset+uint64(to-first)])
	return scratch[:n]
}

// find looks up a request. It returns a slot, or Slots and above for a request that has
// ended.
func (a *Aggregator) find(hash uint32, from netip.AddrPort, id uint32) (ref uint32, ok bool) {
	for ref, at, ok := a.requests.find(hash, hash); ok; ref, at, ok = a.requests.find(hash, at+1) {
		if int(ref) < len(a.slots) {
			if r := &a.slots[ref]; r.id == id && r.from == from {
				return ref, true
			}
		} else if r := a.remembered(ref); r.id == id && r.from == from {
			return ref, true
		}
	}
	return 0, false
}

// begin gives a new request a slot, or turns it away.
func (a *Aggregator) begin(k requestKey, d *ingest.Datagram, h *wire.Header, events *Events) {
	if missing := a.missingOf(d, h); !missing.Empty() {
		// The client has a part of the answer, so the request has run. It is forgotten, and must not run again.
		a.drop(dropDuplicate, d, events)
		return
	}
	proved := a.proves(d, h)
	if !proved && a.common.needsToken() {
		a.needToken(d, h, events)
		return
	}
	if !d.Shed {
		if to, ok := a.movedTo(d, h, proved); ok {
			a.drop(dropBusy, d, events)
			a.turnAway(k, d, h, wire.Result{Status: wire.StatusMoved, Moved: to, Lifetime: movedFor}, true, events)
			return
		}
	}
	client := a.senders.touch(proved, a.hash.client(d.From), d.From, a.now)
	size := wire.FragmentSize(h)
	if !a.takes(d, h) || int(h.Count) > a.config.maxCount() || h.Count > 1 && int(size) < a.config.MinFragmentBytes {
		a.stats.Refused++
		a.drop(dropForeign, d, events)
		refused := wire.Result{Status: wire.StatusRefused, Credit: a.credit(client), PictureBytes: uint32(a.config.RequestBytes)}
		a.turnAway(k, d, h, refused, false, events)
		return
	}
	if d.Shed {
		a.stats.Busy++
		a.stats.Shed++
		a.drop(dropShed, d, events)
		a.turnAway(k, d, h, wire.Result{Status: wire.StatusBusy, Credit: a.credit(client)}, false, events)
		return
	}
	slot, ok := a.takeSlot(a.party(client), events)
	if !ok {
		a.stats.Busy++
		a.drop(dropBusy, d, events)
		a.turnAway(k, d, h, wire.Result{Status: wire.StatusBusy}, !proved, events)
		return
	}
	r := a.occupy(slot, k, d, client)
	if proved {
		events.Begun++
	}
	r.total, r.count, r.size = h.Total, h.Count, size
	clear(r.present[:(int(h.Count)+63)/64])
	a.receiveFragment(slot, d, h, events)
}

// occupy begins a request in a slot. The caller sets what the datagram says of the request.
func (a *Aggregator) occupy(slot uint32, k requestKey, d *ingest.Datagram, client clientRef) *request {
	r := &a.slots[slot]
	r.requestKey, r.state, r.client = k, stateGathering, client
	r.total, r.got, r.used = uint32(a.config.RequestBytes), 0, 0
	r.replies, r.extension = replyLimit{headers: headerBytes(d.From)}, extension{}
	r.first, r.progress, r.nacks = a.now, a.now, nacks{mark: a.now, last: a.now}
	if r.arrived = a.now; d.Arrived != 0 {
		r.arrived = min(d.Arrived, a.now)
	}
	a.requests.insert(k.hash, slot)
	a.gathering.begin(slot)
	a.began(client)
	a.stats.Begun++
	a.last = slot
	return r
}

// takeSlot takes a slot for a new request, if necessary by evicting a request of a party
// above its share. ok is false if the party gets none.
func (a *Aggregator) takeSlot(p party, events *Events) (slot uint32, ok bool) {
	if a.draining {
		return 0, false
	}
	if a.common.mayTake(p) {
		if slot, ok = a.common.take(); ok {
			a.taken++
			return slot, true
		}
	}
	// Another aggregator may take first what this one evicts.
	for a.evictAbove(p, events) {
		if slot, ok = a.common.take(); ok {
			a.taken++
			return slot, true
		}
	}
	if a.common.several && p.group != nil && int(p.group.held.Load()) < a.common.supply().equal {
		a.common.wantedAt.Store(a.now)
	}
	return 0, false
}

// began counts the slot of a request for its client and its party.
func (a *Aggregator) began(client clientRef) {
	a.senders.began(client)
	p := a.party(client)
	if p.group == nil {
		a.common.class.Add(1)
		return
	}
	if p.held == 1 {
		p.group.holders.Add(1)
	}
	if p.group.held.Add(1) == 1 {
		a.common.holders.Add(1)
	}
}

// uncount reverses began.
func (a *Aggregator) uncount(client clientRef) {
	switch p := a.party(client); {
	case p.group == nil:
		a.common.class.Add(-1)
	default:
		if p.held == 1 {
			p.group.holders.Add(-1)
		}
		if p.group.held.Add(-1) == 0 {
			a.common.holders.Add(-1)
		}
	}
	a.senders.ended(client, a.now)
}

// prove moves a request whose client has proved its address out of the class without proof.
func (a *Aggregator) prove(r *request) {
	a.uncount(r.client)
	r.client = a.senders.touch(true, a.hash.client(r.from), r.from, a.now)
	a.began(r.client)
}

// receiveFragment adds a fragment to a live request.
func (a *Aggregator) receiveFragment(slot uint32, d *ingest.Datagram, h *wire.Header, events *Events) {
	r := &a.slots[slot]
	if !r.client.proved {
		r.replies.budget.receive(r.replies.headers, d.Length())
		if a.proves(d, h) {
			a.prove(r)
			events.Begun++
		}
	}
	switch {
	case !a.agrees(r, h):
		reason := dropContradictory
		if a.overlaps(r, h) {
			reason = dropOverlapping
		}
		a.drop(reason, d, events)
		return
	case d.Shed:
		// The kernel sheds the request's other fragments, so the missing ones will not come.
		if r.state == stateGathering {
			if h.Flags&wire.FlagExtension != 0 && !r.extension.received {
				a.extend(r, d)
			}
			a.evict(slot, true, events)
		}
		a.drop(dropShed, d, events)
		return
	case r.present[h.Index/64]&(1<<(h.Index%64)) != 0:
		a.drop(dropDuplicate, d, events)
		a.asked(slot, h, events)
		return
	case !a.takes(d, h):
		a.extend(r, d)
		a.drop(dropForeign, d, events)
		a.refuse(slot, events)
		return
	}
	described := describe(r.fragments[r.used:], d, uint32(wire.PayloadOffset(h)), uint32(h.Length), h.Offset)
	if described == 0 {
		a.drop(dropFragmented, d, events)
		a.evict(slot, false, events)
		return
	}
	r.used += uint32(described)
	a.heldBytes += uint64(d.Length())
	r.spans = hold(hold(r.spans, d.First), d.Rest)
	r.present[h.Index/64] |= 1 << (h.Index % 64)
	r.got++
	a.stats.Fragments++
	if h.Flags&wire.FlagExtension != 0 && h.Index == 0 && !r.extension.received {
		a.extend(r, d)
	}
	if r.got == uint32(r.count) {
		if a.config.Streams && !r.client.proved {
			a.evict(slot, false, events)
			return
		}
		a.complete(slot, events)
		return
	}
	a.advance(slot)
	a.asked(slot, h, events)
}

// advance notes a new fragment of a gathering request. The limit is for NACKs without effect: it resets the count.
func (a *Aggregator) advance(slot uint32) {
	if r := &a.slots[slot]; r.progress != a.now {
		a.gathering.move(slot, r.nacks.sent, 0)
		r.progress, r.nacks.mark, r.nacks.sent = a.now, a.now, 0
	}
}

// takes reports whether the function takes a request of this size. Only fragment 0 says so if it takes pictures of
// other formats and shapes.
func (a *Aggregator) takes(d *ingest.Datagram, h *wire.Header) bool {
	switch {
	case h.Index != 0 && a.config.LargestPicture > 0:
		return int(h.Total) <= max(a.config.RequestBytes, a.config.LargestPicture)
	case h.Index == 0 && h.Flags&wire.FlagExtension != 0:
		if e, _ := a.extension(d); e.Picture.Format != 0 {
			return e.Picture.Check(int(h.Total), a.config.LargestPicture) == nil
		}
	}
	total := int(h.Total)
	return total == a.config.RequestBytes || a.config.Takes != nil && total < a.config.RequestBytes && a.config.Takes(total)
}

// refuse ends a gathering request that fragment 0 shows to be of another size.
func (a *Aggregator) refuse(slot uint32, events *Events) {
	r := &a.slots[slot]
	a.stats.Refused++
	a.stats.Evicted++
	a.vacate(slot, events)
	result := wire.Result{
		Status: wire.StatusRefused, Credit: a.credit(r.client), Aggregate: time.Duration(a.now - r.first), SentAt: r.extension.sentAt,
		PictureBytes: uint32(a.config.RequestBytes),
	}
	a.tell(&a.turned, record{requestKey: r.requestKey, result: result}, events)
}

// agrees reports whether a fragment's total, count and fragment size are those of its request. The
// header is consistent in itself. Therefore the offset gives the fragment size for the last
// fragment, and the length gives it for all others.
func (a *Aggregator) agrees(r *request, h *wire.Header) bool {
	if h.Count != r.count || h.Total != r.total {
		return false
	}
	if h.Index == h.Count-1 {
		return h.Offset == uint32(h.Index)*r.size
	}
	return uint32(h.Length) == r.size
}

// overlaps reports whether a fragment that contradicts its request covers bytes that were
// received before.
func (a *Aggregator) overlaps(r *request, h *wire.Header) bool {
	if r.state == stateComplete {
		return h.Offset < r.total
	}
	first := h.Offset / r.size
	last := uint32((uint64(h.Offset) + uint64(h.Length) - 1) / uint64(r.size))
	for i := first; i <= last && i < uint32(r.count); i++ {
		if r.present[i/64]&(1<<(i%64)) != 0 {
			return true
		}
	}
	return false
}

// describe writes the descriptors of length bytes of a datagram, from an offset on, that belong at
// place: one, or two if they lie in both of its spans. It returns how many, or 0 if to has no room
// for them.
func describe(to []shm.Fragment, d *ingest.Datagram, from, length, place uint32) (n int) {
	first := d.First.Length
	switch {
	case len(to) == 0:
		return 0
	case from+length <= first:
		to[0] = shm.Fragment{Offset: d.First.Offset + uint64(from), Place: place, Length: uint16(length)}
		return 1
	case from >= first:
		to[0] = shm.Fragment{Offset: d.Rest.Offset + uint64(from-first), Place: place, Length: uint16(length)}
		return 1
	case len(to) == 1:
		return 0
	}
	head := first - from
	to[0] = shm.Fragment{Offset: d.First.Offset + uint64(from), Place: place, Length: uint16(head)}
	to[1] = shm.Fragment{Offset: d.Rest.Offset, Place: place + head, Length: uint16(length - head)}
	return 2
}

// extend reads the client's extension of its request.
func (a *Aggregator) extend(r *request, d *ingest.Datagram) {
	if e, ok := a.extension(d); ok {
		r.extension = extension{received: true, priority: e.Priority, lowest: e.LowestScore, stream: e.Stream, picture: e.Picture, sentAt: e.SentAt, wanted: int64(e.Deadline)}
	}
}

func (a *Aggregator) extension(d *ingest.Datagram) (wire.Extension, bool) {
	var scratch [wire.BlockSize]byte
	e, err := wire.DecodeExtension(a.bytes(d, wire.HeaderSize, scratch[:]))
	return e, err == nil
}

// proves reports whether a fragment proves its source address, or needs no proof.
func (a *Aggregator) proves(d *ingest.Datagram, h *wire.Header) bool {
	if local(d.From) && !a.common.needsToken() {
		return true
	}
	if h.Index != 0 || h.Flags&wire.FlagExtension == 0 {
		return false
	}
	e, ok := a.extension(d)
	return ok && a.common.proves(a.now, d.From, e.Cookie)
}

// complete records that a request is complete, and fills in its entry of the table.
func (a *Aggregator) complete(slot uint32, events *Events) {
	r := &a.slots[slot]
	a.gathering.end(slot, r.nacks.sent)
	r.state, r.complete = stateComplete, a.now
	a.stats.Complete++
	address, client := a.source(r.client)
	entry := shm.Request{
		ID: r.id, Fragments: r.used, Bytes: r.total, Priority: r.extension.priority, LowestScore: r.extension.lowest,
		FirstFragment: r.arrived, Complete: r.complete, Deadline: a.deadline(r),
		Address: address, Client: client, Stream: a.hash.stream(r.from, r.extension.stream),
	}
	entry.SetPicture(r.extension.picture)
	a.table.SetRequest(slot, entry)
	events.Complete = append(events.Complete, slot)
}

// source returns the hashes by which the table names a client. All ports of an address have the address in common, and
// so have all clients without proof of theirs.
func (a *Aggregator) source(ref clientRef) (address, client uint32) {
	if p := a.party(ref); p.group != nil {
		address = max(p.group.hash, 1)
	}
	return address, a.senders.client(ref).hash
}

// maxDeadline bounds how long a request may wait: it holds a slot.
const maxDeadline = time.Minute

// deadline returns when an answer to r is no longer useful.
func (a *Aggregator) deadline(r *request) int64 {
	useful := int64(a.config.SLO)
	if r.extension.wanted > 0 {
		useful = min(r.extension.wanted, int64(max(a.config.SLO, maxDeadline)))
	}
	return r.arrived + int64(Within(time.Duration(useful), a.config.Transit))
}

// asked answers a client that asks about an incomplete request.
func (a *Aggregator) asked(slot uint32, h *wire.Header, events *Events) {
	r := &a.slots[slot]
	if asks(h) && r.state == stateGathering && a.now-r.nacks.last >= int64(againAfter) {
		a.nack(slot, events)
	}
}

// asks reports whether a fragment asks for an answer: fragment 0, retransmitted.
func asks(h *wire.Header) bool { return h.Index == 0 && h.Flags&wire.FlagRetransmitted != 0 }

// late drops a fragment of a request that has ended, and repeats the answer if the fragment asks
// for it.
func (a *Aggregator) late(ref uint32, d *ingest.Datagram, h *wire.Header, events *Events) {
	r := a.remembered(ref)
	if r.retry && h.Index == 0 && !d.Shed && a.proves(d, h) {
		// There may be a slot for it now that its client has proved its address, or the client that was moved stays.
		a.requests.remove(r.hash, ref)
		r.void = true
		a.begin(r.requestKey, d, h, events)
		return
	}
	if a.common.needsToken() && asks(h) && !a.proves(d, h) {
		a.needToken(d, h, events)
		return
	}
	if d.Shed {
		a.drop(dropShed, d, events)
	} else {
		a.drop(dropAfter(r.result.Status), d, events)
	}
	headers := headerBytes(r.from)
	r.budget.receive(headers, d.Length())
	if !asks(h) {
		return
	}
	proved := a.proves(d, h)
	missing := a.missingOf(d, h)
	if a.now-r.answered < int64(againAfter) && !(r.withheld && proved) && missing.Empty() || len(events.payloads) >= maxAgainBytes {
		return
	}
	payload, ok := a.answers.get(r.payload)
	if !ok && !r.withheld {
		a.stats.Forgotten++
		return
	}
	answer := Answer{To: r.from, RequestID: r.id, Result: r.result, Wanted: missing}
	bytes := answerBytes(headers, len(payload))
	if !missing.Empty() {
		from, to := missing.Span(wire.Fragments(len(payload), ReplyFragmentBytes))
		answer.From, answer.Total = from*ReplyFragmentBytes, len(payload)
		payload = payload[min(answer.From, len(payload)):min(to*ReplyFragmentBytes, len(payload))]
		bytes = int64(to-from)*int64(headers+wire.HeaderSize+wire.BlockSize) + int64(len(payload))
	}
	answer.Payload = events.keep(payload)
	if !ok { // this answer was never sent: do not let its client wait for it
		a.stats.Forgotten++
		answer.Status, answer.Kind, answer.Wanted = wire.StatusFailed, wire.KindNone, wire.Missing{}
	}
	switch {
	case proved || r.budget.spend(bytes, 0):
		r.withheld = false
		a.stats.Again++
		if answer.Status != wire.StatusBusy || r.shed {
			answer.Credit = a.Credit(r.from)
		}
	case r.budget.spend(answerBytes(headers, 0), 0):
		a.stats.Withheld++
		answer.Payload, answer.Wanted, answer.Result = nil, wire.Missing{}, withheld(&answer.Result)
	default:
		return
	}
	r.answered = a.now
	a.inform(&answer.Result, r.from)
	events.Again = append(events.Again, answer)
	if !missing.Empty() && r.expires-a.now < int64(a.config.AnsweredFor)/2 && ref < uint32(len(a.slots)+len(a.ended.records)) {
		// A large answer over a bad network takes longer than AnsweredFor.
		again := *r
		a.requests.remove(r.hash, ref)
		r.void = true
		a.remember(&a.ended, again)
	}
}

// missingOf returns which fragments of an answer a question asks for; none for all of them.
func (a *Aggregator) missingOf(d *ingest.Datagram, h *wire.Header) wire.Missing {
	if h.Index != 0 || h.Flags&wire.FlagExtension == 0 {
		return wire.Missing{}
	}
	e, _ := a.extension(d)
	return e.Missing
}

// withheld returns the busy block that replaces an answer beyond the budget.
func withheld(r *wire.Result) wire.Result {
	return wire.Result{Status: wire.StatusBusy, ModelVersion: r.ModelVersion, SentAt: r.SentAt}
}

func (a *Aggregator) remembered(ref uint32) *record {
	if at := int(ref) - len(a.slots); at < len(a.ended.records) {
		return &a.ended.records[at]
	}
	return &a.turned.records[int(ref)-len(a.slots)-len(a.ended.records)]
}

// drop counts a datagram that is of no use and releases its memory.
func (a *Aggregator) drop(reason Drop, d *ingest.Datagram, events *Events) {
	a.stats.Dropped[reason]++
	events.release(d)
}

// turnAway tells a client once that its request gets no slot, and remembers it.
func (a *Aggregator) turnAway(k requestKey, d *ingest.Datagram, h *wire.Header, result wire.Result, retry bool, events *Events) {
	if h.Flags&wire.FlagExtension != 0 && h.Index == 0 {
		if e, ok := a.extension(d); ok {
			result.SentAt = e.SentAt
		}
	}
	r := record{requestKey: k, result: result, shed: d.Shed && result.Status == wire.StatusBusy, retry: retry}
	a.tell(&a.turned, r, events)
}

// tell sends a client the end of its request, and remembers it. The budget covers the block:
// the smallest datagram pays for one, and NACKs leave room for one. The record starts without
// a budget: each datagram that asks again pays for the block that may answer it.
func (a *Aggregator) tell(m *history, r record, events *Events) {
	to := a.answersTo(r.from)
	a.inform(&r.result, to)
	events.Reported = append(events.Reported, Answer{To: to, RequestID: r.id, Result: r.result})
	a.remember(m, r)
}

// inform fills in what each answer says of the function and for the client.
func (a *Aggregator) inform(result *wire.Result, to netip.AddrPort) {
	if !a.common.needsToken() {
		result.Cookie = a.common.cookies.at(a.now, to)
	}
	result.Objective, result.LargestPicture = a.config.SLO, uint32(a.config.LargestPicture)
}

// remember stores a request that has ended. If there is no room, it replaces the oldest.
func (a *Aggregator) remember(m *history, r record) {
	life := a.config.AnsweredFor
	if m == &a.turned {
		life = a.config.TurnedAwayFor
	}
	r.answered, r.expires = a.now, a.now+int64(life)
	if m.full() {
		a.forget(m)
	}
	a.requests.insert(r.hash, m.push(r))
}

// nackFor returns how long a request may be quiet before its next NACK, after k NACKs without
// effect.
func (a *Aggregator) nackFor(k int) int64 { return int64(a.config.NACKAfter) << k }

// SetObjective changes Config.SLO and Config.Deadline, and NACKAfter with them. Requests that
// have begun and are incomplete get the new values, too.
func (a *Aggregator) SetObjective(slo, deadline time.Duration) {
	defaults := Config{SLO: slo, Deadline: deadline}.withDefaults()
	a.config.SLO, a.config.Deadline, a.config.NACKAfter = slo, deadline, defaults.NACKAfter
}

// NextDeadline returns when Expire has something to do, 0 for never. One of several
// aggregators must also drop old clients, because they count for the others' fair shares.
func (a *Aggregator) NextDeadline() int64 {
	next := int64(0)
	if slot := a.gathering.oldest(); slot != none {
		next = a.slots[slot].first + int64(a.config.Deadline)
	}
	for k := range a.config.MaxNACKs {
		if slot := a.gathering.quietest(k); slot != none {
			next = min(next, a.slots[slot].nacks.mark+a.nackFor(k))
		}
	}
	if a.common.several {
		if at := a.senders.nextExpiry(); at != 0 && (next == 0 || at < next) {
			next = at
		}
	}
	return next
}

// Expire ends the requests whose deadline has passed without all their fragments, and sends
// NACKs for quiet ones.
func (a *Aggregator) Expire(now int64, events *Events) {
	a.tick(now)
	for slot := a.gathering.oldest(); slot != none && a.slots[slot].first+int64(a.config.Deadline) <= a.now; slot = a.gathering.oldest() {
		r := &a.slots[slot]
		result := wire.Result{
			Status: wire.StatusIncomplete, Missing: a.missing(r), Aggregate: time.Duration(a.now - r.first), SentAt: r.extension.sentAt,
		}
		a.stats.Incomplete++
		a.vacate(slot, events)
		result.Credit = a.credit(r.client)
		a.tell(&a.ended, record{requestKey: r.requestKey, result: result}, events)
	}
	for k := a.config.MaxNACKs - 1; k >= 0; k-- {
		for slot := a.gathering.quietest(k); slot != none && a.slots[slot].nacks.mark+a.nackFor(k) <= a.now; slot = a.gathering.quietest(k) {
			a.nack(slot, events)
		}
	}
	if a.common.several {
		a.senders.expire(a.now)
		a.makeRoom(events)
	}
}

// nack sends a client a NACK for its missing fragments.
func (a *Aggregator) nack(slot uint32, events *Events) {
	r := &a.slots[slot]
	before := r.nacks.sent
	r.nacks = nacks{sent: uint8(min(int(before)+1, a.config.MaxNACKs)), mark: a.now, last: a.now}
	a.gathering.move(slot, before, r.nacks.sent)
	if !r.client.proved && !r.replies.budget.spend(nackBytes(r.replies.headers, r.count), answerBytes(r.replies.headers, 0)) {
		return // the client will ask, and its datagram pays for the next one
	}
	a.stats.NACKs++
	if a.config.Camera != nil {
		a.resend(r, events)
		return
	}
	events.sendNACK(r)
}

// EvictOldest ends an incomplete request with status busy, to free its packet memory. It
// picks the oldest request of the party that holds the most slots. It returns false if none
// is gathering.
func (a *Aggregator) EvictOldest(now int64, events *Events) bool {
	a.tick(now)
	slot := a.richest()
	if slot == none {
		return false
	}
	a.evict(slot, false, events)
	return true
}

// evict ends a gathering request with status busy: for lack of room, or because the rest of
// it is shed.
func (a *Aggregator) evict(slot uint32, shed bool, events *Events) {
	r := &a.slots[slot]
	a.stats.Evicted++
	a.vacate(slot, events)
	result := wire.Result{Status: wire.StatusBusy, Aggregate: time.Duration(a.now - r.first), SentAt: r.extension.sentAt}
	if shed {
		result.Credit = a.credit(r.client)
	}
	a.tell(&a.turned, record{requestKey: r.requestKey, result: result, shed: shed, retry: !shed && !r.client.proved}, events)
}

// vacate frees the slot of a live request, and its spans. The slot's other fields stay
// readable until it is used again.
func (a *Aggregator) vacate(slot uint32, events *Events) {
	r := &a.slots[slot]
	if r.state == stateGathering {
		a.gathering.end(slot, r.nacks.sent)
	}
	if r.live() {
		a.requests.remove(r.hash, slot)
	}
	a.uncount(r.client)
	for _, s := range r.spans {
		a.heldBytes -= uint64(s.Length)
		events.Release = hold(events.Release, s)
	}
	r.spans = r.spans[:0]
	r.state = stateFree
	a.taken--
	a.common.give(slot)
}

// Origin is the source of a live request, and its times.
type Origin struct {
	// From is the client, or the camera.
	From netip.AddrPort
	// To gets the answer: the client, or Config.AnswersTo for a camera's picture.
	To        netip.AddrPort
	RequestID uint32
	// FirstFragment is when the first fragment reached the machine, Received when it was
	// received there, Complete when the last one was. All are in nanoseconds of
	// shm.Now's clock.
	FirstFragment, Received, Complete int64
	// SentAt is the client's own time, which the answer echoes.
	SentAt uint64
}

// Origin describes a complete request, from when its slot was in Events.Complete until End. ok
// is false for any other slot.
func (a *Aggregator) Origin(slot uint32) (o Origin, ok bool) {
	if int(slot) >= len(a.slots) || a.slots[slot].state != stateComplete {
		return Origin{}, false
	}
	r := &a.slots[slot]
	return Origin{From: r.from, To: a.answersTo(r.from), RequestID: r.id, FirstFragment: r.arrived, Received: r.first, Complete: r.complete, SentAt: r.extension.sentAt}, true
}

// End ends a complete request with its answer. Its spans go to events.Release, and its slot
// is free. The answer is stored, with a copy of the payload, so that it can be repeated. End
// fills in result.Credit, result.SentAt, result.Cookie and result.Objective; the caller then
// sends the answer. If the client must prove its address first, result becomes the busy block
// to send, and the payload must not be sent. End returns false and does nothing if the slot
// holds no complete request: the request has ended already.
func (a *Aggregator) End(now int64, slot uint32, result *wire.Result, payload []byte, events *Events) bool {
	if int(slot) >= len(a.slots) || a.slots[slot].state != stateComplete {
		return false
	}
	a.tick(now)
	a.vacate(slot, events)
	a.conclude(&a.slots[slot], result, payload)
	return true
}

// AnswerEarly ends a complete request like End, without a payload, and keeps its slot until
// Free: a process may still read its spans, or write its result.
func (a *Aggregator) AnswerEarly(now int64, slot uint32, result *wire.Result) bool {
	if int(slot) >= len(a.slots) || a.slots[slot].state != stateComplete {
		return false
	}
	a.tick(now)
	r := &a.slots[slot]
	a.requests.remove(r.hash, slot)
	r.state = stateAnswered
	a.conclude(r, result, nil)
	return true
}

// Free frees a slot whose request AnswerEarly has ended. Its spans go to events.Release. It
// returns false and does nothing for any other slot.
func (a *Aggregator) Free(now int64, slot uint32, events *Events) bool {
	if int(slot) >= len(a.slots) || a.slots[slot].state != stateAnswered {
		return false
	}
	a.tick(now)
	a.vacate(slot, events)
	return true
}

// conclude fills in a request's answer and remembers it.
func (a *Aggregator) conclude(r *request, result *wire.Result, payload []byte) {
	result.SentAt = r.extension.sentAt
	if result.Status == wire.StatusOK {
		a.common.open.answered(a.now, a.config.SLO)
	}
	m := &a.ended
	if result.Status == wire.StatusBusy {
		m, result.Credit = &a.turned, 0
	} else {
		result.Credit = a.credit(r.client)
	}
	end := record{requestKey: r.requestKey, budget: r.replies.budget, result: *result, payload: a.answers.put(payload)}
	if !r.client.proved && !end.budget.spend(answerBytes(r.replies.headers, len(payload)), 0) {
		a.stats.Withheld++
		end.withheld = true
		end.budget.spend(answerBytes(r.replies.headers, 0), 0)
		*result = withheld(result)
	}
	a.inform(result, a.answersTo(r.from))
	a.remember(m, end)
}

// Drain turns new requests away from now on; those that have begun continue.
func (a *Aggregator) Drain() { a.draining = true }

// Resume ends a Drain.
func (a *Aggregator) Resume() { a.draining = false }

// Credit is how many more requests a client may have in flight now. It is an equal share of
// the slots that clients can take, at least one, less what the client has in flight. It is never more than the
// client would get now.
func (a *Aggregator) Credit(client netip.AddrPort) uint16 {
	hash := a.hash.client(client)
	if ref, ok := a.senders.find(hash, client, a.now); ok {
		return a.credit(ref)
	}
	// A new client gets its own group when it proves its address.
	slots := a.common.supply()
	slots = slotsOf(slots.total, slots.free, slots.parties+1, slots.holders)
	return a.grant(slots.room(0, slots.share()))
}

func (a *Aggregator) credit(client clientRef) uint16 {
	c := a.common
	a.senders.table(client.proved).expire(a.now)
	p := a.party(client)
	if p.group == nil {
		class := c.classSupply()
		fair := max(class.total/max(int(c.strangers.Load()), 1), 1) - p.held
		return a.grant(class.room(int(c.class.Load()), fair))
	}
	slots := c.supply()
	fair := p.group.supply(slots.share()).share() - p.held
	fair = p.group.supply(slots.limit()).room(p.held, fair)
	return a.grant(slots.room(int(p.group.held.Load()), fair))
}

// grant converts a credit to the form in an answer.
func (a *Aggregator) grant(credit int) uint16 {
	if a.draining {
		return 0
	}
	return uint16(min(credit, 1<<16-1))
}
