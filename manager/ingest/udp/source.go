package udp

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/manager/ingest"
	"github.com/penstock/penstock/manager/ingest/slab"
	"github.com/penstock/penstock/shm"
)

// Defaults of Options.
const (
	// defaultSlabBytes holds 60 pictures of 519 KB twice over.
	defaultSlabBytes = 64 << 20
	// defaultRecvBuffer bridges some milliseconds of a stream of 10 Gb/s in which
	// the receiving thread does not run.
	defaultRecvBuffer = 16 << 20
	// defaultBatchMessages chains of 64 KiB are 1 MiB, which stays in a
	// second-level cache between the kernel's copy and the reader.
	defaultBatchMessages = 16
)

// maxBatchMessages is the kernel's limit for one recvmmsg (UIO_MAXIOV).
const maxBatchMessages = 1024

// noRoomPause is how long Receive lets others release when the slab is full.
const noRoomPause = time.Millisecond

// Options of a source. Zero values mean the defaults.
type Options struct {
	// Listen is the address and port; port 0 takes a free one. An unspecified
	// IPv6 address receives IPv4 too.
	Listen netip.AddrPort
	// SlabBytes is the size of the memory for datagrams, of all sources of the port.
	SlabBytes int
	// HugePages puts the slab on huge pages where there are some.
	HugePages bool
	// RecvBuffer is the socket's receive buffer in bytes, as far as the kernel
	// grants it (net.core.rmem_max, unless the process has CAP_NET_ADMIN).
	RecvBuffer int
	// BatchMessages is how many messages, chains of datagrams each, one read may
	// bring.
	BatchMessages int
	// BusyPoll is how long Receive looks at the socket before it sleeps.
	BusyPoll time.Duration
	// NoGRO leaves the datagrams unchained even where the kernel could.
	NoGRO bool
	// NoShedding leaves it to the kernel what is dropped when more comes than is received.
	NoShedding bool
	// OnOverrun is told, if set, when one of the sources begins and ends to have requests
	// shed, and when it cannot. Receive calls it; it does not block.
	OnOverrun func(Overrun)
}

// Source is a UDP socket with its slab, or its part of one. It implements ingest.Source.
type Source struct {
	options Options
	slab    *slab.Slab
	local   atomic.Pointer[netip.AddrPort]
	inet6   bool
	gro     bool
	// recvBuffer is what the kernel granted.
	recvBuffer int

	// mu is held for reading by whoever uses the descriptors, and for writing by
	// Close and a Move.
	mu      sync.RWMutex
	awaited atomic.Int32 // Moves that wait for mu: Receive does not sleep with it
	closed  atomic.Bool
	socket  int
	event   int
	// former is the socket of the port before a Move, until it is closed, else -1; moves counts
	// Moves. clients are those of the new port while both are open.
	former  int
	moves   int
	clients clientSet

	busyPoll int64 // nanoseconds

	reader  reader
	shedder *shedder

	senders [sendersOfSource]sender

	datagrams, bytes, truncated, noRoom atomic.Uint64
	// kernelDrops is the socket's 32-bit counter, unwrapped, and the drops before the last Move.
	kernelDrops atomic.Uint64
	dropsBefore uint64
}

var _ ingest.Source = (*Source)(nil)

// maxSources is how many sources one port may have.
const maxSources = 16

// Open binds the port and makes the slab. A port that is taken, and an address
// that is not this machine's, are errors that say so.
func Open(o Options) (*Source, error) {
	sources, err := OpenSeveral(o, 1)
	if err != nil {
		return nil, err
	}
	return sources[0], nil
}

// OpenSeveral is Open of n sources of one port: sockets among which the kernel spreads the
// clients by a hash of addresses and ports (SO_REUSEPORT), so that each has some of the
// clients and all that these send, until one is closed. They have one slab, of which each
// has an equal part to receive into. Each is closed, and its memory given up.
func OpenSeveral(o Options, n int) ([]*Source, error) {
	if n < 1 || n > maxSources {
		return nil, fmt.Errorf("open UDP source %v: %d sources: want 1 to %d", o.Listen, n, maxSources)
	}
	if !o.Listen.IsValid() {
		return nil, errors.New("open UDP source: no address to listen on")
	}
	if o.SlabBytes == 0 {
		o.SlabBytes = defaultSlabBytes
	}
	if o.RecvBuffer == 0 {
		o.RecvBuffer = defaultRecvBuffer
	}
	if o.BatchMessages == 0 {
		o.BatchMessages = defaultBatchMessages
	}
	if o.BatchMessages < 1 || o.BatchMessages > maxBatchMessages {
		return nil, fmt.Errorf("open UDP source %v: %d messages a batch: want 1 to %d", o.Listen, o.BatchMessages, maxBatchMessages)
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
		s := &Source{options: o, socket: -1, event: -1, former: -1, busyPoll: int64(o.BusyPoll), inet6: !o.Listen.Addr().Unmap().Is4()}
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
		// The port that the first was given is the others'.
		o.Listen = netip.AddrPortFrom(o.Listen.Addr(), s.LocalAddr().Port())
	}
	slabs, err := slab.NewParts(fmt.Sprintf("udp-%d", o.Listen.Port()), o.SlabBytes, n, o.HugePages)
	if err != nil {
		return all, err
	}
	for i, s := range all {
		s.slab = slabs[i]
	}
	if n > 1 {
		for _, s := range all {
			if err := unix.SetsockoptInt(s.socket, unix.SOL_SOCKET, unix.SO_DETACH_FILTER, 0); err != nil {
				return all, errors.Join(fmt.Errorf("let datagrams in: %w", err), closeSlabs(slabs))
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

// listen makes the socket, number i of n on its port. SO_REUSEADDR stays off, and
// SO_REUSEPORT where there is one socket: with them a second manager would share the port
// in silence. For the same reason the first of several is bound without, which fails where
// anybody has the port, and allows the others beside it only then.
//
// Who a client's datagrams go to changes with each socket that is bound. So none of several
// takes any until all are: what comes before is dropped, and sent again by its client.
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
	// Both are there since Linux 2.6.33 and 5.0; without them drops show only
	// through SO_MEMINFO, and datagrams come one a message.
	_ = unix.SetsockoptInt(s.socket, unix.SOL_SOCKET, unix.SO_RXQ_OVFL, 1)
	// Since Linux 5.1; without it nothing is known of what a datagram has waited.
	_ = unix.SetsockoptInt(s.socket, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS_NEW, 1)
	s.gro = !o.NoGRO && unix.SetsockoptInt(s.socket, unix.SOL_UDP, unix.UDP_GRO, 1) == nil

	address, err := bindAddress(o.Listen)
	if err != nil {
		return err
	}
	if n > 1 {
		if err := unix.SetsockoptSockFprog(s.socket, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &nothing); err != nil {
			return fmt.Errorf("keep datagrams out: %w", err)
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
	local := boundAddress(bound, o.Listen.Addr().Zone())
	s.local.Store(&local)
	return nil
}

// share lets sockets of this user be bound beside a socket.
func share(socket int) error {
	if err := unix.SetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err != nil {
		return fmt.Errorf("set SO_REUSEPORT: %w", err)
	}
	return nil
}

// nothing is a socket filter that lets nothing in: one instruction that returns 0, the
// number of bytes to keep.
var nothing = unix.SockFprog{Len: 1, Filter: &unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K}}

// setRecvBuffer asks for a receive buffer and returns what was granted, in the
// bytes of payload and overhead that the kernel counts.
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

// explainBind says what to do about a port that cannot be had.
func explainBind(at netip.AddrPort, err error) error {
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		return fmt.Errorf("port %d is taken by another process (ss -ulpn 'sport = :%d' names it): stop that one or configure another port: %w", at.Port(), at.Port(), err)
	case errors.Is(err, unix.EADDRNOTAVAIL):
		return fmt.Errorf("%v is no address of this machine (ip address lists them): %w", at.Addr(), err)
	case errors.Is(err, unix.EACCES):
		return fmt.Errorf("port %d needs a privilege (CAP_NET_BIND_SERVICE): configure one above 1023: %w", at.Port(), err)
	}
	return fmt.Errorf("bind: %w", err)
}

// Slab is where the datagrams land. It stays mapped after Close, because spans
// may still be in use: whoever opened the source closes it (CloseSlab) when the
// last user is gone.
func (s *Source) Slab() shm.Memory { return s.slab }

// CloseSlab unmaps the slab after Close, when nobody uses its bytes or calls
// Release any more.
func (s *Source) CloseSlab() error { return s.slab.Close() }

// LocalAddr is where the source listens, with the port that was really bound.
func (s *Source) LocalAddr() netip.AddrPort { return *s.local.Load() }

// GRO reports whether the kernel chains datagrams for this source.
func (s *Source) GRO() bool { return s.gro }

// RecvBuffer is the socket buffer that the kernel granted, in its own bytes
// (twice what is asked for, for its overhead).
func (s *Source) RecvBuffer() int { return s.recvBuffer }

// Release gives spans back; see ingest.Source. Releasing what is not held
// panics.
func (s *Source) Release(spans []ingest.Span) { s.slab.Release(spans) }

// Stats reads the counters. KernelDrops is the socket's own count, read now; the
// kernel counts a chain that it drops as one.
func (s *Source) Stats() ingest.Stats {
	s.mu.RLock()
	if !s.closed.Load() {
		if drops, ok := socketDrops(s.socket); ok {
			s.noteDrops(drops)
		}
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

// noteDrops takes a reading of the socket's counter, which wraps and may be older
// than the one before.
func (s *Source) noteDrops(reading uint32) {
	for {
		known := s.kernelDrops.Load()
		more := int32(reading - uint32(known-s.dropsBefore))
		if more <= 0 || s.kernelDrops.CompareAndSwap(known, known+uint64(more)) {
			return
		}
	}
}

// Wake makes a blocked Receive return early. Any goroutine may call it, also
// after Close.
func (s *Source) Wake() {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if !s.closed.Load() {
		s.ring()
	}
}

// ring makes the eventfd readable. It cannot fail but for a counter that is full,
// which is readable too.
func (s *Source) ring() { _, _ = unix.Write(s.event, one[:]) }

// one is a 64-bit 1 for an eventfd, in either byte order.
var one = [8]byte{1, 0, 0, 0, 0, 0, 0, 1}

// Close ends a blocked Receive, waits until nobody uses the socket, and closes
// it. The slab stays. Closing twice is harmless.
func (s *Source) Close() error {
	if s.closed.Swap(true) {
		return nil
	}
	s.ring()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.closeDescriptors(); err != nil {
		return fmt.Errorf("close UDP source %v: %w", s.LocalAddr(), err)
	}
	return nil
}

func (s *Source) closeDescriptors() (err error) {
	for _, fd := range []int{s.socket, s.event, s.former} {
		if fd >= 0 {
			err = errors.Join(err, unix.Close(fd))
		}
	}
	return err
}
