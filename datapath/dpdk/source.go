//go:build dpdk && cgo

package dpdk

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/datapath/dpdk/eal"
	"github.com/penstock/penstock/datapath/dpdk/frame"
	"github.com/penstock/penstock/datapath/ingest"
	"github.com/penstock/penstock/datapath/slab"
	"github.com/penstock/penstock/shm"
)

// takeAtOnce is the max number of entries that Receive takes in one step.
const takeAtOnce = 256

// noRoomPause is how long Receive waits for spans to be released when mbufs are few.
const noRoomPause = 200 * time.Microsecond

// Source is a function's UDP port on a Group, or one of several sources that share its
// clients. It implements ingest.Source.
type Source struct {
	group  *Group
	port   *udpPort
	sink   *eal.Sink
	number uint32
	local  netip.AddrPort
	queue  atomic.Int32 // transmit queue

	// mu is held for reading while the sink is used, and for writing by Close.
	mu     sync.RWMutex
	closed atomic.Bool
	asked  atomic.Bool // to evict requests
	gone   atomic.Bool // CloseSlab was called, and another function may have the number

	receiver
	holdings
	counters
}

// udpPort is what the sources of a UDP port share.
type udpPort struct {
	// members are the sources. The first one is attached and has the rules.
	members  []*Source
	slabs    atomic.Int32 // how many have not called CloseSlab
	detached bool         // no frame comes any more; guarded by Group.mu
	rules    eal.Rules    // guarded by Group.mu
}

func (p *udpPort) first() *Source { return p.members[0] }

// receiver is the state of Receive.
type receiver struct {
	learner  frame.Learner
	face     *face // network identity that recent belongs to
	recent   frame.Recent
	parsed   frame.Datagram
	entries  []eal.Entry
	unwanted []uint64
	timeout  unix.Timespec
}

// holdings are the mbufs of a source.
type holdings struct {
	// mine[number] is 1 while this source has handed out that mbuf. Only the mbuf's current
	// owner writes its entry. The atomic held orders these writes between one owner and the
	// next.
	mine    []uint8
	held    atomic.Int64 // mbufs
	waiting atomic.Int32 // frames in the rings, when Receive last checked
}

// counters are the source's part of ingest.Stats.
type counters struct {
	datagrams, bytes, noRoom, full atomic.Uint64
}

var _ ingest.Source = (*Source)(nil)

// Listen opens a function's UDP port, 0 for any free one, as several sources. Each
// source serves some of the clients, and receives all that these send, whichever queue it
// comes by. The first Close of a source closes the port for all. The caller closes each
// source and calls its CloseSlab.
func (g *Group) Listen(port uint16, sources int) ([]*Source, error) {
	all, err := g.listen(port, sources)
	if err != nil {
		return nil, fmt.Errorf("open UDP port %d of DPDK port %s: %w", port, g.options.Port, err)
	}
	return all, nil
}

// Queues is the number of the port's receive queues.
func (g *Group) Queues() int { return g.options.Queues }

func (g *Group) listen(port uint16, sources int) (all []*Source, err error) {
	if sources < 1 || sources > eal.MaxMembers {
		return nil, fmt.Errorf("%d sources: want 1 to %d", sources, eal.MaxMembers)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return nil, ingest.ErrClosed
	}
	if port == 0 {
		for port = firstFree; g.byPort[port] != nil; port++ {
			if port == 1<<16-1 {
				return nil, errors.New("no port is free")
			}
		}
	}
	if g.byPort[port] != nil {
		return nil, errors.New("another function has it; configure another one")
	}
	number := slices.Index(g.numbers[:], false)
	if number < 0 {
		return nil, fmt.Errorf("want at most %d functions per DPDK port", eal.MaxSinks-1)
	}
	var sinks []*eal.Sink
	for range sources {
		sink, err := g.device.NewSink(number, len(g.pollers), g.ringEntries())
		if err != nil {
			for _, sink := range sinks {
				err = errors.Join(err, sink.Close())
			}
			return nil, err
		}
		sinks = append(sinks, sink)
	}
	for _, sink := range sinks {
		s := &Source{
			group: g, sink: sink, number: uint32(number),
			local: netip.AddrPortFrom(g.options.Addresses[0], port),
			receiver: receiver{
				learner:  frame.Learner{Table: g.table},
				entries:  make([]eal.Entry, takeAtOnce),
				unwanted: make([]uint64, 0, takeAtOnce),
			},
			holdings: holdings{mine: make([]uint8, g.pool.Mbufs())},
		}
		all = append(all, s)
	}
	shared := &udpPort{members: all}
	shared.slabs.Store(int32(sources))
	for _, s := range all {
		s.port = shared
	}
	first := all[0]
	first.sendBy(number)
	g.numbers[number] = true
	g.byPort[port] = first
	g.publish()
	sinks[0].Lead(sinks)
	sinks[0].Attach(port)
	g.steerLocked(first)
	return all, nil
}

// sendBy makes the sources of a port send through different queues, the first through queue.
func (s *Source) sendBy(queue int) {
	for i, m := range s.port.members {
		m.queue.Store(int32((queue + i) % len(s.group.senders)))
	}
}

// publish renews the list for readers without the lock. With more than one source, it also
// limits the backlog, so that a source that lags cannot take every mbuf. The caller must hold
// mu.
func (g *Group) publish() {
	backlog := g.pool.Mbufs()
	var list []*Source
	for _, s := range g.byPort {
		list = append(list, s.port.members...)
	}
	if len(list) > 1 {
		backlog /= 2
	}
	g.device.SetBacklog(max(backlog, 1))
	g.sources.Store(&list)
}

// steerLocked gives a source its own queue if the NIC can. Frames without a rule come by the queue
// that the NIC chooses, by a hash (RSS) or otherwise, and the pollers sort them.
func (g *Group) steerLocked(s *Source) {
	if len(g.queues) == 1 {
		return
	}
	queue := slices.Index(g.queues[1:], false) + 1
	if queue == 0 {
		return // more functions than queues: the rest share them
	}
	rules, err := g.device.Steer(s.local.Port(), queue)
	if err != nil {
		g.options.Log.Info().Err(err).Bool("rss", g.taken.RSS).Msg("NIC cannot steer packets to queues")
		return
	}
	g.queues[queue] = true
	s.port.rules = rules
	s.sendBy(queue)
}

// Slab is DPDK's packet memory, which all sources of a group share. It stays mapped after
// Close, until CloseSlab of each.
func (s *Source) Slab() shm.Memory { return s.group.pool.Memory() }

// CloseSlab gives up the memory, after Close. Its bytes must not be used afterwards, and
// Release must not be called. Mbufs that were not released (of requests that were given up)
// return to the pool. Closing twice is harmless.
func (s *Source) CloseSlab() error {
	g := s.group
	if s.gone.Swap(true) {
		return nil
	}
	var mbuf [1]uint64
	for number := range s.mine {
		if s.held.Load() == 0 {
			break
		}
		if s.mine[number] != 0 {
			s.mine[number] = 0
			mbuf[0] = g.pool.Offset(number)
			s.free(mbuf[:])
		}
	}
	if s.port.slabs.Add(-1) > 0 {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.numbers[s.number] = false
	return nil
}

// LocalAddr is the first of the port's addresses, with the UDP port.
func (s *Source) LocalAddr() netip.AddrPort { return s.local }

// Receive returns received datagrams; see ingest.Source.
func (s *Source) Receive(batch []ingest.Datagram, deadline int64) (int, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	spinUntil := int64(0)
	for {
		switch {
		case s.closed.Load():
			return 0, ingest.ErrClosed
		case s.starved():
			return 0, nil
		}
		if n, any := s.take(batch); n > 0 {
			return n, nil
		} else if any {
			continue // all were foreign, and more frames may follow
		}
		now := shm.Now()
		if deadline != 0 && now >= deadline {
			return 0, nil
		}
		if spinUntil == 0 {
			spinUntil = now + int64(s.group.options.BusyPoll)
		}
		if now < spinUntil {
			continue
		}
		if err := s.sleep(deadline - now); err != nil {
			return 0, err
		}
	}
}

// ask requests that the owner evict requests; it wakes Receive if necessary. It does not wait
// for a source that is closing.
func (s *Source) ask() {
	if !s.mu.TryRLock() {
		return
	}
	defer s.mu.RUnlock()
	if !s.closed.Load() && s.asked.CompareAndSwap(false, true) {
		s.sink.Wake()
	}
}

// sleep waits for frames. If forNanos is positive, it waits at most that long.
func (s *Source) sleep(forNanos int64) error {
	var timeout *unix.Timespec
	if forNanos > 0 {
		s.timeout = unix.NsecToTimespec(forNanos)
		timeout = &s.timeout
	}
	return s.sink.Sleep(timeout)
}

// starved reports whether the caller must evict requests before it gets more datagrams.
func (s *Source) starved() bool {
	s.waiting.Store(int32(s.sink.Waiting()))
	asked := s.asked.Swap(false)
	// The source that asked may have got mbufs since.
	if low := s.group.low(s); !low && !(asked && s.group.lowSince.Load() != 0) || s.held.Load() == 0 {
		return false
	}
	s.noRoom.Add(1)
	s.timeout = unix.NsecToTimespec(int64(noRoomPause))
	_ = s.sink.Pause(&s.timeout) // if it fails, the pause is just shorter
	return true
}

// take parses frames into batch. any reports whether there were frames.
func (s *Source) take(batch []ingest.Datagram) (n int, any bool) {
	g := s.group
	taken := s.sink.Take(s.entries[:min(len(batch), len(s.entries))])
	if taken == 0 {
		return 0, false
	}
	now := shm.Now()
	if f := s.group.face.Load(); f != s.face {
		s.face, s.recent = f, frame.Recent{}
	}
	s.held.Load() // orders what follows after the previous owners released these mbufs
	s.unwanted = s.unwanted[:0]
	total, held := uint64(0), 0
	for i := range s.entries[:taken] {
		e := &s.entries[i]
		number, mbuf, ok := g.pool.Mbuf(e.At)
		if !ok {
			continue // not a frame of the pool: a poller copies those
		}
		d, reason := s.parse(e, now)
		if reason != frame.OK {
			g.reasons[reason].Add(1)
			s.unwanted = append(s.unwanted, mbuf)
			continue
		}
		to := &batch[n]
		to.From, to.First, to.Rest, to.Shed = d.From, ingest.Span{}, ingest.Span{}, false
		if d.Payload.Length == 0 {
			s.unwanted = append(s.unwanted, mbuf) // an empty span is never released
		} else {
			to.First = ingest.Span{Offset: e.At + uint64(d.Payload.Offset), Length: d.Payload.Length}
			s.mine[number] = 1
			held++
		}
		total += uint64(d.Payload.Length)
		n++
	}
	g.reasons[frame.OK].Add(uint64(n))
	s.held.Add(int64(held))
	g.held.Add(int64(held))
	s.datagrams.Add(uint64(n))
	s.bytes.Add(total)
	g.pool.Free(s.unwanted)
	return n, true
}

// parse parses a frame, and records the path that it came by. The datagram is valid until the
// next call.
func (s *Source) parse(e *eal.Entry, now int64) (*frame.Datagram, frame.Reason) {
	g := s.group
	checks, reason := g.checksOf(e)
	if reason != frame.OK {
		return nil, reason
	}
	b := g.frame(*e)
	var flow *frame.Flow
	if e.Tag == 0 {
		if flow = s.recent.Find(b, checks); flow != nil && !flow.Stale(now) {
			return &flow.Datagram, frame.OK
		}
	}
	d := &s.parsed
	if flow != nil {
		d = &flow.Datagram
	} else {
		if reason := s.face.host.Parse(b, e.Tag, checks, d); reason != frame.OK {
			return nil, reason
		}
		if d.To.Port() != s.local.Port() {
			return nil, frame.ForeignPort
		}
		if e.Tag == 0 {
			flow = s.recent.Note(b, d)
		}
	}
	if flow != nil {
		s.recent.Told(flow, now)
	}
	s.learner.Learn(d, now)
	return d, frame.OK
}

// Release returns spans to the pool; see ingest.Source. It panics if a span is not held.
func (s *Source) Release(spans []ingest.Span) {
	g := s.group
	var mbufs [eal.Burst]uint64
	n := 0
	for _, span := range spans {
		if span.Length == 0 {
			continue
		}
		number, mbuf, ok := g.pool.Mbuf(span.Offset)
		if !ok || s.mine[number] == 0 {
			panic(slab.ErrReleasedTwice)
		}
		s.mine[number] = 0
		mbufs[n] = mbuf
		if n++; n == len(mbufs) {
			s.free(mbufs[:n])
			n = 0
		}
	}
	s.free(mbufs[:n])
}

func (s *Source) free(mbufs []uint64) {
	s.held.Add(-int64(len(mbufs))) // before the mbufs can be received again: see mine
	s.group.held.Add(-int64(len(mbufs)))
	s.group.pool.Free(mbufs)
}

// Stats reads the counters. KernelDrops counts frames that came faster than Receive took
// them. HeldBytes counts whole mbufs; SlabBytes is the memory that all sources share.
func (s *Source) Stats() ingest.Stats {
	s.mu.RLock()
	if !s.closed.Load() {
		s.full.Store(s.sink.Full())
	}
	s.mu.RUnlock()
	stride := uint64(s.group.pool.StrideBytes())
	return ingest.Stats{
		Datagrams: s.datagrams.Load(), Bytes: s.bytes.Load(),
		KernelDrops: s.full.Load(), NoRoom: s.noRoom.Load(),
		HeldBytes: uint64(s.held.Load()) * stride, SlabBytes: uint64(s.group.pool.Mbufs()) * stride,
	}
}

// Close ends a blocked Receive, and frees frames not received yet. Spans can still be
// released. Closing twice is harmless.
func (s *Source) Close() error {
	if s.closed.Swap(true) {
		return nil
	}
	g := s.group
	s.sink.Wake()
	err := g.detach(s.port.first())
	s.mu.Lock()
	s.full.Store(s.sink.Full())
	g.drain(s.sink)
	err = errors.Join(err, s.sink.Close())
	s.mu.Unlock()
	if err != nil {
		return fmt.Errorf("close UDP port %d of DPDK port %s: %w", s.local.Port(), g.options.Port, err)
	}
	return nil
}

// detach keeps frames out of the sources of a port. When it returns, no poller uses their
// sinks. Calls after the first do nothing.
func (g *Group) detach(first *Source) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if first.port.detached {
		return nil
	}
	first.port.detached = true
	delete(g.byPort, first.local.Port())
	g.publish()
	first.sink.Detach(first.local.Port())
	err := g.device.Unsteer(first.port.rules)
	if first.port.rules != nil {
		g.queues[first.queue.Load()] = false
	}
	for _, p := range g.pollers {
		p.Turn()
	}
	return err
}
