// Package replay plays a capture file (pcap or pcapng) as if its UDP datagrams
// came over the network now: the same traffic for a test, a benchmark or a look
// at a customer's trouble, each time.
//
//  1. read    the next frame of the file
//  2. decode  Ethernet (or Linux cooked, loopback, bare IP), VLAN tags, IPv4 or
//     IPv6, UDP; other frames are skipped and counted
//  3. wait    until its recorded time, at the speed asked for
//  4. put     its payload into the slab; where there is no room it waits, nothing
//     is lost
package replay

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"github.com/penstock/penstock/manager/ingest"
	"github.com/penstock/penstock/manager/ingest/slab"
	"github.com/penstock/penstock/shm"
)

// defaultSlabBytes is the slab's size if Options give none.
const defaultSlabBytes = 64 << 20

// noRoomPause is how long Receive lets others release when the slab is full.
const noRoomPause = time.Millisecond

// Options of a replay.
type Options struct {
	// Path is the capture file.
	Path string
	// Port plays only what was sent to this UDP port; 0 plays all.
	Port uint16
	// Speed is how many seconds of the capture pass in one of ours; 0 is as fast
	// as the caller takes it.
	Speed float64
	// SlabBytes is the size of the memory for datagrams.
	SlabBytes int
	// HugePages puts the slab on huge pages where there are some.
	HugePages bool
	// Reply is given what is sent, or nil to discard it. It may not keep the
	// packets, and is called by the goroutine that sends.
	Reply func(packets []ingest.Packet)
}

// Skipped counts frames that were not played.
type Skipped struct {
	// Foreign frames carry no UDP datagram, or one to another port. Fragments
	// are of a fragmented IP packet. Cut frames were recorded without their end.
	// Malformed ones have a header that contradicts itself.
	Foreign, Fragments, Cut, Malformed uint64
}

// Source implements ingest.Source.
type Source struct {
	options Options
	slab    *slab.Slab

	woken  chan struct{} // holds one token
	done   chan struct{} // closed by Close
	closed sync.Once

	mu      sync.Mutex // held by Receive, and by Close for closing the file
	file    *os.File
	frames  frames
	decoder *decoder
	frame   uint64 // frames read
	// next is a datagram that is read but not delivered.
	next    datagram
	hasNext bool
	// began and first are when the replay began (Now) and the capture's first
	// time.
	began int64
	first time.Time
	ended error

	datagrams, bytes, noRoom           atomic.Uint64
	foreign, fragments, cut, malformed atomic.Uint64
}

var _ ingest.Source = (*Source)(nil)

// datagram is what a frame was found to carry; payload is the reader's until it
// reads on.
type datagram struct {
	from    netip.AddrPort
	at      time.Time
	payload []byte
}

// frames is either reader of pcapgo.
type frames interface {
	ZeroCopyReadPacketData() ([]byte, gopacket.CaptureInfo, error)
}

// Open opens the capture and reads its header.
func Open(o Options) (*Source, error) {
	if o.SlabBytes == 0 {
		o.SlabBytes = defaultSlabBytes
	}
	if o.Speed < 0 {
		return nil, fmt.Errorf("replay %s: speed %v is negative", o.Path, o.Speed)
	}
	file, err := os.Open(o.Path)
	if err != nil {
		return nil, fmt.Errorf("replay: %w", err)
	}
	s := &Source{options: o, file: file, woken: make(chan struct{}, 1), done: make(chan struct{})}
	if err := s.begin(); err != nil {
		return nil, errors.Join(fmt.Errorf("replay %s: %w", o.Path, err), file.Close())
	}
	return s, nil
}

func (s *Source) begin() (err error) {
	var link layers.LinkType
	if s.frames, link, err = readHeader(s.file); err != nil {
		return err
	}
	if s.decoder, err = newDecoder(link); err != nil {
		return err
	}
	s.slab, err = slab.New("replay", s.options.SlabBytes, s.options.HugePages)
	return err
}

// ngMagic is the type of a pcapng file's first block, the same in both byte
// orders.
const ngMagic = "\n\r\r\n"

// wanted is said of a file that is something else, or nothing.
const wanted = "no capture, want pcap or pcapng"

// readHeader tells pcap from pcapng.
func readHeader(file io.Reader) (frames, layers.LinkType, error) {
	r := bufio.NewReaderSize(file, 1<<20)
	magic, err := r.Peek(len(ngMagic))
	if err != nil {
		return nil, 0, fmt.Errorf("%s: read header: %w", wanted, noEOF(err))
	}
	if string(magic) == ngMagic {
		ng, err := pcapgo.NewNgReader(r, pcapgo.NgReaderOptions{ErrorOnMismatchingLinkType: true})
		if err != nil {
			return nil, 0, fmt.Errorf("read pcapng header: %w", noEOF(err))
		}
		return ng, ng.LinkType(), nil
	}
	classic, err := pcapgo.NewReader(r)
	if err != nil {
		return nil, 0, fmt.Errorf("%s: read pcap header: %w", wanted, noEOF(err))
	}
	return classic, classic.LinkType(), nil
}

// noEOF keeps a file that ends too early from looking like one that ends well.
func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// Slab is where datagrams lie; it stays mapped after Close, until CloseSlab.
func (s *Source) Slab() shm.Memory { return s.slab }

// CloseSlab unmaps the slab, when nobody uses it any more.
func (s *Source) CloseSlab() error { return s.slab.Close() }

// Receive plays on; see ingest.Source. It returns io.EOF at the capture's end,
// and an error that names the frame where the file is broken.
func (s *Source) Receive(batch []ingest.Datagram, deadline int64) (n int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for n < len(batch) {
		if s.isClosed() {
			return n, ingest.ErrClosed
		}
		if !s.readLocked() {
			if n > 0 {
				return n, nil
			}
			return 0, s.ended
		}
		if due := s.dueLocked(); due > shm.Now() {
			if n > 0 || !s.wait(due, deadline) {
				return n, s.closedError()
			}
			continue
		}
		first, rest, ok := s.slab.Put(s.next.payload, 0)
		if !ok {
			if n > 0 {
				return n, nil
			}
			s.noRoom.Add(1)
			s.wait(shm.Now()+int64(noRoomPause), deadline)
			return 0, s.closedError()
		}
		batch[n] = ingest.Datagram{From: s.next.from, First: first, Rest: rest}
		n++
		s.hasNext = false
		s.datagrams.Add(1)
		s.bytes.Add(uint64(len(s.next.payload)))
	}
	return n, nil
}

// readLocked reads on to the next datagram; false at the end.
func (s *Source) readLocked() bool {
	for !s.hasNext && s.ended == nil {
		data, info, err := s.frames.ZeroCopyReadPacketData()
		if err != nil {
			s.ended = err
			if !errors.Is(err, io.EOF) {
				s.ended = fmt.Errorf("replay %s: frame %d: %w", s.options.Path, s.frame+1, err)
			}
			return false
		}
		s.frame++
		if s.frame == 1 {
			s.began, s.first = shm.Now(), info.Timestamp
		}
		from, to, payload, verdict := s.decoder.decode(data)
		if verdict == played && s.options.Port != 0 && to != s.options.Port {
			verdict = foreign
		}
		switch verdict {
		case played:
			s.next, s.hasNext = datagram{from: from, at: info.Timestamp, payload: payload}, true
		case foreign:
			s.foreign.Add(1)
		case fragment:
			s.fragments.Add(1)
		case cut:
			s.cut.Add(1)
		case malformed:
			s.malformed.Add(1)
		}
	}
	return s.hasNext
}

// dueLocked is when the next datagram is to be played, in nanoseconds of Now.
func (s *Source) dueLocked() int64 {
	if s.options.Speed == 0 {
		return 0
	}
	return s.began + int64(float64(s.next.at.Sub(s.first))/s.options.Speed)
}

// wait sleeps until a time. It reports false at the deadline, for Wake and for
// Close.
func (s *Source) wait(until, deadline int64) bool {
	reached := true
	if deadline != 0 && deadline < until {
		until, reached = deadline, false
	}
	timer := time.NewTimer(time.Duration(until - shm.Now()))
	defer timer.Stop()
	select {
	case <-timer.C:
		return reached
	case <-s.woken:
	case <-s.done:
	}
	return false
}

func (s *Source) isClosed() bool {
	select {
	case <-s.done:
		return true
	default:
		return false
	}
}

func (s *Source) closedError() error {
	if s.isClosed() {
		return ingest.ErrClosed
	}
	return nil
}

// Release gives spans back; see ingest.Source.
func (s *Source) Release(spans []ingest.Span) { s.slab.Release(spans) }

// Send gives the packets to Options.Reply, or discards them.
func (s *Source) Send(packets []ingest.Packet) (int, error) {
	if s.isClosed() {
		return 0, ingest.ErrClosed
	}
	if s.options.Reply != nil {
		s.options.Reply(packets)
	}
	return len(packets), nil
}

// Wake makes a blocked Receive, or the next one that would block, return early.
func (s *Source) Wake() {
	select {
	case s.woken <- struct{}{}:
	default:
	}
}

// LocalAddr is the unspecified address with Options.Port.
func (s *Source) LocalAddr() netip.AddrPort {
	return netip.AddrPortFrom(netip.IPv4Unspecified(), s.options.Port)
}

// Stats reads the counters; Truncated counts frames that were recorded without
// their end.
func (s *Source) Stats() ingest.Stats {
	return ingest.Stats{
		Datagrams: s.datagrams.Load(),
		Bytes:     s.bytes.Load(),
		Truncated: s.cut.Load(),
		NoRoom:    s.noRoom.Load(),
		HeldBytes: s.slab.HeldBytes(),
		SlabBytes: uint64(s.slab.Size()),
	}
}

// Skipped counts what was not played so far, by reason.
func (s *Source) Skipped() Skipped {
	return Skipped{
		Foreign:   s.foreign.Load(),
		Fragments: s.fragments.Load(),
		Cut:       s.cut.Load(),
		Malformed: s.malformed.Load(),
	}
}

// Close ends a blocked Receive and closes the file. The slab stays. Closing twice
// is harmless.
func (s *Source) Close() (err error) {
	s.closed.Do(func() {
		close(s.done)
		s.mu.Lock()
		defer s.mu.Unlock()
		if err = s.file.Close(); err != nil {
			err = fmt.Errorf("close replay: %w", err)
		}
	})
	return err
}
