// Package replay plays a capture file (pcap or pcapng) as if its UDP datagrams
// arrived from the network now. A test, a benchmark or the analysis of a
// customer's problem gets the same traffic each time.
//
//  1. read    the next frame of the file
//  2. decode  Ethernet (or Linux cooked, loopback, bare IP), VLAN tags, IPv4 or
//     IPv6, UDP; other frames are skipped and counted
//  3. wait    until its recorded time, at the configured speed
//  4. put     its payload into the slab; if there is no room, Receive waits, and
//     nothing is lost
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

	"github.com/penstock/penstock/datapath/ingest"
	"github.com/penstock/penstock/datapath/slab"
	"github.com/penstock/penstock/shm"
)

// defaultSlabBytes is the slab's size if Options give none.
const defaultSlabBytes = 64 << 20

// noRoomPause is how long Receive waits for spans to be released when the slab
// is full.
const noRoomPause = time.Millisecond

// Options of a replay.
type Options struct {
	// Path is the capture file.
	Path string
	// Port plays only datagrams that were sent to this UDP port; 0 plays all.
	Port uint16
	// Speed is how many recorded seconds pass per real second. 0 plays as fast
	// as the caller receives.
	Speed float64
	// SlabBytes is the size of the memory for datagrams.
	SlabBytes int
	// HugePages puts the slab on huge pages if enough are free.
	HugePages bool
	// Reply receives the packets that Send would send; nil discards them. It
	// must not keep the packets. The goroutine that calls Send calls it.
	Reply func(packets []ingest.Packet)
}

// Skipped counts frames that were not played, by reason.
type Skipped struct {
	// Foreign frames carry no UDP datagram, or one to another port. Fragments
	// belong to a fragmented IP packet. Cut frames were recorded without their
	// end. Malformed frames have a header that contradicts itself.
	Foreign, Fragments, Cut, Malformed uint64
}

// Source implements ingest.Source.
type Source struct {
	options Options
	slab    *slab.Slab

	woken  chan struct{} // holds one token
	done   chan struct{} // closed by Close
	closed sync.Once

	mu      sync.Mutex // held by Receive, and by Close while it closes the file
	file    *os.File
	frames  frames
	decoder *decoder
	frame   uint64 // frames read
	// next is a datagram that was read but not delivered.
	next    datagram
	hasNext bool
	// began is when the replay began (Now), first the capture's first time.
	began int64
	first time.Time
	ended error

	counters
}

// counters are the source's part of ingest.Stats and Skipped.
type counters struct {
	datagrams, bytes, noRoom           atomic.Uint64
	foreign, fragments, cut, malformed atomic.Uint64
}

var _ ingest.Source = (*Source)(nil)

// datagram is what a frame carries. The reader owns payload and overwrites it
// with the next read.
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

// wanted is the error text for a file that is not a capture.
const wanted = "not a capture, want pcap or pcapng"

// readHeader distinguishes pcap from pcapng.
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

// noEOF makes a file that ends too early distinct from one that is complete.
func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// Slab holds the datagrams; it stays mapped after Close, until CloseSlab.
func (s *Source) Slab() shm.Memory { return s.slab }

// CloseSlab unmaps the slab. Call it after the last use of the slab.
func (s *Source) CloseSlab() error { return s.slab.Close() }

// Receive plays the next datagrams; see ingest.Source. It returns io.EOF at the
// capture's end. If the file is broken, its error names the frame.
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

// readLocked reads up to the next datagram; it returns false at the end.
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

// dueLocked returns when to play the next datagram, in nanoseconds of Now.
func (s *Source) dueLocked() int64 {
	if s.options.Speed == 0 {
		return 0
	}
	return s.began + int64(float64(s.next.at.Sub(s.first))/s.options.Speed)
}

// wait sleeps until a time. It returns false if the deadline, Wake or Close
// comes first.
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

// Release returns spans to the slab; see ingest.Source.
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

// Stats reads the counters; Truncated counts frames recorded without their end.
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

// Skipped returns the counts of frames that were not played so far, by reason.
func (s *Source) Skipped() Skipped {
	return Skipped{
		Foreign:   s.foreign.Load(),
		Fragments: s.fragments.Load(),
		Cut:       s.cut.Load(),
		Malformed: s.malformed.Load(),
	}
}

// Close ends a blocked Receive and closes the file. The slab stays mapped.
// Closing twice is harmless.
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
