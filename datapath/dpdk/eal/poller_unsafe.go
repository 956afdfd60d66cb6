//go:build dpdk

package eal

// #include "shim.h"
import "C"

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"
	"unsafe"

	rte "github.com/yerden/go-dpdk/eal"
	"golang.org/x/sys/unix"
)

// Poller is an lcore that polls some queues of a port, in C, until Stop.
type Poller struct {
	p     *C.struct_pst_poller
	lcore uint
	done  chan error
	runs  bool
}

// Dropped counts the frames that a poller dropped.
type Dropped struct {
	Full      uint64 // the consumer lagged behind
	Scattered uint64 // larger than an mbuf
	NoCopy    uint64 // needed a copy, and no mbuf was free
}

// NewPoller takes a free lcore for these queues. Number is its index among the port's
// pollers, from 0. After the port was idle for spin, the poller sleeps for nap between polls.
// That bounds the cost of an idle port whose NIC the kernel drives. If nap is 0, it polls
// forever.
func (d *Device) NewPoller(number int, queues []int, spin, nap time.Duration) (*Poller, error) {
	lcore, err := takeLcore()
	if err != nil {
		return nil, fmt.Errorf("poll DPDK port %s: %w", d.spec, err)
	}
	p := &Poller{p: C.pst_poller_new(), lcore: lcore, done: make(chan error, 1)}
	if p.p == nil {
		giveLcore(lcore)
		return nil, unix.ENOMEM
	}
	p.p.port, p.p.number, p.p.queues, p.p.nap_ns = d.port, C.uint32_t(number), C.uint32_t(len(queues)), C.uint64_t(nap)
	p.p.spin_ns = C.uint64_t(spin)
	for i, q := range queues {
		p.p.queue[i] = C.uint16_t(q)
	}
	return p, nil
}

// napperNice is the priority of pollers that nap, the same as that of the manager's receive
// threads.
const napperNice = -15

// Start begins to poll, also after Stop. The control sink must exist.
func (p *Poller) Start() {
	p.runs = true
	storeWord(&p.p.stop, 0)
	rte.ExecOnLcoreAsync(p.lcore, p.done, func(*rte.LcoreCtx) {
		if p.p.nap_ns != 0 {
			// It shares its CPU, and other threads wait for it, as for the manager's data
			// path. Without the privilege it polls at ordinary priority.
			_ = unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), napperNice)
			// With the default slack, the kernel would stretch a nap of 20 µs to 70 µs.
			_ = unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(time.Microsecond), 0, 0, 0)
		}
		C.pst_poll(p.p)
	})
}

// Started reports whether the poller was started, and not stopped since.
func (p *Poller) Started() bool { return p.runs }

// Stop stops a running poller; it takes no frame afterwards.
func (p *Poller) Stop() error {
	p.runs = false
	storeWord(&p.p.stop, 1)
	err := <-p.done
	if err != nil {
		return fmt.Errorf("poll on lcore %d: %w", p.lcore, err)
	}
	return nil
}

// Close returns the lcore. The poller must be stopped, or never started.
func (p *Poller) Close() {
	giveLcore(p.lcore)
	C.pst_release(unsafe.Pointer(p.p))
	p.p = nil
}

// Turn waits until the poller has seen everything that was written before the call: the end
// of its current turn, and one more.
func (p *Poller) Turn() {
	epoch := &p.p.epoch
	for until := loadLong(epoch) + 2; loadLong(epoch) < until && loadWord(&p.p.stop) == 0; {
		time.Sleep(10 * time.Microsecond)
	}
}

// Dropped reads the counters.
func (p *Poller) Dropped() Dropped {
	return Dropped{loadLong(&p.p.full), loadLong(&p.p.scattered), loadLong(&p.p.nocopy)}
}

// Sink takes frames from the pollers of a port. Only one goroutine at a time may call Take and
// Sleep. Any goroutine may call Wake.
type Sink struct {
	device *Device
	sink   *C.struct_pst_sink
	number int
	rings  []*C.struct_pst_ring
	queues []entries
	next   int // index of the ring to begin with
	event  int
	polls  []unix.PollFd
	left   unix.Timespec // of a Pause: the kernel writes the remaining time here
	count  [8]byte       // buffer for reading event; under the race detector unix.Read moves a local one to the heap
}

// Control is the number of the sink that takes what no other sink takes.
const Control = 0

// MaxSinks is the max number of sinks per port, including Control.
const MaxSinks = C.PST_SINKS

// NewSink makes a sink with a ring for each of the port's pollers. Each ring has entriesEach
// entries, which must be a power of two.
func (d *Device) NewSink(number, pollers, entriesEach int) (_ *Sink, err error) {
	s := &Sink{device: d, number: number, event: -1}
	defer func() {
		if err != nil {
			s.free()
			err = fmt.Errorf("make sink %d of DPDK port %s: %w", number, d.spec, err)
		}
	}()
	if s.event, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return nil, err
	}
	if s.sink = C.pst_sink_new(C.int(s.event)); s.sink == nil {
		return nil, unix.ENOMEM
	}
	for i := range pollers {
		ring := C.pst_ring_new(C.uint32_t(entriesEach))
		if ring == nil {
			return nil, unix.ENOMEM
		}
		s.sink.rings[i] = ring
		s.rings = append(s.rings, ring)
		s.queues = append(s.queues, entriesOf(ring, entriesEach))
	}
	s.polls = []unix.PollFd{{Fd: int32(s.event), Events: unix.POLLIN}}
	return s, nil
}

// SetBacklog sets how many frames may wait in one ring of a source's sink, at most the ring's
// entries. The initial value is 0. Frames beyond it are dropped and counted (Full).
func (d *Device) SetBacklog(frames int) { storeWord(&d.port.backlog, uint32(frames)) }

// SetStrays is SetBacklog for the Control sink.
func (d *Device) SetStrays(frames int) { storeWord(&d.port.strays, uint32(frames)) }

// Attach lets frames in: those for a UDP port or, for the Control sink, all others.
func (s *Sink) Attach(udpPort uint16) {
	storePointer(&s.device.port.sinks[s.number], unsafe.Pointer(s.sink))
	if s.number != Control {
		storeByte(&s.device.port.table[udpPort], uint8(s.number))
	}
}

// Lead makes each client's frames go to one of members, which Member selects. s must be the
// first of them, and only s may be attached. Do not close any member before s is detached.
func (s *Sink) Lead(members []*Sink) {
	for i, m := range members {
		s.sink.member[i] = m.sink
	}
	s.sink.members = C.uint32_t(len(members))
}

// MaxMembers is the max number of sinks that a sink leads.
const MaxMembers = C.PST_QUEUES

// Member returns which of several sinks gets the frames of a client. The pollers compute the
// same.
func Member(client netip.AddrPort, members int) int {
	const factor = C.PST_FLOW_FACTOR
	var hash uint64
	if client.Addr().Is4() {
		b := client.Addr().As4()
		hash = uint64(binary.BigEndian.Uint32(b[:]))
	} else {
		b := client.Addr().As16()
		hash = binary.BigEndian.Uint64(b[:8])*factor ^ binary.BigEndian.Uint64(b[8:])
	}
	hash ^= uint64(client.Port()) << 32
	hash *= factor
	return int(hash >> 32 * uint64(members) >> 32)
}

// Detach keeps frames out. Before the sink is closed, each running poller must end its turn
// (Turn).
func (s *Sink) Detach(udpPort uint16) {
	if s.number != Control {
		storeByte(&s.device.port.table[udpPort], Control)
	}
	storePointer(&s.device.port.sinks[s.number], nil)
}

// Waiting is the number of frames in the rings.
func (s *Sink) Waiting() (n int) {
	for i := range s.queues {
		n += s.queues[i].waiting()
	}
	return n
}

// Full is the number of frames that were dropped because the rings had no room.
func (s *Sink) Full() (n uint64) {
	for _, ring := range s.rings {
		n += loadLong(&ring.full)
	}
	return n
}

// Take moves up to len(into) entries out of the rings, in each ring's order. It begins with
// another ring each time.
func (s *Sink) Take(into []Entry) (n int) {
	for range s.queues {
		n += s.queues[s.next].take(into[n:])
		if n == len(into) {
			return n
		}
		if s.next++; s.next == len(s.queues) {
			s.next = 0
		}
	}
	return n
}

// Sleep waits until a ring has an entry, Wake is called, or timeout has passed; nil means no
// timeout.
func (s *Sink) Sleep(timeout *unix.Timespec) error {
	swapWord(&s.sink.sleeping, 1)
	if s.Waiting() > 0 {
		storeWord(&s.sink.sleeping, 0)
		return nil
	}
	err := s.Pause(timeout)
	storeWord(&s.sink.sleeping, 0)
	return err
}

// Pause waits for Wake or the timeout, even if the rings have entries.
func (s *Sink) Pause(timeout *unix.Timespec) error {
	if timeout != nil {
		s.left = *timeout
		timeout = &s.left
	}
	n, err := unix.Ppoll(s.polls, timeout, nil)
	switch {
	case errors.Is(err, unix.EINTR):
		return nil
	case err != nil:
		return fmt.Errorf("wait for frames: %w", err)
	case n > 0:
		_, _ = unix.Read(s.event, s.count[:]) // empty already if another goroutine handled the wake
	}
	return nil
}

// Wake ends a Sleep, or the next one. Any goroutine may call it until Close.
func (s *Sink) Wake() { _, _ = unix.Write(s.event, one[:]) }

// one is a 64-bit 1 for an eventfd, in either byte order.
var one = [8]byte{1, 0, 0, 0, 0, 0, 0, 1}

// Close frees the rings. The sink must be detached and empty.
func (s *Sink) Close() error {
	return s.free()
}

func (s *Sink) free() (err error) {
	for _, ring := range s.rings {
		C.pst_release(unsafe.Pointer(ring))
	}
	s.rings, s.queues = nil, nil
	C.pst_release(unsafe.Pointer(s.sink))
	s.sink = nil
	if s.event >= 0 {
		err = unix.Close(s.event)
	}
	return err
}
