package datapath

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/datapath/aggregate"
	"github.com/penstock/penstock/shm"
	"github.com/penstock/penstock/wire"
)

// A port copies at most one answered picture per interval, with its answer, for the gateway's
// page. The reply thread that answers it has two steps more:
//
//  1. Under the locks that it holds anyway, claim copies the descriptors and the answer: both may
//     be overwritten when the slot is used again.
//  2. When its answers are sent, copyPicture copies the picture under no lock of the data path.
//     The packets are released after that.
//
// Nothing is copied while half of the slab or more is held. Neither step allocates.

// Picture is a copy of an answered request.
type Picture struct {
	// Number rises with each copy of a port; 0 is no picture.
	Number    uint64
	From      netip.AddrPort
	RequestID uint32
	// FirstFragment and Sent are as in Times.
	FirstFragment, Sent int64
	// ModelVersion, Kind and Payload are the answer's. Payload is empty for raw outputs.
	ModelVersion uint32
	Kind         wire.Kind
	Payload      []byte
	// Pixels are the request's bytes, and Shape is what they are; the zero value is the card's picture.
	Pixels []byte
	Shape  wire.Picture
}

// pictures holds the copies of a port.
type pictures struct {
	interval int64
	next     int64       // when the next copy is due, shm.Now; guarded by Port.mu
	claimed  atomic.Bool // a reply thread owns fragments and back

	fragments []shm.Fragment
	back      *Picture

	// mu guards newest. A reply thread never waits for it.
	mu     sync.Mutex
	newest *Picture
	number atomic.Uint64 // newest.Number: a reader of it alone takes no lock, which would cost a picture
}

// maxPictureBytes is the size of the largest picture that is copied: control.MaxPictureBytes.
const maxPictureBytes = 8 << 20

// SetPictures lets the port copy a picture per interval; 0 ends that.
func (p *Port) SetPictures(interval time.Duration) {
	if interval == 0 {
		p.pictures.Store(nil)
		return
	}
	buffer := func() *Picture {
		return &Picture{Payload: make([]byte, 0, p.geometry.ResultBytes), Pixels: make([]byte, min(max(p.requestBytes, p.largestPicture), maxPictureBytes))}
	}
	p.pictures.Store(&pictures{
		interval: int64(interval), fragments: make([]shm.Fragment, 0, p.geometry.MaxFragments), back: buffer(), newest: buffer(),
	})
}

// CopiesPictures reports whether SetPictures has set an interval.
func (p *Port) CopiesPictures() bool { return p.pictures.Load() != nil }

// PictureNumber is that of the newest copy; 0 if there is none.
func (p *Port) PictureNumber() uint64 {
	c := p.pictures.Load()
	if c == nil {
		return 0
	}
	return c.number.Load()
}

// Picture returns the newest copy, which the caller owns; ok is false if there is none.
func (p *Port) Picture() (copied Picture, ok bool) {
	c := p.pictures.Load()
	if c == nil {
		return Picture{}, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	copied = *c.newest
	copied.Payload = append([]byte(nil), copied.Payload...)
	copied.Pixels = append([]byte(nil), copied.Pixels...)
	return copied, copied.Number > 0
}

// claim makes an answered request the next picture if one is due. The caller holds the mu of the
// slot's owner and Port.mu. The slot has not ended yet.
func (t *replyTurn) claim(slot uint32, now int64, origin *aggregate.Origin, result *wire.Result, payload []byte) {
	c := t.port.pictures.Load()
	if c == nil || now < c.next || result.Status != wire.StatusOK {
		return
	}
	request := t.port.table.Request(slot)
	if int(request.Bytes) > cap(c.back.Pixels) || !c.claimed.CompareAndSwap(false, true) {
		return
	}
	c.next = now + c.interval
	c.fragments = append(c.fragments[:0], t.port.table.Fragments(slot)[:request.Fragments]...)
	b := c.back
	b.Shape, b.Pixels = request.Picture(), b.Pixels[:request.Bytes]
	b.From, b.RequestID, b.FirstFragment = origin.From, origin.RequestID, origin.FirstFragment
	b.ModelVersion, b.Kind, b.Payload = result.ModelVersion, result.Kind, b.Payload[:0]
	if result.Kind != wire.KindRaw && result.Kind != wire.KindTensors {
		b.Payload = append(b.Payload, payload...)
	}
	t.picture = c
}

// copyPicture copies the picture that the thread has claimed. Its packets are still held.
func (t *replyTurn) copyPicture(sent int64) {
	c := t.picture
	if c == nil {
		return
	}
	t.picture = nil
	defer c.claimed.Store(false)
	if s := t.port.sources.stats(); 2*s.HeldBytes >= s.SlabBytes {
		return
	}

	memory := t.port.Slab().Bytes()
	for _, f := range c.fragments {
		copy(c.back.Pixels[f.Place:], memory[f.Offset:f.Offset+uint64(f.Length)])
	}
	if !c.mu.TryLock() {
		return // the newest one is being read; the next one is due soon
	}
	defer c.mu.Unlock()
	c.back.Sent, c.back.Number = sent, t.port.pictureNumber.Add(1)
	c.back, c.newest = c.newest, c.back
	c.number.Store(c.newest.Number)
}
