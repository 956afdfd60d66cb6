package udp

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/datapath/ingest"
	"github.com/penstock/penstock/datapath/slab"
	"github.com/penstock/penstock/shm"
)

// Defaults of Options.
const (
	// defaultSlabBytes holds 60 pictures of 519 KB twice.
	defaultSlabBytes = 64 << 20
	// defaultRecvBuffer holds some milliseconds of a stream of 10 Gb/s while the receiving
	// thread does not run.
	defaultRecvBuffer = 16 << 20
	// defaultBatchMessages chains of 64 KiB are 1 MiB. That stays in a second-level cache
	// between the kernel's copy and the next read of the data.
	defaultBatchMessages = 16
)

// maxBatchMessages is the kernel's limit for one recvmmsg (UIO_MAXIOV).
const maxBatchMessages = 1024

// noRoomPause is how long Receive waits for spans to be released when the slab is full.
const noRoomPause = time.Millisecond

// Options of a source. Zero values mean the defaults.
type Options struct {
	// Listen is the address and port; port 0 takes a free one. An unspecified IPv6 address
	// also receives IPv4.
	Listen netip.AddrPort
	// SlabBytes is the size of the memory for datagrams, for all sources of the port
	// together.
	SlabBytes int
	// HugePages puts the slab on huge pages if enough are free.
	HugePages bool
	// RecvBuffer is the requested size of the socket's receive buffer in bytes. The kernel
	// may grant less (net.core.rmem_max, unless the process has CAP_NET_ADMIN).
	RecvBuffer int
	// BatchMessages is the max number of messages per read. A message is a chain of
	// datagrams.
	BatchMessages int
	// BusyPoll is how long Receive polls the socket before it sleeps.
	BusyPoll time.Duration
	// NoGRO keeps the kernel from chaining datagrams.
	NoGRO bool
	// NoShedding leaves it to the kernel what to drop when more arrives than is received.
	NoShedding bool
	// OnOverrun, if set, is called when one of the sources begins or ends to shed requests,
	// and when it cannot shed. Receive calls it; it must not block.
	OnOverrun func(Overrun)
}

// Source is a UDP socket with its slab or its part of a slab. It implements ingest.Source.
type Source struct {
	options Options
	slab    *slab.Slab
	local   netip.AddrPort
	inet6   bool
	gro     bool // the kernel chains datagrams
	// recvBuffer is the size that the kernel granted, in its bytes: twice the requested size,
	// for overhead.
	recvBuffer int

	// mu is held for reading while the descriptors are used, and for writing by Close.
	mu     sync.RWMutex
	closed atomic.Bool
	socket int
	event  int // an eventfd that Close makes readable

	busyPoll int64 // nanoseconds

	reader  reader
	shedder *shedder

	senders [sendersOfSource]sender

	counters
}

// counters are the source's part of ingest.Stats.
type counters struct {
	datagrams, bytes, truncated, noRoom atomic.Uint64
	// kernelDrops is the socket's 32-bit counter, unwrapped.
	kernelDrops atomic.Uint64
}

var _ ingest.Source = (*Source)(nil)

// maxSources is the max number of sources per port.
const maxSources = 16

// Open binds n sources to one port and makes their slab. The kernel spreads the clients over
// their sockets by a hash of addresses and ports (SO_REUSEPORT). Each source therefore serves
// some of the clients, and receives all that these send, until one source is closed. All have
// one slab, of which each receives into an equal part. The caller closes each source and each
// part of the slab (CloseSlab). The errors explain a port in use, and an address that is not
// this machine's.
func Open(o Options, n int) ([]*Source, error) {
	if n < 1 || n > maxSources {
		return nil, fmt.Errorf("open UDP source %v: %d sources: want 1 to %d", o.Listen, n, maxSources)
	}
	if !o.Listen.IsValid() {
		return nil, errors.New("open UDP source: no address to listen on")
	}
	o.SlabBytes = cmp.Or(o.SlabBytes, defaultSlabBytes)
	o.RecvBuffer = cmp.Or(o.RecvBuffer, defaultRecvBuffer)
	o.BatchMessages = cmp.Or(o.BatchMessages, defaultBatchMessages)
	if o.BatchMessages < 1 || o.BatchMessages > maxBatchMessages {
		return nil, fmt.Errorf("open UDP source %v: %d messages per batch: want 1 to %d", o.Listen, o.BatchMessages, maxBatchMessages)
	}
	all, err := open(o, n)
	if err != nil {
		return nil, fmt.Errorf("open UDP source %v: %w", o.Listen, err)
	}
	return all, nil
}

func open(o Options, n int) (all []*Source, err error) {
	defer func() {
		if err != nil {
			for _, s := range all {
				err = errors.Join(err, s.closeDescriptors())
			}
			all = nil
		}
	}()
	for i := range n {
		s := &Source{options: o, socket: -1, event: -1, busyPoll: int64(o.BusyPoll), inet6: !o.Listen.Addr().Unmap().Is4()}
		all = append(all, s)
		if err := s.listen(o, i, n); err != nil {
			return all, err
		}
		if s.event, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
			return all, fmt.Errorf("make eventfd: %w", err)
		}
		s.reader = newReader(o.BatchMessages)
		s.shedder = newShedder(s.recvBuffer, &o, i)
		for i := range s.senders {
			s.senders[i].init()
		}
		// The other sources use the port that the first one got.
		o.Listen = netip.AddrPortFrom(o.Listen.Addr(), s.LocalAddr().Port())
	}
	slabs, err := slab.New(fmt.Sprintf("udp-%d", o.Listen.Port()), o.SlabBytes, n, o.HugePages)
	if err != nil {
		return all, err
	}
	for i, s := range all {
		s.slab = slabs[i]
	}
	if n > 1 {
		for _, s := range all {
			if err := unix.SetsockoptInt(s.socket, unix.SOL_SOCKET, unix.SO_DETACH_FILTER, 0); err != nil {
				return all, errors.Join(fmt.Errorf("accept datagrams: %w", err), closeSlabs(slabs))
			}
		}
	}
	return all, nil
}

func closeSlabs(slabs []*slab.Slab) (err error) {
	for _, s := range slabs {
		err = errors.Join(err, s.Close())
	}
	return err
}

// listen makes the socket, number i of n on its port. SO_REUSEADDR stays off, and so does
// SO_REUSEPORT for a single socket: with them a second manager could share the port
// unnoticed. For the same reason the first of several sockets is bound without SO_REUSEPORT.
// The bind fails if the port is in use. Only then does the first socket allow the others.
//
// With each socket that is bound, the kernel may assign a client to another socket. Therefore
// none of several sockets accepts datagrams until all are bound. Earlier datagrams are
// dropped, and their clients send them again.
func (s *Source) listen(o Options, i, n int) (err error) {
	family := unix.AF_INET
	if s.inet6 {
		family = unix.AF_INET6
	}
	s.socket, err = unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_UDP)
	if err != nil {
		return fmt.Errorf("make socket: %w", err)
	}
	if s.inet6 {
		only := 1
		if o.Listen.Addr().IsUnspecified() {
			only = 0
		}
		if err := unix.SetsockoptInt(s.socket, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, only); err != nil {
			return fmt.Errorf("set IPV6_V6ONLY: %w", err)
		}
	}
	if s.recvBuffer, err = setRecvBuffer(s.socket, o.RecvBuffer); err != nil {
		return err
	}
	// UDP_GRO exists since Linux 5.0. Without it each message is one datagram.
	s.gro = !o.NoGRO && unix.SetsockoptInt(s.socket, unix.SOL_UDP, unix.UDP_GRO, 1) == nil
	// Since Linux 5.1; without it, how long a datagram has waited is unknown.
	_ = unix.SetsockoptInt(s.socket, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS_NEW, 1)
	return s.bind(o, i, n)
}

// bind binds the socket, source i of n.
func (s *Source) bind(o Options, i, n int) error {
	address, err := bindAddress(o.Listen)
	if err != nil {
		return err
	}
	if n > 1 {
		if err := unix.SetsockoptSockFprog(s.socket, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &nothing); err != nil {
			return fmt.Errorf("block datagrams: %w", err)
		}
	}
	if i > 0 {
		if err := share(s.socket); err != nil {
			return err
		}
	}
	if err := unix.Bind(s.socket, address); err != nil {
		return explainBind(o.Listen, err)
	}
	if i == 0 && n > 1 {
		if err := share(s.socket); err != nil {
			return err
		}
	}
	bound, err := unix.Getsockname(s.socket)
	if err != nil {
		return fmt.Errorf("read bound address: %w", err)
	}
	s.local = boundAddress(bound, o.Listen.Addr().Zone())
	return nil
}

// share allows other sockets of this user to bind the same port.
func share(socket int) error {
	if err := unix.SetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err != nil {
		return fmt.Errorf("set SO_REUSEPORT: %w", err)
	}
	return nil
}

// nothing is a socket filter that accepts nothing: one instruction that returns 0, the number
// of bytes to keep.
var nothing = unix.SockFprog{Len: 1, Filter: &unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K}}

// setRecvBuffer requests a receive buffer and returns the granted size. The kernel counts
// payload and overhead.
func setRecvBuffer(socket, size int) (int, error) {
	if unix.SetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, size) != nil {
		if err := unix.SetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_RCVBUF, size); err != nil {
			return 0, fmt.Errorf("set receive buffer of %d bytes: %w", size, err)
		}
	}
	granted, err := unix.GetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_RCVBUF)
	if err != nil {
		return 0, fmt.Errorf("read receive buffer size: %w", err)
	}
	return granted, nil
}

// explainBind says what to do about a port that cannot be bound.
func explainBind(at netip.AddrPort, err error) error {
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		return fmt.Errorf("port %d is in use by another process; find it with ss -ulpn 'sport = :%d' and stop it, or configure another port: %w", at.Port(), at.Port(), err)
	case errors.Is(err, unix.EADDRNOTAVAIL):
		return fmt.Errorf("%v is not an address of this machine; list them with `ip address`: %w", at.Addr(), err)
	case errors.Is(err, unix.EACCES):
		return fmt.Errorf("port %d needs CAP_NET_BIND_SERVICE; configure one above 1023: %w", at.Port(), err)
	}
	return fmt.Errorf("bind: %w", err)
}

// Slab is the memory that receives the datagrams. It stays mapped after Close, because spans
// may still be in use. The code that opened the source closes it after its last use
// (CloseSlab).
func (s *Source) Slab() shm.Memory { return s.slab }

// CloseSlab unmaps the slab after Close. Its bytes must not be used afterwards, and Release
// must not be called.
func (s *Source) CloseSlab() error { return s.slab.Close() }

// LocalAddr is the address that the source listens on, with the actual port.
func (s *Source) LocalAddr() netip.AddrPort { return s.local }

// Release returns spans to the slab; see ingest.Source. It panics if a span is not held.
func (s *Source) Release(spans []ingest.Span) { s.slab.Release(spans) }

// Stats reads the counters. KernelDrops is the socket's current count, in which a dropped
// chain counts as one.
func (s *Source) Stats() ingest.Stats {
	s.mu.RLock()
	if !s.closed.Load() {
		s.readDrops()
	}
	s.mu.RUnlock()
	return ingest.Stats{
		Datagrams:   s.datagrams.Load(),
		Bytes:       s.bytes.Load(),
		KernelDrops: s.kernelDrops.Load(),
		Shedding:    1 - float64(s.shedder.steps.Load())/filterSteps,
		Truncated:   s.truncated.Load(),
		NoRoom:      s.noRoom.Load(),
		HeldBytes:   s.slab.HeldBytes(),
		SlabBytes:   uint64(s.slab.Room()),
	}
}

func (s *Source) readDrops() {
	if _, drops, ok := socketQueue(s.socket); ok {
		s.noteDrops(drops)
	}
}

// noteDrops processes a reading of the socket's counter, which wraps and may be older than
// the reading before.
func (c *counters) noteDrops(reading uint32) {
	for {
		known := c.kernelDrops.Load()
		more := int32(reading - uint32(known))
		if more <= 0 || c.kernelDrops.CompareAndSwap(known, known+uint64(more)) {
			return
		}
	}
}

// one is a 64-bit 1 for an eventfd, in either byte order.
var one = [8]byte{1, 0, 0, 0, 0, 0, 0, 1}

// Close ends a blocked Receive, waits until the socket is not in use, and closes it. The slab
// stays mapped. Closing twice is harmless.
func (s *Source) Close() error {
	if s.closed.Swap(true) {
		return nil
	}
	_, _ = unix.Write(s.event, one[:]) // it is readable from now on
	s.mu.Lock()
	defer s.mu.Unlock()
	s.readDrops()
	if err := s.closeDescriptors(); err != nil {
		return fmt.Errorf("close UDP source %v: %w", s.LocalAddr(), err)
	}
	return nil
}

func (s *Source) closeDescriptors() (err error) {
	for _, fd := range []int{s.socket, s.event} {
		if fd >= 0 {
			err = errors.Join(err, unix.Close(fd))
		}
	}
	return err
}
