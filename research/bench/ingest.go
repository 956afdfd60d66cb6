package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/datapath/aggregate"
	"github.com/penstock/penstock/datapath/ingest"
	"github.com/penstock/penstock/datapath/udp"
	"github.com/penstock/penstock/shm"
	"github.com/penstock/penstock/wire"
)

// Ingest is the report of `penstock-lab ingest`: the rate of one receive thread,
// from the socket to complete requests. The floor is a loop that receives the same
// datagrams and does nothing with them. The first case's numbers are also at the
// top level.
type Ingest struct {
	IngestCase
	Cases []IngestCase `json:"cases"`
}

// IngestCase is one request size. Bytes are the pictures', without headers.
type IngestCase struct {
	Fragments          int     `json:"pieces"`
	FragmentBytes      int     `json:"piece_bytes"`
	Requests           uint64  `json:"requests"`
	DatagramsPerSecond float64 `json:"datagrams_per_s"`
	BytesPerSecond     float64 `json:"bytes_per_s"`
	BareBytesPerSecond float64 `json:"bare_bytes_per_s"`
	// Ratio is the median of the ratios of consecutive measurements.
	Ratio             float64 `json:"ratio"`
	AllocsPerDatagram float64 `json:"allocs_per_datagram"`
	Lost              uint64  `json:"lost"`      // requests
	BareLost          uint64  `json:"bare_lost"` // datagrams
}

// ingestRounds is how often our thread and the bare loop take turns.
const ingestRounds = 5

// RunIngest measures requests of 147 and of 507 fragments of 1 KB for that long
// each. These are pictures of 224 x 224 and of 416 x 416, RGB.
func RunIngest(ctx context.Context, each time.Duration) (Ingest, error) {
	var r Ingest
	for _, fragments := range []int{147, 507} {
		c, err := ingestCase(ctx, fragments, 1024, each)
		if err != nil {
			return r, err
		}
		r.Cases = append(r.Cases, c)
	}
	r.IngestCase = r.Cases[0]
	return r, nil
}

func ingestCase(ctx context.Context, fragments, fragmentBytes int, each time.Duration) (IngestCase, error) {
	c := IngestCase{Fragments: fragments, FragmentBytes: fragmentBytes}
	turn := each / ingestRounds
	var ratios, ours, bare []float64
	var mallocs, datagrams uint64
	for range ingestRounds {
		if err := ctx.Err(); err != nil {
			return c, err
		}
		b, err := bareTurn(fragments, fragmentBytes, turn)
		if err != nil {
			return c, err
		}
		o, err := ingestTurn(fragments, fragmentBytes, turn)
		if err != nil {
			return c, err
		}
		ours, bare = append(ours, o.perSecond()), append(bare, b.perSecond())
		ratios = append(ratios, ratio(o.perSecond(), b.perSecond()))
		c.Requests += o.requests
		c.Lost += o.lost
		c.BareLost += b.lost
		mallocs += o.mallocs
		datagrams += o.datagrams
	}
	c.BytesPerSecond, c.BareBytesPerSecond, c.Ratio = median(ours), median(bare), median(ratios)
	c.DatagramsPerSecond = c.BytesPerSecond / float64(fragmentBytes)
	c.AllocsPerDatagram = ratio(float64(mallocs), float64(datagrams))
	return c, nil
}

func median(v []float64) float64 {
	slices.Sort(v)
	return v[len(v)/2]
}

// ratio returns a / b, or 0 if b is 0: JSON has no Inf and no NaN.
func ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

// turn has the counts of one measurement.
type turn struct {
	datagrams, requests, lost, mallocs uint64
	bytes                              uint64 // of complete requests, or of datagrams' payloads
	took                               time.Duration
}

func (t turn) perSecond() float64 { return float64(t.bytes) / t.took.Seconds() }

// receiveBuffer is requested for both sockets. window is how many bytes the sender
// keeps in flight, well below receiveBuffer so that none is lost.
const (
	receiveBuffer = 8 << 20
	window        = 1 << 20
)

// ingestTurn runs source and aggregation as the manager's receive thread does. Its
// inference function answers immediately.
func ingestTurn(fragments, fragmentBytes int, length time.Duration) (t turn, err error) {
	sources, err := udp.Open(udp.Options{
		Listen: netip.MustParseAddrPort("127.0.0.1:0"), SlabBytes: 64 << 20, RecvBuffer: receiveBuffer, HugePages: true,
	}, 1)
	if err != nil {
		return t, err
	}
	src := sources[0]
	defer func() { err = errors.Join(err, src.CloseSlab()) }()
	defer src.Close()
	g := shm.Geometry{Slots: 64, MaxFragments: uint32(2 * fragments), ResultBytes: 64, PoolBytes: 64 * 64}
	table, err := shm.NewTable("penstock-bench", g)
	if err != nil {
		return t, err
	}
	defer table.Close()
	requestBytes := fragments * fragmentBytes
	a := aggregate.NewSeveral(1, aggregate.Config{
		Slots: int(g.Slots), RequestBytes: requestBytes, MaxFragments: int(g.MaxFragments), MinFragmentBytes: fragmentBytes,
		SLO: 10 * time.Second,
	}, src.Slab().Bytes(), table)[0]

	s, err := newIngestSender(src.LocalAddr(), fragments, fragmentBytes)
	if err != nil {
		return t, err
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	batch := make([]ingest.Datagram, 256)
	var events aggregate.Events
	answer := wire.Result{Kind: wire.KindRaw}
	loop := func(until func() bool) error {
		for !until() {
			n, err := src.Receive(batch, shm.Now()+int64(10*time.Millisecond))
			if err != nil {
				return fmt.Errorf("receive: %w", err)
			}
			now := shm.Now()
			events.Reset()
			a.Add(now, batch[:n], &events)
			for _, slot := range events.Complete {
				a.End(now, slot, &answer, nil, &events)
			}
			src.Release(events.Release)
			s.received.Add(uint64(n))
		}
		return nil
	}
	stop := s.start()
	// The first tenth of the time warms up memory and caches.
	begin := time.Now().Add(length / 10)
	if err := loop(func() bool { return time.Now().After(begin) }); err != nil {
		stop()
		return t, err
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	wholeBefore, datagramsBefore, started := a.Stats().Complete, a.Stats().Datagrams, time.Now()
	end := started.Add(length)
	err = loop(func() bool { return time.Now().After(end) })
	stats := a.Stats()
	t.took = time.Since(started)
	runtime.ReadMemStats(&after)
	stop()
	if err != nil {
		return t, err
	}
	// Receive what is still in flight; the rest is lost.
	last := time.Now().Add(time.Second)
	if err := loop(func() bool { return a.Stats().Complete >= s.requests || time.Now().After(last) }); err != nil {
		return t, err
	}
	t.requests = stats.Complete - wholeBefore
	t.datagrams = stats.Datagrams - datagramsBefore
	t.bytes = t.requests * uint64(requestBytes)
	t.lost = s.requests - a.Stats().Complete
	t.mallocs = after.Mallocs - before.Mallocs
	return t, nil
}

// bareTurn receives the same datagrams into the same few buffers and only counts
// them.
func bareTurn(fragments, fragmentBytes int, length time.Duration) (t turn, err error) {
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return t, fmt.Errorf("open bare socket: %w", err)
	}
	defer conn.Close()
	bare, err := newBareLoop(conn, receiveBuffer)
	if err != nil {
		return t, err
	}
	s, err := newIngestSender(conn.LocalAddr().(*net.UDPAddr).AddrPort(), fragments, fragmentBytes)
	if err != nil {
		return t, err
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	datagramBytes := uint64(wire.HeaderSize + fragmentBytes)
	loop := func(until func() bool) (datagrams uint64, err error) {
		for !until() {
			n, err := bare.receive(10 * time.Millisecond)
			if err != nil {
				return datagrams, fmt.Errorf("receive bare: %w", err)
			}
			s.received.Add(n / datagramBytes)
			datagrams += n / datagramBytes
		}
		return datagrams, nil
	}
	stop := s.start()
	begin := time.Now().Add(length / 10)
	all, err := loop(func() bool { return time.Now().After(begin) })
	if err != nil {
		stop()
		return t, err
	}
	started := time.Now()
	end := started.Add(length)
	t.datagrams, err = loop(func() bool { return time.Now().After(end) })
	t.took = time.Since(started)
	stop()
	if err != nil {
		return t, err
	}
	last := time.Now().Add(100 * time.Millisecond)
	rest, err := loop(func() bool { return time.Now().After(last) })
	if err != nil {
		return t, err
	}
	t.bytes = t.datagrams * uint64(fragmentBytes)
	t.lost = s.requests*uint64(fragments) - (all + t.datagrams + rest)
	return t, nil
}

// ingestSender sends complete requests as fast as they are received, in trains that
// the kernel cuts into datagrams (UDP_SEGMENT).
type ingestSender struct {
	conn      *net.UDPConn
	datagram  int // bytes
	fragments int
	request   []byte // all datagrams of one request, consecutive
	control   []byte
	train     int // datagrams per train

	received atomic.Uint64 // datagrams; the receiver sets it
	requests uint64        // sent; read it after stop
}

func newIngestSender(to netip.AddrPort, fragments, fragmentBytes int) (*ingestSender, error) {
	conn, err := net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(to))
	if err != nil {
		return nil, fmt.Errorf("open sender: %w", err)
	}
	s := &ingestSender{conn: conn, datagram: wire.HeaderSize + fragmentBytes, fragments: fragments}
	for i := range fragments {
		b := make([]byte, s.datagram)
		h := wire.FragmentHeader(wire.TypeData, 0, fragments*fragmentBytes, fragmentBytes, i)
		h.Put(b)
		s.request = append(s.request, b...)
	}
	const maxSegments = 64 // UDP_MAX_SEGMENTS of older kernels
	s.train = min(maxSegments, wire.MaxDatagram/s.datagram)
	s.control = segmentControl(uint16(s.datagram))
	return s, nil
}

// start sends from its own thread until stop.
func (s *ingestSender) start() (stop func()) {
	var stopping atomic.Bool
	var done sync.WaitGroup
	done.Go(func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		sent := uint64(0)
		for id := uint32(0); !stopping.Load(); id++ {
			for i := range s.fragments {
				binary.LittleEndian.PutUint32(s.request[i*s.datagram+4:], id)
			}
			for from := 0; from < s.fragments; from += s.train {
				n := min(s.train, s.fragments-from)
				for !stopping.Load() && sent+uint64(n)-s.received.Load() > uint64(window/s.datagram) {
					unix.Syscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
				}
				b := s.request[from*s.datagram : (from+n)*s.datagram]
				if _, _, err := s.conn.WriteMsgUDP(b, s.control, nil); err != nil {
					continue // lost: the receiver will miss it
				}
				sent += uint64(n)
			}
			s.requests++
		}
	})
	var once sync.Once
	return func() {
		once.Do(func() {
			stopping.Store(true) // the current request is sent completely
			done.Wait()
			s.conn.Close()
		})
	}
}
