// Package capture sends the UDP datagrams of a capture file (pcap or pcapng) to the functions of a
// node, each at its recorded time. Each sender in the capture has its own socket.
package capture

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"github.com/penstock/penstock/wire"
)

// Function receives the datagrams that were recorded on their way to its port.
type Function struct {
	Name string
	Addr netip.AddrPort
}

// Options of Play.
type Options struct {
	File      string
	Functions []Function
	// Speed is how many recorded seconds pass per second, more than 0.
	Speed float64
	// Grace is how long Play waits for more answers after the last answer or datagram.
	Grace time.Duration
}

// Report counts what Play sent and received.
type Report struct {
	Functions []FunctionReport `json:"functions"`
	// Skipped counts the frames without a whole UDP datagram to one of the functions.
	Skipped     uint64 `json:"skipped_frames"`
	Interrupted bool   `json:"interrupted,omitempty"`
}

// FunctionReport is a function's part of a Report. Requests and Answers count only Penstock's
// protocol, not the formats of cameras.
type FunctionReport struct {
	Name       string            `json:"name"`
	Datagrams  uint64            `json:"datagrams"`
	Requests   int               `json:"requests"`
	Answers    map[string]uint64 `json:"answers"` // by wire.Status
	Unanswered int               `json:"unanswered"`
}

// Play sends a capture. When ctx ends, it returns the report of the time so far without an error.
func Play(ctx context.Context, o Options) (*Report, error) {
	file, err := os.Open(o.File)
	if err != nil {
		return nil, fmt.Errorf("play capture: %w", err)
	}
	defer file.Close()
	p := &player{options: o, senders: map[flow]*sender{}, answered: make(chan struct{}, 1), ports: map[uint16]bool{}}
	defer p.close()
	if err := p.send(ctx, file); err != nil {
		return nil, fmt.Errorf("play capture %s: %w", o.File, err)
	}
	p.await(ctx)
	p.close()
	return p.report(ctx.Err() != nil), nil
}

// player is the state of a Play.
type player struct {
	options  Options
	skipped  uint64
	ports    map[uint16]bool // of datagrams to no function
	senders  map[flow]*sender
	answered chan struct{} // holds a token after an answer
	readers  sync.WaitGroup
}

// flow is a sender in the capture and the function that it sends to.
type flow struct {
	from     netip.AddrPort
	function int // in Options.Functions
}

// sender is the socket of one flow.
type sender struct {
	conn      *net.UDPConn
	datagrams uint64

	mu       sync.Mutex // guards the following
	requests map[uint32]wire.Status
	open     int // requests without an answer
}

// noAnswer is the status of a request before its answer.
const noAnswer wire.Status = wire.NumStatuses

// send sends all datagrams until the end of the capture or of ctx.
func (p *player) send(ctx context.Context, file io.Reader) error {
	source, err := packets(file)
	if err != nil {
		return err
	}
	var began, first time.Time
	for frame := 1; ctx.Err() == nil; frame++ {
		packet, err := source.NextPacket()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("frame %d: %w", frame, err)
		}
		from, to, payload := datagram(packet)
		function := slices.IndexFunc(p.options.Functions, func(f Function) bool { return f.Addr.Port() == to })
		if payload == nil || function < 0 {
			p.skipped++
			if payload != nil {
				p.ports[to] = true
			}
			continue
		}
		at := packet.Metadata().Timestamp
		if first.IsZero() {
			began, first = time.Now(), at
		}
		due := time.Duration(float64(at.Sub(first)) / p.options.Speed)
		if !sleep(ctx, time.Until(began.Add(due))) {
			break
		}
		s, err := p.sender(flow{from, function})
		if err != nil {
			return err
		}
		if err := s.send(payload); err != nil {
			return fmt.Errorf("frame %d: %w", frame, err)
		}
	}
	if len(p.senders) == 0 && ctx.Err() == nil {
		return p.nothing()
	}
	return nil
}

// nothing is the error of a capture that has no datagram for the node.
func (p *player) nothing() error {
	if len(p.ports) == 0 {
		return errors.New("it has no whole UDP datagram over IPv4 or IPv6")
	}
	var has, want []string
	for port := range p.ports {
		has = append(has, fmt.Sprint(port))
	}
	slices.Sort(has)
	for _, f := range p.options.Functions {
		want = append(want, fmt.Sprintf("%d (%s)", f.Addr.Port(), f.Name))
	}
	return fmt.Errorf("its datagrams went to ports %s; want a function of the node at one of them; the node has %s", strings.Join(has, ", "), strings.Join(want, ", "))
}

// packets reads the header of a pcap or pcapng file.
func packets(file io.Reader) (*gopacket.PacketSource, error) {
	const pcapngMagic = "\n\r\r\n"
	r := bufio.NewReaderSize(file, 1<<20)
	var source gopacket.PacketDataSource
	var link layers.LinkType
	if magic, _ := r.Peek(len(pcapngMagic)); string(magic) == pcapngMagic {
		ng, err := pcapgo.NewNgReader(r, pcapgo.NgReaderOptions{ErrorOnMismatchingLinkType: true})
		if err != nil {
			return nil, fmt.Errorf("read pcapng header: %w", err)
		}
		source, link = ng, ng.LinkType()
	} else {
		classic, err := pcapgo.NewReader(r)
		if err != nil {
			return nil, fmt.Errorf("not a capture, want pcap or pcapng: %w", err)
		}
		source, link = classic, classic.LinkType()
	}
	return gopacket.NewPacketSource(source, link, gopacket.WithLazy(true), gopacket.WithNoCopy(true)), nil
}

// datagram returns the UDP payload of a frame, nil if the frame has no whole one.
func datagram(p gopacket.Packet) (from netip.AddrPort, to uint16, payload []byte) {
	udp, ok := p.Layer(layers.LayerTypeUDP).(*layers.UDP)
	if !ok || p.Metadata().Truncated || int(udp.Length) != 8+len(udp.Payload) {
		return from, 0, nil
	}
	addr, _ := netip.AddrFromSlice(p.NetworkLayer().NetworkFlow().Src().Raw())
	return netip.AddrPortFrom(addr, uint16(udp.SrcPort)), uint16(udp.DstPort), append([]byte{}, udp.Payload...)
}

// sleep returns false if ctx ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// sender returns the socket of a flow.
func (p *player) sender(f flow) (*sender, error) {
	if s := p.senders[f]; s != nil {
		return s, nil
	}
	conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(p.options.Functions[f.function].Addr))
	if err != nil {
		return nil, fmt.Errorf("open socket for %v: %w", f.from, err)
	}
	s := &sender{conn: conn, requests: map[uint32]wire.Status{}}
	p.senders[f] = s
	p.readers.Go(func() { s.receive(p.answered) })
	return s, nil
}

func (s *sender) send(payload []byte) error {
	if h, err := wire.DecodeHeader(payload); err == nil && h.Type == wire.TypeData {
		s.mu.Lock()
		if _, known := s.requests[h.RequestID]; !known {
			s.requests[h.RequestID] = noAnswer
			s.open++
		}
		s.mu.Unlock()
	}
	s.datagrams++
	_, err := s.conn.Write(payload)
	return err
}

// receive reads answers until the socket is closed.
func (s *sender) receive(answered chan<- struct{}) {
	buffer := make([]byte, wire.MaxDatagram)
	for {
		n, err := s.conn.Read(buffer)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		// Any other error means that the port was closed when a datagram arrived: the request stays unanswered.
		h, result, _, err := wire.DecodeResult(buffer[:n])
		if err != nil {
			continue
		}
		s.mu.Lock()
		if status, known := s.requests[h.RequestID]; known && status == noAnswer {
			s.requests[h.RequestID] = result.Status
			s.open--
		}
		s.mu.Unlock()
		select {
		case answered <- struct{}{}:
		default:
		}
	}
}

// await waits until each request is answered, or no answer arrives for the grace time.
func (p *player) await(ctx context.Context) {
	open := func(s *sender) bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.open > 0
	}
	for _, s := range p.senders {
		for open(s) {
			select {
			case <-p.answered:
			case <-time.After(p.options.Grace):
				return
			case <-ctx.Done():
				return
			}
		}
	}
}

// close closes the sockets and waits for their readers.
func (p *player) close() {
	for _, s := range p.senders {
		s.conn.Close()
	}
	p.readers.Wait()
}

// report sums up the flows of each function. No reader runs any more.
func (p *player) report(interrupted bool) *Report {
	r := &Report{Skipped: p.skipped, Interrupted: interrupted}
	for i, f := range p.options.Functions {
		one := FunctionReport{Name: f.Name, Answers: map[string]uint64{}}
		for flow, s := range p.senders {
			if flow.function != i {
				continue
			}
			one.Datagrams += s.datagrams
			one.Requests += len(s.requests)
			one.Unanswered += s.open
			for _, status := range s.requests {
				if status != noAnswer {
					one.Answers[status.String()]++
				}
			}
		}
		if one.Datagrams > 0 {
			r.Functions = append(r.Functions, one)
		}
	}
	return r
}

// WriteTable writes the report for people, one line per function.
func (r *Report) WriteTable(w io.Writer) error {
	var b strings.Builder
	for _, f := range r.Functions {
		fmt.Fprintf(&b, "%s: sent %d datagrams", f.Name, f.Datagrams)
		if f.Requests > 0 {
			fmt.Fprintf(&b, " of %d requests: ", f.Requests)
			for status := range wire.Status(wire.NumStatuses) {
				if n := f.Answers[status.String()]; n > 0 {
					fmt.Fprintf(&b, "%d %v, ", n, status)
				}
			}
			fmt.Fprintf(&b, "%d unanswered", f.Unanswered)
		}
		b.WriteString("\n")
	}
	if r.Skipped > 0 {
		fmt.Fprintf(&b, "skipped %d frames without a whole UDP datagram to these functions\n", r.Skipped)
	}
	if r.Interrupted {
		b.WriteString("interrupted\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}
