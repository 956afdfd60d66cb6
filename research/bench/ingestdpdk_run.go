//go:build dpdk && cgo

package bench

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/datapath/aggregate"
	"github.com/penstock/penstock/datapath/dpdk"
	"github.com/penstock/penstock/datapath/ingest"
	"github.com/penstock/penstock/research/generate"
	"github.com/penstock/penstock/shm"
	"github.com/penstock/penstock/wire"
)

// benchMemory is the packet memory of every measured port. DPDK starts once per process,
// with one size.
const benchMemory = 256 << 20

// The function's address, the client's, and its UDP port.
var (
	dpdkTo   = netip.MustParseAddrPort("10.77.0.2:9000")
	dpdkFrom = netip.MustParseAddrPort("10.77.0.1:5000")
)

// RunIngestDPDK measures one core with a port of memory. Depending on the options it also
// measures the ports of this machine, and runs the soak.
func RunIngestDPDK(ctx context.Context, o DPDKOptions) (IngestDPDK, error) {
	r := IngestDPDK{Machine: o.Machine, Memory: "ordinary pages"}
	if hugeEnough() {
		r.Memory = "huge pages"
	}
	for _, fragments := range []int{147, 507} {
		for _, whole := range []bool{false, true} {
			o.report(fmt.Sprintf("one core, %d pieces", fragments))
			c, err := oneCore(ctx, generate.Traffic{From: dpdkFrom, To: dpdkTo, Fragments: fragments, FragmentBytes: 1024, Complete: whole}, o.Each)
			if err != nil {
				return r, err
			}
			r.OneCore = append(r.OneCore, c)
		}
	}
	if o.Ports {
		var err error
		if r.Ports, err = measurePorts(ctx, o); err != nil {
			return r, err
		}
	}
	if o.Soak > 0 {
		s, err := soak(ctx, o)
		if err != nil {
			return r, err
		}
		r.Soak = &s
	}
	return r, nil
}

// hugeEnough reports whether the machine has enough free huge pages for benchMemory and
// for DPDK itself.
func hugeEnough() bool {
	text, err := os.ReadFile("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages")
	if err != nil {
		return false
	}
	free, err := strconv.Atoi(strings.TrimSpace(string(text)))
	return err == nil && free<<21 >= benchMemory+64<<20
}

// openPort opens a port with one function's source.
func openPort(device string, mbufs int) (g *dpdk.Group, s *dpdk.Source, err error) {
	g, err = dpdk.Open(dpdk.Options{
		Port: device, Addresses: []netip.Addr{dpdkTo.Addr()}, Queues: 1, MTU: 1500,
		Memory: benchMemory, HugePages: hugeEnough(), Mbufs: mbufs, Log: zerolog.Nop(),
	})
	if err != nil {
		return nil, nil, err
	}
	all, err := g.Listen(dpdkTo.Port(), 1)
	if err != nil {
		return nil, nil, errors.Join(err, g.Close())
	}
	return g, all[0], nil
}

// manyMbufs hold 64 requests of 507 fragments. fewMbufs suffice on one core, because
// every request is answered as soon as it is complete.
const (
	manyMbufs = 40000
	fewMbufs  = 4096
)

// ingestEnd is an aggregator that answers each request as soon as it is complete.
type ingestEnd struct {
	table     *shm.Table
	aggregate *aggregate.Aggregator
	events    aggregate.Events
	answer    wire.Result
	batch     []ingest.Datagram
	src       ingest.Source
	noRoom    uint64
	hold      time.Duration // from complete to answered, in receive
	held      []heldSlot
}

func newIngestEnd(src ingest.Source, fragments, fragmentBytes int, slo, deadline time.Duration) (*ingestEnd, error) {
	g := shm.Geometry{Slots: 64, MaxFragments: uint32(2 * fragments), ResultBytes: 64, PoolBytes: 64 * 64}
	table, err := shm.NewTable("penstock-bench", g)
	if err != nil {
		return nil, err
	}
	return &ingestEnd{
		table: table, src: src, batch: make([]ingest.Datagram, 256), answer: wire.Result{Kind: wire.KindRaw},
		aggregate: aggregate.NewSeveral(1, aggregate.Config{
			Slots: int(g.Slots), RequestBytes: fragments * fragmentBytes, MaxFragments: int(g.MaxFragments), MinFragmentBytes: fragmentBytes,
			SLO: slo, Deadline: deadline,
		}, src.Slab().Bytes(), table)[0],
	}, nil
}

// turn receives at most until the deadline, and answers complete requests.
func (e *ingestEnd) turn(deadline int64) (int, error) {
	n, err := e.src.Receive(e.batch, deadline)
	if err != nil {
		return 0, fmt.Errorf("receive: %w", err)
	}
	now := shm.Now()
	e.events.Reset()
	e.aggregate.Add(now, e.batch[:n], &e.events)
	for _, slot := range e.events.Complete {
		e.aggregate.End(now, slot, &e.answer, nil, &e.events)
	}
	e.src.Release(e.events.Release)
	return n, nil
}

// receive is one turn of a node's receive thread. It waits at most that long, ends
// expired requests, and evicts if memory is short.
func (e *ingestEnd) receive(wait time.Duration) (int, error) {
	n, err := e.src.Receive(e.batch, shm.Now()+int64(wait))
	if err != nil {
		return 0, fmt.Errorf("receive: %w", err)
	}
	starved := false
	if n == 0 {
		had := e.src.Stats().NoRoom
		starved, e.noRoom = had != e.noRoom, had
	}
	now := shm.Now()
	e.events.Reset()
	e.aggregate.Add(now, e.batch[:n], &e.events)
	if next := e.aggregate.NextDeadline(); next != 0 && next <= now {
		e.aggregate.Expire(now, &e.events)
	}
	if starved {
		e.aggregate.EvictOldest(now, &e.events)
	}
	for _, slot := range e.events.Complete {
		e.held = append(e.held, heldSlot{slot, now})
	}
	for len(e.held) > 0 && now-e.held[0].since >= int64(e.hold) {
		e.aggregate.End(now, e.held[0].slot, &e.answer, nil, &e.events)
		e.held = slices.Delete(e.held, 0, 1)
	}
	e.src.Release(e.events.Release)
	return n, nil
}

// empty receives until nothing has arrived for a while, and releases everything.
func (e *ingestEnd) empty() error {
	e.hold = 0
	for quiet := 0; quiet < 10; quiet++ {
		n, err := e.receive(10 * time.Millisecond)
		if err != nil {
			return err
		}
		if n > 0 {
			quiet = 0
		}
		e.events.Reset()
		for e.aggregate.EvictOldest(shm.Now(), &e.events) {
		}
		e.src.Release(e.events.Release)
	}
	return nil
}

// heldSlot is a request that became complete at that time.
type heldSlot struct {
	slot  uint32
	since int64
}

// burstsATurn is how many bursts are polled before the frames are processed: the batch of
// a receive thread.
const burstsATurn = 4

// passed is a deadline that has passed.
const passed = 1

func oneCore(ctx context.Context, t generate.Traffic, each time.Duration) (c OneCore, err error) {
	c = OneCore{Fragments: t.Fragments, FragmentBytes: t.FragmentBytes, Frames: "headers"}
	if t.Complete {
		c.Frames = "whole"
	}
	device := t.Device()
	group, src, err := openPort(device, fewMbufs)
	if err != nil {
		return c, err
	}
	defer func() {
		err = errors.Join(err, src.Close(), src.CloseSlab(), group.Close())
	}()
	end, err := newIngestEnd(src, t.Fragments, t.FragmentBytes, 10*time.Second, 0)
	if err != nil {
		return c, err
	}
	defer end.table.Close()
	var failed error
	err = group.Inline(func(poll func(int)) {
		g, err := generate.Attach(device, 0, t)
		if err != nil {
			failed = err
			return
		}
		failed = errors.Join(c.measure(ctx, g, end, poll, each), g.Close())
	})
	return c, errors.Join(err, failed)
}

// measure alternates between our code and the bare loop, on the calling thread.
func (c *OneCore) measure(ctx context.Context, g *generate.Generator, end *ingestEnd, poll func(int), each time.Duration) error {
	var failed error
	ours := func() {
		poll(burstsATurn)
		if _, err := end.turn(passed); err != nil {
			failed = err
		}
	}
	bare := func() { g.Drain(burstsATurn) }
	reading := func() { g.DrainRead(burstsATurn) }
	// during runs one of them for that long, and then to the end of the current request,
	// so that the other begins with a new one.
	during := func(step func(), length time.Duration) (perSecond float64, frames uint64) {
		g.Allow(generate.Forever)
		made, begin := g.Made(), coreTime()
		for until := shm.Now() + int64(length); shm.Now() < until && failed == nil; {
			step()
		}
		took := coreTime() - begin
		frames = g.Made() - made
		last := (g.Made()/uint64(c.Fragments) + 1) * uint64(c.Fragments)
		g.Allow(last)
		for g.Made() < last && failed == nil {
			step()
		}
		step()
		return float64(frames) / took.Seconds(), g.Made() - made
	}
	slice := each / (3 * ingestRounds)
	during(ours, slice/2)
	during(bare, slice/2)
	var rates, floors, ratios, reads, readRatios []float64
	var datagrams, mallocs uint64
	wholeBefore := end.aggregate.Stats().Complete
	var before, after runtime.MemStats
	for range ingestRounds {
		if err := ctx.Err(); err != nil {
			return err
		}
		floor, _ := during(bare, slice)
		second, _ := during(reading, slice)
		runtime.ReadMemStats(&before)
		rate, frames := during(ours, slice)
		runtime.ReadMemStats(&after)
		mallocs += after.Mallocs - before.Mallocs
		datagrams += frames
		rates, floors, ratios = append(rates, rate), append(floors, floor), append(ratios, rate/floor)
		reads, readRatios = append(reads, second), append(readRatios, rate/second)
	}
	c.DatagramsPerSecond, c.BareDatagramsPerSecond, c.Ratio = median(rates), median(floors), median(ratios)
	c.ReadDatagramsPerSecond, c.RatioRead = median(reads), median(readRatios)
	c.AllocsPerDatagram = float64(mallocs) / float64(datagrams)
	c.Requests = end.aggregate.Stats().Complete - wholeBefore
	c.Lost = datagrams/uint64(c.Fragments) - c.Requests
	return failed
}

// coreTime returns the CPU time of this thread. Other programs on the same core count for
// neither our code nor the floor.
func coreTime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		panic(err) // every Linux has this clock
	}
	return time.Duration(t.Nano())
}

// soak runs the port as a node does for o.Soak: an lcore polls and a thread receives. It
// holds complete requests for some turns. From time to time the receiver pauses, so that
// frames are missed and requests stay incomplete.
func soak(ctx context.Context, o DPDKOptions) (s Soak, err error) {
	o.report("soak for " + o.Soak.String())
	t := generate.Traffic{From: dpdkFrom, To: dpdkTo, Fragments: 147, FragmentBytes: 1024}
	device := t.Device()
	group, src, err := openPort(device, manyMbufs)
	if err != nil {
		return s, err
	}
	defer func() {
		err = errors.Join(err, src.Close(), src.CloseSlab(), group.Close())
	}()
	end, err := newIngestEnd(src, t.Fragments, t.FragmentBytes, time.Second, 100*time.Millisecond)
	if err != nil {
		return s, err
	}
	defer end.table.Close()
	g, err := generate.Attach(device, 0, t)
	if err != nil {
		return s, err
	}
	g.Allow(generate.Forever)
	begin := time.Now()
	err = end.soak(ctx, begin.Add(o.Soak), g)
	s.Seconds = time.Since(begin).Seconds()
	// Read the counters while no lcore polls: without the generator the device produces
	// its own frames.
	var stats dpdk.GroupStats
	failed := group.Inline(func(func(int)) {
		err = errors.Join(err, g.Close())
		stats = group.Stats()
	})
	a := end.aggregate.Stats()
	s.Datagrams, s.Requests, s.Missed = a.Datagrams, a.Complete, stats.Missed
	s.Incomplete = a.Evicted + a.Incomplete
	s.Mbufs, s.MbufsAbsent = stats.Mbufs, stats.MbufsHeld
	return s, errors.Join(err, failed)
}

// Settings of the soak: how long a complete request is held, how often the receiver
// pauses, and for how long.
const (
	heldFor   = time.Millisecond
	restEvery = time.Second
	restFor   = 20 * time.Millisecond
)

// soak receives until that time, and then until everything has been returned.
func (e *ingestEnd) soak(ctx context.Context, until time.Time, g *generate.Generator) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	e.hold = heldFor
	rest := time.Now().Add(restEvery)
	for now := time.Now(); now.Before(until) && ctx.Err() == nil; now = time.Now() {
		if now.After(rest) {
			time.Sleep(restFor)
			rest = now.Add(restEvery)
		}
		if _, err := e.receive(10 * time.Millisecond); err != nil {
			return err
		}
	}
	g.Allow(0)
	return errors.Join(e.empty(), context.Cause(ctx))
}

func (o *DPDKOptions) report(what string) {
	if o.Progress != nil {
		o.Progress(what)
	}
}
