//go:build dpdk && cgo

package dpdk

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/rs/zerolog"

	"github.com/penstock/penstock/datapath/dpdk/eal"
	"github.com/penstock/penstock/datapath/dpdk/frame"
	"github.com/penstock/penstock/datapath/ingest"
	"github.com/penstock/penstock/internal/testing/dpdktest"
	"github.com/penstock/penstock/internal/testing/ingesttest"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/wait"
	"github.com/penstock/penstock/shm/cpuset"
)

// The tests use rings in memory: no NIC, no huge pages, no privilege. A process has one
// environment, which all tests share; its lcores may run on any CPU.
func TestMain(m *testing.M) {
	cpus, err := cpuset.Allowed()
	if err == nil {
		where := cpuset.Format(cpus)
		err = eal.Start(eal.Options{
			MainCPUs: where, Lcores: "(1-8)@(" + where + ")", MemoryMiB: 192, NoHuge: true, Socket: -1,
		})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

var (
	own4 = netip.MustParseAddr("10.9.0.1")
	own6 = netip.MustParseAddr("fd00:9::1")
	// The client, and its Ethernet address.
	client4   = netip.MustParseAddrPort("10.9.0.2:40000")
	client6   = netip.MustParseAddrPort("[fd00:9::2]:40000")
	clientMAC = frame.MAC{2, 0, 0, 0, 0, 2}
)

// jumbo has room for the largest datagrams that the suite sends.
const jumbo = 9216

// bed is the test harness: a group on a wire.
type bed struct {
	*Group
	t         *testing.T
	wire      *dpdktest.Wire
	injectors sync.WaitGroup
	stop      atomic.Bool
}

var beds atomic.Uint32

// newBed opens a group. It closes the group at the end of the test, after its sources.
func newBed(t *testing.T, o Options) *bed {
	t.Helper()
	if o.MTU == 0 {
		o.MTU = 1500
	}
	if o.Mbufs == 0 {
		o.Mbufs = 1024
	}
	if o.Queues == 0 {
		o.Queues = 1
	}
	if o.Addresses == nil {
		o.Addresses = []netip.Addr{own4, own6}
	}
	o.Memory = 192 << 20
	o.Log = zerolog.Nop()
	wire, err := dpdktest.NewWire(fmt.Sprintf("bed%d", beds.Add(1)), o.Queues, 1024)
	must.OK(t, err)
	o.Port = wire.Name
	g, err := Open(o)
	must.OK(t, err)
	b := &bed{Group: g, t: t, wire: wire}
	t.Cleanup(b.close)
	return b
}

func (b *bed) close() {
	b.stop.Store(true)
	b.injectors.Wait()
	b.eventually("every mbuf is back", b.back)
	if err := b.Group.Close(); err != nil {
		b.t.Errorf("close group: %v", err)
	}
	b.wire.Close()
}

// back takes all sent frames off the wire, announcements too. It reports whether every mbuf
// is in the pool then.
func (b *bed) back() bool {
	frame := make([]byte, 1<<16)
	for q := range b.options.Queues {
		for ok := true; ok; {
			_, ok = b.wire.Take(q, frame)
		}
	}
	return b.Group.Stats().MbufsHeld == 0
}

// eventually waits until a condition holds.
func (b *bed) eventually(what string, holds func() bool) {
	b.t.Helper()
	if !wait.Until(holds) {
		b.t.Errorf("not in time: %s: %+v", what, b.Group.Stats())
	}
}

// listenOne opens a source that has its port alone.
func listenOne(g *Group, port uint16) (*Source, error) {
	all, err := g.Listen(port, 1)
	if err != nil {
		return nil, err
	}
	return all[0], nil
}

// listen opens a source that is closed at the end of the test.
func (b *bed) listen(port uint16) *Source {
	b.t.Helper()
	s, err := listenOne(b.Group, port)
	must.OK(b.t, err)
	b.t.Cleanup(func() {
		if err := s.Close(); err != nil {
			b.t.Error(err)
		}
		if err := s.CloseSlab(); err != nil {
			b.t.Error(err)
		}
	})
	return s
}

// link is the path from the client to the port.
func (b *bed) link() frame.Link { return frame.Link{Peer: b.Group.MAC(), Own: clientMAC} }

// datagram makes a client's frame.
func (b *bed) datagram(link frame.Link, from netip.AddrPort, to netip.AddrPort, payload []byte) []byte {
	f := make([]byte, frame.MaxHeaderBytes+len(payload)+60)
	return f[:frame.PutUDP(f, &link, from, to, payload, frame.FillAll)]
}

// inject puts frames on the wire, in order, and waits for room.
func (b *bed) inject(queue int, frames ...[]byte) {
	wait.Until(func() bool {
		n, _ := b.wire.Put(b.pool, queue, frames...)
		frames = frames[n:]
		return len(frames) == 0 || b.stop.Load()
	})
}

// send sends payloads from a client to a source.
func (b *bed) send(s *Source, from netip.AddrPort, payloads ...[]byte) {
	var frames [][]byte
	for _, p := range payloads {
		frames = append(frames, b.datagram(b.link(), from, toOf(s, from), p))
	}
	b.inject(0, frames...)
}

// toOf returns the source's address in the client's family.
func toOf(s *Source, from netip.AddrPort) netip.AddrPort {
	if from.Addr().Is6() {
		return netip.AddrPortFrom(own6, s.local.Port())
	}
	return netip.AddrPortFrom(own4, s.local.Port())
}

// sent takes the next frame that the port sent.
func (b *bed) sent() []byte {
	b.t.Helper()
	f, n := make([]byte, 1<<16), 0
	if !wait.Until(func() bool {
		for q := range b.options.Queues {
			var ok bool
			if n, ok = b.wire.Take(q, f); ok && f[0]&1 == 0 { // otherwise it is announced to all
				return true
			}
		}
		return false
	}) {
		b.t.Fatalf("the port sent nothing: %+v", b.Group.Stats())
	}
	return f[:n]
}

// sentDatagram takes the next datagram that was sent.
func (b *bed) sentDatagram() (payload []byte, d frame.Datagram) {
	b.t.Helper()
	f := b.sent()
	to, _ := netip.AddrFromSlice(gopacket.NewPacket(f, layers.LayerTypeEthernet, gopacket.NoCopy).NetworkLayer().NetworkFlow().Dst().Raw())
	client := frame.Host{MAC: frame.MAC(f[:6]), Addresses: []netip.Addr{to}}
	if r := client.Parse(f, 0, frame.CheckIP|frame.CheckUDP, &d); r != frame.OK {
		b.t.Fatalf("a frame was sent that is %v: %x", r, f)
	}
	return f[d.Payload.Offset : d.Payload.Offset+d.Payload.Length], d
}

// arp sends an ARP request for own4, as the client, and takes the answer.
func (b *bed) arp() []byte {
	q := binary.BigEndian.AppendUint16(append(bytes.Repeat([]byte{0xff}, 6), clientMAC[:]...), 0x0806)
	q = append(q, 0, 1, 8, 0, 6, 4, 0, 1)
	q = append(append(q, clientMAC[:]...), client4.Addr().AsSlice()...)
	q = append(append(q, make([]byte, 6)...), own4.AsSlice()...)
	b.inject(0, append(q, make([]byte, 18)...))
	return b.sent()
}

func (b *bed) twin(s *Source, from netip.AddrPort) ingesttest.Twin {
	return ingesttest.Twin{
		Source: s, From: from, CloseSlab: s.CloseSlab,
		Sent: func(t *testing.T, n int) (payloads [][]byte) {
			for range n {
				p, _ := b.sentDatagram()
				payloads = append(payloads, p)
			}
			return payloads
		},
	}
}

// release releases datagrams.
func release(s ingest.Source, datagrams ...ingest.Datagram) {
	for _, d := range datagrams {
		ingesttest.Release(s, d)
	}
}

// wantReason waits until n frames were counted for a reason.
func (b *bed) wantReason(r frame.Reason, n uint64) {
	b.t.Helper()
	b.eventually(fmt.Sprintf("%d frames are %v", n, r), func() bool { return b.Group.Stats().Frames[r] == n })
}
