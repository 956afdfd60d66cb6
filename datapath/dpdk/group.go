//go:build dpdk && cgo

package dpdk

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/datapath/dpdk/eal"
	"github.com/penstock/penstock/datapath/dpdk/frame"
	"github.com/penstock/penstock/shm"
	"github.com/penstock/penstock/shm/cpuset"
)

const (
	// rxDescriptors per queue: 2 ms of 1 KB frames at 10 Gb/s.
	rxDescriptors = 2048
	// napOfVirtual is how long the poller of an idle virtual device sleeps. Meanwhile the
	// kernel, or another process, buffers its frames.
	napOfVirtual = 20 * time.Microsecond
	// neighbours is the min number of client addresses whose path the group remembers.
	neighbours = 1 << 14
	// environmentBytes is the part of DPDK's memory that DPDK itself uses. memoryShare is the
	// part of the rest that holds mbufs; the remainder is for their bookkeeping.
	environmentBytes = 8 << 20
	memoryShare      = 0.97
	// One of strayShare mbufs may wait for the group's own thread. A sender of strays that is
	// faster than this thread therefore takes no mbufs from the functions.
	strayShare = 4
	// firstFree is where Listen begins to search for a free port: the first port without
	// registration (RFC 6335 6).
	firstFree = 49152
	// watchEvery is the time between two checks of the link.
	watchEvery = 500 * time.Millisecond
)

// Group is an Ethernet port, with the sources that share it. Any goroutine may call its
// methods.
type Group struct {
	options Options
	device  *eal.Device
	pool    *eal.Pool
	taken   eal.Taken
	pollers []*eal.Poller
	face    atomic.Pointer[face]
	table   *frame.Neighbours
	checks  frame.Checks
	senders []sender // one per transmit queue

	mbufs
	frameCounts
	linkUp atomic.Bool

	control *eal.Sink
	closing atomic.Bool
	threads sync.WaitGroup

	mu sync.Mutex // guards the following
	functions
	closed bool
	before pastCounts
	// sources is the list for readers without the lock: replaced, never written.
	sources atomic.Pointer[[]*Source]
}

// mbufs bounds how many mbufs the owners of sources hold.
type mbufs struct {
	held     atomic.Int64
	capacity int64 // the max of held
	lowWater int64 // if fewer are left, requests are evicted
	// lowSince is when mbufs became few, or 0 if they are not few.
	lowSince atomic.Int64
}

// frameCounts counts frames by what became of them.
type frameCounts struct {
	reasons             [frame.Reasons]atomic.Uint64
	unsent, noNeighbour atomic.Uint64
}

// functions are the UDP ports, and what they occupy.
type functions struct {
	byPort  map[uint16]*Source // the first source of each port
	numbers [eal.MaxSinks]bool
	queues  []bool // whether rules lead to the queue
}

// pastCounts holds the counts of devices that have disappeared.
type pastCounts struct {
	missed, noMbuf uint64
	answered       frame.ResponderStats
}

// face is the port's network identity, and the responder that answers for it. A port that
// returns may have another Ethernet address.
type face struct {
	host      frame.Host
	responder *frame.Responder
}

func (g *Group) newFace(mac [6]byte) *face {
	host := frame.Host{MAC: mac, Addresses: g.options.Addresses}
	return &face{host, frame.NewResponder(host, g.table)}
}

// Open starts DPDK, takes the port and polls it. If something is missing, the error names it.
func Open(o Options) (*Group, error) {
	g, err := open(o)
	if err != nil {
		return nil, fmt.Errorf("open DPDK port %s: %w", o.Port, err)
	}
	return g, nil
}

func open(o Options) (_ *Group, err error) {
	if len(o.Addresses) == 0 {
		return nil, errors.New("no address: want source.dpdk.addresses")
	}
	if o.Queues == 0 {
		o.Queues = max(1, len(o.LCores))
	}
	of := describe(o.Port, o.Addresses[0], o.MTU, o.Queues)
	if err := startEnvironment(o, of); err != nil {
		return nil, err
	}
	g := &Group{options: o, table: frame.NewNeighbours(neighbours), functions: functions{byPort: map[uint16]*Source{}}}
	g.sources.Store(&[]*Source{})
	g.numbers[eal.Control] = true
	defer func() {
		if err != nil {
			err = errors.Join(err, g.close())
		}
	}()
	if g.device, err = eal.OpenDevice(of.spec); err != nil {
		return nil, err
	}
	info := g.device.Info()
	mbufs := o.Mbufs
	if mbufs == 0 {
		mbufs = int(float64(o.Memory-environmentBytes) * memoryShare / float64(eal.StrideBytes(of.frameBytes)))
	}
	if g.pool, err = eal.NewPool(poolName(), mbufs, of.frameBytes+eal.HeadroomBytes, info.Socket, info.PCI); err != nil {
		return nil, err
	}
	if g.taken, err = g.device.Configure(eal.Config{
		Queues: o.Queues, Descriptors: rxDescriptors, MTU: o.MTU,
		// A virtual device "offloads" in software anyway. It would verify a checksum before
		// the parser can accept it as unfilled.
		Checksums: info.PCI,
	}, g.pool); err != nil {
		return nil, err
	}
	if err := g.measure(info); err != nil {
		return nil, err
	}
	g.face.Store(g.newFace(info.MAC))
	if g.checks = frame.CheckIP | frame.CheckUDP; !info.PCI {
		g.checks |= frame.AllowUnfilled // the sender's kernel leaves them to a NIC, which a virtual device is not
	}
	g.senders = make([]sender, o.Queues)
	g.queues = make([]bool, o.Queues)
	return g, g.start(info)
}

// measure computes how many mbufs sources may hold.
func (g *Group) measure(info eal.Info) error {
	own := 0
	if info.PCI {
		// A NIC's receive descriptors hold mbufs. Its transmit queues keep what was sent
		// until they need the place.
		own = g.options.Queues * (g.taken.RxDescriptors + g.taken.TxDescriptors)
	}
	g.capacity = int64(g.pool.Mbufs() - own)
	if least := int64(g.options.Queues * eal.Burst); own > 0 && g.capacity < least {
		return fmt.Errorf("%d mbufs: the NIC's %d queues need %d themselves; configure more memory, or `mbufs: %d` or more", g.pool.Mbufs(), g.options.Queues, own, int64(own)+least)
	}
	g.lowWater = max(g.capacity/16, min(eal.Burst, g.capacity/8), 1)
	return nil
}

// start lets frames in, once the control sink and the pollers exist.
func (g *Group) start(info eal.Info) (err error) {
	nap := napOfVirtual
	if info.PCI {
		nap = 0
	}
	pollers := min(g.options.Queues, eal.FreeLcores())
	if pollers == 0 {
		return fmt.Errorf("poll: %w", eal.ErrNoLcore)
	}
	if g.control, err = g.device.NewSink(eal.Control, pollers, g.ringEntries()); err != nil {
		return err
	}
	g.device.SetStrays(max(g.pool.Mbufs()/strayShare/pollers, 1))
	g.device.SetBacklog(g.pool.Mbufs())
	g.control.Attach(0)
	for i := range pollers {
		var queues []int
		for q := i; q < g.options.Queues; q += pollers {
			queues = append(queues, q)
		}
		p, err := g.device.NewPoller(i, queues, g.options.BusyPoll, nap)
		if err != nil {
			return err
		}
		g.pollers = append(g.pollers, p)
	}
	if err := g.device.Start(); err != nil {
		return err
	}
	for _, p := range g.pollers {
		p.Start()
	}
	g.linkUp.Store(true) // until a check finds otherwise
	g.threads.Go(g.serve)
	return nil
}

// ringEntries is the size of a ring: it has room for every mbuf.
func (g *Group) ringEntries() int { return powerOfTwo(g.pool.Mbufs()) }

var pools atomic.Uint32

// poolName returns a name that no pool of this process had.
func poolName() string { return fmt.Sprintf("penstock%d", pools.Add(1)) }

// startEnvironment starts DPDK with the options. A process has one environment: if it runs
// already, it is used as it is, and a port reports what it lacks.
func startEnvironment(o Options, of device) error {
	cpus, err := cpuset.Allowed()
	if err != nil {
		return err
	}
	e := eal.Options{
		MainCPUs: cpuset.Format(cpus), MemoryMiB: o.Memory >> 20, NoHuge: !o.HugePages, Extra: o.EAL, Socket: -1,
	}
	pins := o.LCores
	if len(pins) == 0 && len(cpus) > o.Queues {
		pins = cpus[len(cpus)-o.Queues:] // the first CPUs usually take the interrupts
	}
	if !eal.Started() && (of.pci != "" || o.BusyPoll > 0) {
		// A thread that polls without a pause delays any other thread of this process on its
		// CPU by a scheduler slice, which is milliseconds. DPDK pins its own threads to the
		// other CPUs.
		if rest := without(cpus, pins); len(rest) > 0 && len(rest) < len(cpus) {
			if err := cpuset.Pin(rest); err != nil {
				return err
			}
			e.MainCPUs = cpuset.Format(rest)
		}
	}
	e.Lcores = lcores(o.Queues, pins, cpus)
	if of.pci != "" {
		e.Allow = []string{of.spec}
		e.Socket = socketOf(of.pci)
	}
	if err := eal.Start(e); !errors.Is(err, eal.ErrStarted) {
		return err
	}
	return nil
}

// lcores is DPDK's option for n threads. Each runs on one of pins, while there are any, else on
// any of cpus.
func lcores(n int, pins, cpus []int) string {
	var list []string
	for i := range n {
		where := "(" + cpuset.Format(cpus) + ")"
		if i < len(pins) {
			where = strconv.Itoa(pins[i])
		}
		list = append(list, fmt.Sprintf("%d@%s", i+1, where))
	}
	return strings.Join(list, ",")
}

// socketOf returns the socket of a PCI device, -1 if it is unknown.
func socketOf(pci string) int {
	node, err := os.ReadFile("/sys/bus/pci/devices/" + pci + "/numa_node")
	if err != nil {
		return -1
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(node)))
	if err != nil {
		return -1
	}
	return n
}

func without(cpus, others []int) []int {
	return slices.DeleteFunc(slices.Clone(cpus), func(cpu int) bool { return slices.Contains(others, cpu) })
}

// serve is the group's own thread. It answers and counts frames that no source takes, and
// watches the link.
func (g *Group) serve() {
	entries := make([]eal.Entry, eal.Burst)
	mbufs := make([]uint64, 0, eal.Burst)
	timeout := unix.NsecToTimespec(int64(watchEvery))
	next := int64(0)
	var say announcer
	for !g.closing.Load() {
		n := g.control.Take(entries)
		mbufs = mbufs[:0]
		now := shm.Now()
		for _, e := range entries[:n] {
			g.handle(e, now)
			mbufs = g.appendMbuf(mbufs, e)
		}
		g.pool.Free(mbufs)
		if now >= next {
			g.watch()
			if g.linkUp.Load() {
				say.tell(now, g.announce)
			} else {
				say = announcer{}
			}
			next = now + int64(watchEvery)
		}
		if n == 0 {
			if err := g.control.Sleep(&timeout); err != nil {
				g.options.Log.Error().Err(err).Msg("cannot wait for frames")
				time.Sleep(watchEvery)
			}
		}
	}
}

func (g *Group) appendMbuf(mbufs []uint64, e eal.Entry) []uint64 {
	if _, mbuf, ok := g.pool.Mbuf(e.At); ok {
		mbufs = append(mbufs, mbuf)
	}
	return mbufs
}

// frame returns the bytes of an entry.
func (g *Group) frame(e eal.Entry) []byte {
	return g.pool.Memory().Bytes()[e.At : e.At+uint64(e.Length) : e.At+uint64(e.Length)]
}

// parse parses a frame and reports whether it is for this port.
func (g *Group) parse(e eal.Entry, d *frame.Datagram) frame.Reason {
	checks, reason := g.checksOf(&e)
	if reason != frame.OK {
		return reason
	}
	return g.face.Load().host.Parse(g.frame(e), e.Tag, checks, d)
}

// checksOf returns the checksums of a frame that the NIC has not verified.
func (g *Group) checksOf(e *eal.Entry) (frame.Checks, frame.Reason) {
	checks := g.checks
	if e.Flags == 0 {
		return checks, frame.OK
	}
	if e.Flags&(eal.IPBad|eal.UDPBad) != 0 {
		return 0, frame.BadChecksum
	}
	if e.Flags&eal.IPGood != 0 {
		checks &^= frame.CheckIP
	}
	if e.Flags&eal.UDPGood != 0 {
		checks &^= frame.CheckUDP
	}
	return checks, frame.OK
}

// handle answers and counts a frame of the control sink.
func (g *Group) handle(e eal.Entry, now int64) {
	var d frame.Datagram
	reason := g.parse(e, &d)
	switch reason {
	case frame.OK:
		reason = frame.ForeignPort // if a source has the port now, it had not when the frame came
	case frame.ARP, frame.ICMP:
		g.answer(e, now)
	}
	g.reasons[reason].Add(1)
}

// answer sends what a kernel would answer.
func (g *Group) answer(e eal.Entry, now int64) {
	tag := uint16(0)
	if e.Flags&eal.Tagged != 0 {
		tag = e.Tag
	}
	if frame := g.face.Load().responder.Answer(now, g.frame(e), tag); frame != nil {
		g.sendFrame(frame)
	}
}

// sendFrame sends a frame, if it fits an mbuf.
func (g *Group) sendFrame(frame []byte) {
	q := &g.senders[0]
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(frame) > g.pool.FrameBytes() || g.pool.Alloc(q.mbufs[:1], q.data[:1]) != nil {
		g.unsent.Add(1)
		return
	}
	q.lengths[0], q.offloads[0] = uint32(copy(g.room(q.data[0]), frame)), 0
	if g.device.Send(0, q.mbufs[:1], q.lengths[:1], q.offloads[:1]) == 0 {
		g.unsent.Add(1)
	}
}

// room returns the memory for a frame in its mbuf, from the first byte of data.
func (g *Group) room(data uint64) []byte {
	return g.pool.Memory().Bytes()[data : data+uint64(g.pool.FrameBytes()) : data+uint64(g.pool.FrameBytes())]
}

// watch checks whether the link is still there. It releases a port that has disappeared, and
// takes it again when it returns: as a network interface of the same name, or as a card in
// the same slot.
func (g *Group) watch() {
	if g.device.Absent() {
		g.fetchBack()
	}
	gone := g.device.Absent() || g.device.Removed() || !g.device.InterfaceThere()
	up, mbps := g.device.Link()
	up = up && !gone
	was := g.linkUp.Swap(up)
	switch {
	case gone && g.pollers[0].Started(): // once, whatever the driver reports
		g.options.Log.Error().Str("port", g.options.Port).Msg("DPDK port has disappeared; receiving nothing until it is back")
		g.letGo()
	case up == was:
	case !up:
		g.options.Log.Warn().Str("port", g.options.Port).Msg("link of DPDK port is down")
	default:
		g.options.Log.Info().Str("port", g.options.Port).Int("mbps", mbps).Msg("link of DPDK port is up")
	}
}

// letGo stops everything that uses the device, and releases the device.
func (g *Group) letGo() {
	defer g.lockAll()()
	for _, p := range g.pollers {
		if !p.Started() {
			continue
		}
		if err := p.Stop(); err != nil {
			g.options.Log.Error().Err(err).Msg("cannot stop polling")
		}
	}
	if c, err := g.device.Counters(); err == nil {
		g.before.missed += c.Missed
		g.before.noMbuf += c.NoMbuf
	}
	if err := g.device.Leave(); err != nil {
		g.options.Log.Error().Err(err).Msg("restart the manager to use the DPDK port again")
		return
	}
	for _, s := range g.byPort {
		s.port.rules = nil
	}
	clear(g.queues)
}

// fetchBack takes the device again, if it is present.
func (g *Group) fetchBack() {
	if !g.device.InterfaceMade() {
		return
	}
	defer g.lockAll()()
	taken, err := g.device.Return()
	if err != nil {
		g.options.Log.Debug().Err(err).Msg("cannot reopen DPDK port yet")
		return
	}
	g.taken = taken
	old := g.face.Load()
	g.before.answered = sumAnswered(g.before.answered, old.responder.Stats())
	g.face.Store(g.newFace(g.device.Info().MAC))
	for _, s := range g.byPort {
		g.steerLocked(s)
	}
	for _, p := range g.pollers {
		p.Start()
	}
	g.options.Log.Info().Str("port", g.options.Port).Msg("DPDK port is back")
}

// lockAll prevents all other use of the device, until the returned function is called.
func (g *Group) lockAll() (unlock func()) {
	g.mu.Lock()
	for i := range g.senders {
		g.senders[i].mu.Lock()
	}
	return func() {
		for i := range g.senders {
			g.senders[i].mu.Unlock()
		}
		g.mu.Unlock()
	}
}

func sumAnswered(a, b frame.ResponderStats) frame.ResponderStats {
	return frame.ResponderStats{ARP: a.ARP + b.ARP, Neighbour: a.Neighbour + b.Neighbour, Echo: a.Echo + b.Echo, Conflicts: a.Conflicts + b.Conflicts}
}

// announcer decides when to announce the port's addresses after its link has come up. It
// announces several times, doubling the wait each time, because a slow switch loses the first
// announcements. (RFC 5227 2.3 and RFC 4861 7.2.6 have two and three.) Its zero value starts
// over.
type announcer struct {
	next, wait int64
	told       int
}

const (
	announcements = 5
	announceAfter = time.Second
)

func (a *announcer) tell(now int64, announce func()) {
	if a.told == announcements || now < a.next {
		return
	}
	announce()
	a.told++
	a.wait = max(2*a.wait, int64(announceAfter))
	a.next = now + a.wait
}

// announce tells the network which Ethernet address has the IP addresses.
func (g *Group) announce() {
	for _, frame := range g.face.Load().responder.Announcements() {
		g.sendFrame(frame)
	}
}

// low reports whether a source must evict requests, because mbufs are few.
func (g *Group) low(s *Source) bool {
	sources := *g.sources.Load()
	free := g.capacity - g.held.Load()
	for _, other := range sources {
		if other != s { // its own frames are in memory already, and may complete requests
			free -= int64(other.waiting.Load())
		}
	}
	if free >= g.lowWater {
		if g.lowSince.Load() != 0 {
			g.lowSince.Store(0)
		}
		return false
	}
	now := shm.Now()
	since := g.lowSince.Load()
	if since == 0 {
		g.lowSince.CompareAndSwap(0, now)
		since = now
	}
	most := s.port.first()
	for _, other := range sources {
		if other == other.port.first() && other.heldByAll() > most.heldByAll() {
			most = other
		}
	}
	most = most.holder()
	if most != s {
		most.ask()
	}
	return s.held.Load() > 0 && (most == s || now-since > int64(lowPatience))
}

// heldByAll returns how many mbufs the sources of s's port hold.
func (s *Source) heldByAll() (n int64) {
	for _, m := range s.port.members {
		n += m.held.Load()
	}
	return n
}

// holder returns the source of s's port that holds the most.
func (s *Source) holder() *Source {
	most := s
	for _, m := range s.port.members {
		if m.held.Load() > most.held.Load() {
			most = m
		}
	}
	return most
}

// lowPatience is how long only the source that holds the most is asked for mbufs.
const lowPatience = time.Millisecond

// Stats reads the counters.
func (g *Group) Stats() GroupStats {
	var s GroupStats
	for i := range s.Frames {
		s.Frames[i] = g.reasons[i].Load()
	}
	s.Unsent, s.NoNeighbour = g.unsent.Load(), g.noNeighbour.Load()
	s.LinkUp = g.linkUp.Load()
	g.mu.Lock()
	defer g.mu.Unlock()
	s.Answered = sumAnswered(g.before.answered, g.face.Load().responder.Stats())
	if g.closed {
		return s
	}
	s.Missed, s.NoMbuf = g.before.missed, g.before.noMbuf
	if c, err := g.device.Counters(); err == nil { // drivers without counters add nothing
		s.Missed += c.Missed
		s.NoMbuf += c.NoMbuf
	}
	for _, p := range g.pollers {
		dropped := p.Dropped()
		s.Frames[frame.Scattered] += dropped.Scattered
		s.Missed += dropped.Full
		s.NoMbuf += dropped.NoCopy
	}
	s.Mbufs = uint64(g.pool.Mbufs())
	s.MbufsHeld = s.Mbufs - uint64(g.pool.Available())
	return s
}

// Close closes the port. Its sources must be closed, and CloseSlab of each called.
func (g *Group) Close() error {
	g.mu.Lock()
	open, closed := len(g.byPort), g.closed
	g.closed = open == 0 // no source opens or closes meanwhile
	g.mu.Unlock()
	switch {
	case closed:
		return nil
	case open > 0:
		return fmt.Errorf("close DPDK port %s: %d of its sources are open", g.options.Port, open)
	}
	if err := g.close(); err != nil {
		return fmt.Errorf("close DPDK port %s: %w", g.options.Port, err)
	}
	return nil
}

// close undoes the steps of open that were done.
func (g *Group) close() (err error) {
	for _, p := range g.pollers {
		if p.Started() {
			err = errors.Join(err, p.Stop())
		}
	}
	g.closing.Store(true)
	if g.control != nil {
		g.control.Wake()
		g.threads.Wait()
		g.drain(g.control)
		g.control.Detach(0)
		err = errors.Join(err, g.control.Close())
	}
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	for _, p := range g.pollers {
		p.Close()
	}
	if g.device != nil {
		err = errors.Join(err, g.device.Close())
	}
	if g.pool != nil {
		if held := g.held.Load(); held != 0 {
			// Their owners may still read them: losing them is better than overwriting them.
			return errors.Join(err, fmt.Errorf("%d mbufs were not given back", held))
		}
		err = errors.Join(err, g.pool.Close())
	}
	return err
}

// drain frees what is in a sink that is no longer filled or read.
func (g *Group) drain(sink *eal.Sink) {
	var entries [eal.Burst]eal.Entry
	var mbufs [eal.Burst]uint64
	for n := sink.Take(entries[:]); n > 0; n = sink.Take(entries[:]) {
		list := mbufs[:0]
		for _, e := range entries[:n] {
			list = g.appendMbuf(list, e)
		}
		g.pool.Free(list)
	}
}

// address is the first of the group's addresses of a family, not valid if there is none.
func (g *Group) address(family netip.Addr) netip.Addr {
	for _, a := range g.options.Addresses {
		if a.BitLen() == family.BitLen() {
			return a
		}
	}
	return netip.Addr{}
}
