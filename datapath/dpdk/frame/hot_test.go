package frame_test

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/penstock/penstock/datapath/aggregate"
	"github.com/penstock/penstock/datapath/dpdk/frame"
	"github.com/penstock/penstock/datapath/ingest"
	"github.com/penstock/penstock/shm"
	"github.com/penstock/penstock/wire"
)

var (
	client = netip.MustParseAddr("10.0.0.1")
	own    = netip.MustParseAddrPort("10.0.0.2:5001")
	link   = frame.Link{Peer: frame.MAC{2, 0, 0, 0, 0, 2}, Own: frame.MAC{2, 0, 0, 0, 0, 1}}
)

// room is the size of a DPDK packet buffer, including its header.
const room = 2368

// traffic is requests of 147 pieces of 1 KB as frames, in buffers like those of DPDK. It also
// holds what turns them into complete requests.
type traffic struct {
	memory   []byte
	frames   [][]byte
	at       []uint64
	check    frame.Checks
	host     frame.Host
	table    *frame.Neighbours
	learner  frame.Learner
	requests *shm.Table
	a        *aggregate.Aggregator
	batch    []ingest.Datagram
	events   aggregate.Events
	now      int64
	id       uint32
}

const fragments = 147

func newTraffic(tb testing.TB, clients int, check frame.Checks) *traffic {
	tb.Helper()
	const fragmentBytes = 1024
	x := &traffic{
		memory: make([]byte, clients*fragments*room), check: check, now: 1,
		host:  frame.Host{MAC: link.Peer, Addresses: []netip.Addr{own.Addr()}},
		table: frame.NewNeighbours(1024),
		batch: make([]ingest.Datagram, 0, 256),
	}
	x.learner.Table = x.table
	payload := make([]byte, wire.HeaderSize+fragmentBytes)
	for i := range fragments {
		for c := range clients {
			at := (i*clients + c) * room
			header := wire.FragmentHeader(wire.TypeData, uint32(c), fragments*fragmentBytes, fragmentBytes, i)
			header.Put(payload)
			b := x.memory[at+256 : at+room]
			n := frame.PutUDP(b, &link, netip.AddrPortFrom(client, uint16(6000+c)), own, payload, frame.FillAll)
			x.frames, x.at = append(x.frames, b[:n]), append(x.at, uint64(at+256))
		}
	}
	var err error
	if x.requests, err = shm.NewTable("frame-test", shm.Geometry{Slots: 64, MaxFragments: 2 * fragments, ResultBytes: 4096}); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { x.requests.Close() })
	x.a = aggregate.New(aggregate.Config{
		Slots: 64, RequestBytes: fragments * fragmentBytes, MaxFragments: 2 * fragments, MinFragmentBytes: 512, SLO: 100 * time.Millisecond,
	}, x.memory, x.requests)
	return x
}

// renew gives the frames the ids of the next requests, and new checksums.
func (x *traffic) renew() {
	x.id += 1 << 16
	for i, b := range x.frames {
		id := b[42+4:]
		binary.LittleEndian.PutUint32(id, x.id+binary.LittleEndian.Uint32(id)&0xffff)
		var d frame.Datagram
		x.host.Parse(b, 0, 0, &d)
		frame.PutUDP(b, &link, d.From, d.To, b[42:42+d.Payload.Length], frame.FillAll)
		x.frames[i] = b
	}
}

// round processes all frames, 256 at a time, and returns how many requests became complete.
func (x *traffic) round(tb testing.TB) int {
	whole := 0
	for i := 0; i < len(x.frames); {
		x.batch = x.batch[:0]
		x.now += 20_000
		for ; i < len(x.frames) && len(x.batch) < cap(x.batch); i++ {
			var d frame.Datagram
			if reason := x.host.Parse(x.frames[i], 0, x.check, &d); reason != frame.OK {
				tb.Fatalf("frame %d is %v", i, reason)
			}
			x.learner.Learn(&d, x.now)
			x.batch = append(x.batch, ingest.Datagram{From: d.From, First: ingest.Span{
				Offset: x.at[i] + uint64(d.Payload.Offset), Length: d.Payload.Length,
			}})
		}
		x.events.Reset()
		x.a.Add(x.now, x.batch, &x.events)
		for _, slot := range x.events.Complete {
			x.a.End(x.now, slot, &wire.Result{Status: wire.StatusOK, Kind: wire.KindTopK}, x.memory[:60], &x.events)
			whole++
		}
	}
	return whole
}

func TestParseAllocations(t *testing.T) {
	const clients = 4
	x := newTraffic(t, clients, frame.CheckIP|frame.CheckUDP)
	out := make([]byte, 2048)
	reply := make([]byte, 1024)
	for range 20 {
		x.renew()
		x.round(t)
	}
	per := testing.AllocsPerRun(20, func() {
		x.renew()
		if whole := x.round(t); whole != clients {
			t.Fatalf("%d requests became whole, want %d", whole, clients)
		}
		back, _, ok := x.table.Find(client)
		if !ok {
			t.Fatal("the client is not known")
		}
		if frame.PutUDP(out, &back, own, netip.AddrPortFrom(client, 6000), reply, frame.FillAll) == 0 {
			t.Fatal("no reply")
		}
	})
	if per != 0 {
		t.Errorf("%d frames allocate %.1f times, want 0", len(x.frames), per)
	}
}

func BenchmarkParse(b *testing.B) {
	for _, c := range []struct {
		name  string
		check frame.Checks
	}{{"headers", frame.CheckIP}, {"checksums", frame.CheckIP | frame.CheckUDP}} {
		b.Run(c.name, func(b *testing.B) {
			x := newTraffic(b, 8, c.check)
			b.ReportAllocs()
			i := 0
			var d frame.Datagram
			for b.Loop() {
				if x.host.Parse(x.frames[i], 0, c.check, &d) != frame.OK {
					b.Fatal("no datagram")
				}
				if i++; i == len(x.frames) {
					i = 0
				}
			}
		})
	}
}

// BenchmarkIngest measures the path of a datagram from its frame into a request: parsed,
// accepted, its sender learned, aggregated.
func BenchmarkIngest(b *testing.B) {
	for _, clients := range []int{1, 8} {
		for _, c := range []struct {
			name  string
			check frame.Checks
		}{{"NIC", 0}, {"software", frame.CheckIP | frame.CheckUDP}} {
			b.Run(fmt.Sprintf("%d clients, checksums by %s", clients, c.name), func(b *testing.B) {
				x := newTraffic(b, clients, c.check)
				b.ReportAllocs()
				var busy time.Duration
				n := 0
				for b.Loop() {
					x.renew()
					begin := time.Now()
					if x.round(b) != clients {
						b.Fatal("a request is lost")
					}
					busy += time.Since(begin)
					n += len(x.frames)
				}
				b.ReportMetric(float64(busy.Nanoseconds())/float64(n), "ns/datagram")
				b.ReportMetric(float64(n)/busy.Seconds()/1e6, "Mdatagrams/s")
			})
		}
	}
}

func BenchmarkPutUDP(b *testing.B) {
	out, payload := make([]byte, 2048), make([]byte, 1024)
	to := netip.AddrPortFrom(client, 6000)
	b.ReportAllocs()
	for b.Loop() {
		frame.PutUDP(out, &link, own, to, payload, frame.FillAll)
	}
}
