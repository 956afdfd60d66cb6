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

// Polled is what a poller counts.
type Polled struct {
	Polls, Empty uint64
	Frames       uint64
	Full         uint64 // dropped: whoever should take them lagged behind
	Scattered    uint64 // dropped: larger than an mbuf
	Copied       uint64 // lay in another memory
	NoCopy       uint64 // dropped: would have had to be copied, and no mbuf was free
}

// NewPoller takes a free lcore for these queues. Number is its place among the port's
// pollers, from 0; Go's own producer is the last, maxPollers. A nap bounds what an idle
// port costs where a NIC is the kernel's, after the port was idle for spin; 0 polls for ever.
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
	p.p.port, p.p.producer, p.p.queues, p.p.nap_ns = d.port, C.uint32_t(number), C.uint32_t(len(queues)), C.uint64_t(nap)
	p.p.spin_ns = C.uint64_t(spin)
	for i, q := range queues {
		p.p.queue[i] = C.uint16_t(q)
	}
	return p, nil
}

// napperNice is the priority of pollers that nap: that of the manager's receive threads.
const napperNice = -15

// maxPollers of a port.
const maxPollers = C.PST_PRODUCERS - 1

// Start begins to poll, also after Stop. The control sink is there by then.
func (p *Poller) Start() {
	p.runs = true
	storeWord(&p.p.stop, 0)
	rte.ExecOnLcoreAsync(p.lcore, p.done, func(*rte.LcoreCtx) {
		if p.p.nap_ns != 0 {
			// It shares its CPU, and is waited for, as the manager's data path; without the
			// right to it polls all the same.
			_ = unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), napperNice)
			// The kernel would make a nap of 20 µs one of 70.
			_ = unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(time.Microsecond), 0, 0, 0)
		}
		C.pst_poll(p.p)
	})
}

// Started reports whether it was started, and not stopped.
func (p *Poller) Started() bool { return p.runs }

// Lcore is which.
func (p *Poller) Lcore() int { return int(p.lcore) }

// Stop ends a poller that was started; it takes no frame afterwards.
func (p *Poller) Stop() error {
	p.runs = false
	storeWord(&p.p.stop, 1)
	err := <-p.done
	if err != nil {
		return fmt.Errorf("poll on lcore %d: %w", p.lcore, err)
	}
	return nil
}

// Close gives the lcore back. It was stopped, or never started.
func (p *Poller) Close() {
	giveLcore(p.lcore)
	C.pst_release(unsafe.Pointer(p.p))
	p.p = nil
}

// Turn waits until the poller has seen what was written before the call: it ends the
// turn that it is in, and one more.
func (p *Poller) Turn() {
	epoch := &p.p.epoch
	for until := loadLong(epoch) + 2; loadLong(epoch) < until && loadWord(&p.p.stop) == 0; {
		time.Sleep(10 * time.Microsecond)
	}
}

// Polled reads the counters.
func (p *Poller) Polled() Polled {
	return Polled{
		Polls: loadLong(&p.p.polls), Empty: loadLong(&p.p.empty), Frames: loadLong(&p.p.frames), Full: loadLong(&p.p.full),
		Scattered: loadLong(&p.p.scattered), Copied: loadLong(&p.p.copied), NoCopy: loadLong(&p.p.nocopy),
	}
}

// Sink takes frames from the pollers of a port. One goroutine at a time calls Take and
// Sleep; any may Wake.
type Sink struct {
	device *Device
	sink   *C.struct_pst_sink
	number int
	rings  []*C.struct_pst_ring
	queues []entries
	next   int // the ring to begin with
	event  int
	polls  []unix.PollFd
	left   unix.Timespec // of a Pause: the kernel writes there what is left
	count  [8]byte       // of event, read there: under the race detector unix.Read moves it to the heap
}

// Control is the number of the sink that takes what no other does.
const Control = 0

// MaxSinks of a port, Control included.
const MaxSinks = C.PST_SINKS

// NewSink makes a sink with a ring of entries, a power of two, for each of producers
// pollers, and one for Go (Put), whose place is maxPollers.
func (d *Device) NewSink(number, producers, entriesEach int) (_ *Sink, err error) {
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
	for i := range producers + 1 {
		at := i
		if i == producers {
			at = maxPollers
		}
		ring := C.pst_ring_new(C.uint32_t(entriesEach))
		if ring == nil {
			return nil, unix.ENOMEM
		}
		s.sink.rings[at] = ring
		s.rings = append(s.rings, ring)
		s.queues = append(s.queues, entriesOf(ring, entriesEach))
	}
	s.polls = []unix.PollFd{{Fd: int32(s.event), Events: unix.POLLIN}}
	return s, nil
}

// SetBacklog says how many frames may wait in one ring of a source's sink, at most the ring's
// entries. It is 0 until it is set. Those beyond it are dropped and counted (Full).
func (d *Device) SetBacklog(frames int) { storeWord(&d.port.backlog, uint32(frames)) }

// SetStrays is SetBacklog of the Control sink.
func (d *Device) SetStrays(frames int) { storeWord(&d.port.strays, uint32(frames)) }

// Attach lets frames in: those for a UDP port, or all others where the sink is Control.
func (s *Sink) Attach(udpPort uint16) {
	storePointer(&s.device.port.sinks[s.number], unsafe.Pointer(s.sink))
	if s.number != Control {
		storeByte(&s.device.port.table[udpPort], uint8(s.number))
	}
}

// Lead has each client's frames go to one of members, which Member tells; s is their first,
// and the one that is attached. None is closed before s is detached.
func (s *Sink) Lead(members []*Sink) {
	for i, m := range members {
		s.sink.member[i] = m.sink
	}
	s.sink.members = C.uint32_t(len(members))
}

// MaxMembers are the most that a sink leads.
const MaxMembers = C.PST_QUEUES

// Member is which of several sinks has the frames of a client, as the pollers have it.
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

// Detach keeps frames out. Each poller that runs has ended its turn (Turn) before the
// sink is closed.
func (s *Sink) Detach(udpPort uint16) {
	if s.number != Control {
		storeByte(&s.device.port.table[udpPort], Control)
	}
	storePointer(&s.device.port.sinks[s.number], nil)
}

// Waiting is how many frames lie in the rings.
func (s *Sink) Waiting() (n int) {
	for i := range s.queues {
		n += s.queues[i].waiting()
	}
	return n
}

// Full is how many frames found no room in the rings, and were dropped.
func (s *Sink) Full() (n uint64) {
	for _, ring := range s.rings {
		n += loadLong(&ring.full)
	}
	return n
}

// Take moves up to len(into) entries out of the rings, each ring's in its order, and
// begins with another ring each time.
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

// Put adds an entry as Go's producer: one goroutine does that. It is false where there
// is no room.
func (s *Sink) Put(e Entry) bool {
	ok := s.queues[len(s.queues)-1].put(e)
	if ok && swapWord(&s.sink.sleeping, 0) != 0 {
		s.ring()
	}
	return ok
}

// Sleep waits until something lies in a ring, Wake is called, or timeout has passed;
// nil is no timeout.
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

// Pause waits for Wake or the timeout, whatever lies in the rings.
func (s *Sink) Pause(timeout *unix.Timespec) error {
	if timeout != nil {
		s.left = *timeout
		timeout = &s.left
	}
	n, err := ppoll(s.polls, timeout)
	switch {
	case errors.Is(err, unix.EINTR):
		return nil
	case err != nil:
		return fmt.Errorf("wait for frames: %w", err)
	case n > 0:
		_, _ = unix.Read(s.event, s.count[:]) // empty already: somebody else's wake
	}
	return nil
}

// Wake ends a Sleep, or the next one. Any goroutine may call it until Close.
func (s *Sink) Wake() { s.ring() }

func (s *Sink) ring() { _, _ = unix.Write(s.event, one[:]) }

// one is a 64-bit 1 for an eventfd, in either byte order.
var one = [8]byte{1, 0, 0, 0, 0, 0, 0, 1}

// Close frees the rings. The sink is detached and empty.
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
