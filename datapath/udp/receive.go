package udp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/datapath/ingest"
	"github.com/penstock/penstock/datapath/slab"
	"github.com/penstock/penstock/shm"
	"github.com/penstock/penstock/wire"
)

// controlBytes is room for the two control messages that the kernel adds. The time of arrival
// (two 64-bit numbers) takes 32 bytes with its header. The segment size (an int) takes 24 bytes,
// with header and padding. If the control messages of a message did not fit, it is dropped,
// because its segment size comes last.
const controlBytes = 56

// dropped instead of a segment size marks a message that is not delivered.
const dropped = -1

// reader holds the buffers of a read, allocated once. Only Receive uses it.
type reader struct {
	headers  []mmsghdr
	iovecs   []unix.Iovec // slab.MaxRuns per message
	runs     []ingest.Span
	names    [][sockaddrBytes]byte
	controls [][controlBytes]byte
	segments []int   // per message: the segment size, or dropped
	arrived  []int64 // per message: see ingest.Datagram.Arrived
	shed     []bool
	polls    []unix.PollFd
	zones    zoneNames
	clocks   clocks

	// The last read brought got messages. next is the message after the one being split, and
	// chain is what remains of that one.
	got, next int
	chain     chain
	// want is the number of messages to plan room for. It is twice what came last, so that a
	// quiet socket needs little planning.
	want int
}

// chain is the rest of one message: datagrams of segment bytes each, back to back in runs.
// The last may be shorter.
type chain struct {
	from    netip.AddrPort
	arrived int64
	runs    []ingest.Span // not yet delivered, the first one trimmed
	left    int           // bytes
	segment int
	empty   bool // one datagram of 0 bytes
	shed    bool // one datagram, cut by the filter
}

func newReader(messages int) reader {
	r := reader{
		headers:  make([]mmsghdr, messages),
		iovecs:   make([]unix.Iovec, messages*slab.MaxRuns),
		runs:     make([]ingest.Span, messages*slab.MaxRuns),
		names:    make([][sockaddrBytes]byte, messages),
		controls: make([][controlBytes]byte, messages),
		segments: make([]int, messages),
		arrived:  make([]int64, messages),
		shed:     make([]bool, messages),
		polls:    make([]unix.PollFd, 2),
		want:     min(2, messages),
	}
	for i := range r.headers {
		r.headers[i].hdr.Name = &r.names[i][0]
		r.headers[i].hdr.Iov = &r.iovecs[i*slab.MaxRuns]
		r.headers[i].hdr.Control = &r.controls[i][0]
	}
	r.clocks.open(bothClocks) // before anything is received: the arrival of all later datagrams is known
	return r
}

// runsOf returns the runs of message i.
func (r *reader) runsOf(i int) []ingest.Span {
	return r.runs[i*slab.MaxRuns : (i+1)*slab.MaxRuns]
}

// Receive fills batch; see ingest.Source. If the slab is full, it waits a moment, counts
// NoRoom and returns 0, so that the caller can evict. Meanwhile the kernel may drop. While
// requests are shed, it may return 0 before the deadline.
func (s *Source) Receive(batch []ingest.Datagram, deadline int64) (n int, err error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if len(batch) == 0 {
		return 0, nil
	}
	for {
		if s.closed.Load() {
			return 0, ingest.ErrClosed
		}
		for n < len(batch) && s.split(&batch[n]) {
			n++
		}
		if n > 0 {
			return n, nil
		}
		if again, err := s.fetch(deadline); !again {
			return 0, err
		}
	}
}

// fetch reads messages, or waits for some. It reports whether Receive should continue.
func (s *Source) fetch(deadline int64) (again bool, err error) {
	planned := s.plan()
	if planned == 0 {
		s.noRoom.Add(1)
		s.shed()
		return false, s.waitForRoom(deadline)
	}
	got, err := recvmmsg(s.socket, s.reader.headers[:planned], unix.MSG_DONTWAIT)
	switch {
	case err == nil:
		s.keep(got)
		if got < planned {
			s.shedder.emptied = true
		}
		if got == planned || s.shedder.shedding.on {
			s.shed()
		}
	case errors.Is(err, unix.EAGAIN):
		s.shedder.emptied = true
		return s.waitShedding(deadline)
	case !errors.Is(err, unix.EINTR):
		return false, fmt.Errorf("receive on %v: %w", s.LocalAddr(), err)
	}
	return true, nil
}

// plan prepares room for the next messages, and returns how many have it.
func (s *Source) plan() int {
	r := &s.reader
	var from uint64
	for i := range r.want {
		runs := r.runsOf(i)
		n, next := s.slab.Free(runs, from, slab.MessageBytes)
		if n == 0 {
			return i
		}
		from = next
		iovecs := r.iovecs[i*slab.MaxRuns:]
		for j, run := range runs[:n] {
			iovecs[j].Base = &s.slab.Bytes()[run.Offset]
			iovecs[j].SetLen(int(run.Length))
		}
		h := &r.headers[i].hdr
		h.SetIovlen(n)
		h.Namelen = sockaddrBytes
		h.SetControllen(controlBytes)
		h.Flags = 0
	}
	return r.want
}

// keep holds what a read brought, and drops truncated messages.
func (s *Source) keep(got int) {
	r := &s.reader
	r.got, r.next = got, 0
	r.want = min(2*got, len(r.headers))
	var datagrams, bytes, truncated uint64
	r.clocks.read()
	for i := range got {
		h := &r.headers[i]
		said := parseControl(r.controls[i][:h.hdr.Controllen])
		r.arrived[i] = r.clocks.arrival(said.stamp)
		if h.hdr.Flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
			r.segments[i] = dropped
			truncated++
			continue
		}
		size, segment := int(h.n), said.segment
		if segment <= 0 || segment > size {
			segment = size
		}
		r.segments[i] = segment
		datagrams++
		if segment > 0 {
			datagrams += uint64((size - 1) / segment)
		}
		bytes += uint64(size)
		s.hold(r.runsOf(i), size)
		if r.shed[i] = s.shedder.shedding.on && s.wasCut(i); r.shed[i] {
			s.shedder.cut++
		} else {
			s.shedder.messages++
		}
	}
	s.datagrams.Add(datagrams)
	s.bytes.Add(bytes)
	if truncated > 0 {
		s.truncated.Add(truncated)
	}
}

// hold holds size bytes of a message's runs.
func (s *Source) hold(runs []ingest.Span, size int) {
	for _, run := range runs {
		if size == 0 {
			return
		}
		run.Length = min(run.Length, uint32(size))
		s.slab.Hold(run)
		size -= int(run.Length)
	}
}

// wasCut reports whether the filter cut message i, which belongs to a shed request. A chain
// that was cut still reports its segment size, which exceeds its length.
func (s *Source) wasCut(i int) bool {
	size := int(s.reader.headers[i].n)
	if size != wire.HeaderSize && size != wire.HeaderSize+wire.BlockSize {
		return false
	}
	var scratch [wire.HeaderSize]byte
	b := scratch[:0]
	for _, run := range s.reader.runsOf(i) {
		if b = append(b, s.slab.Bytes()[run.Offset:][:min(int(run.Length), wire.HeaderSize-len(b))]...); len(b) == wire.HeaderSize {
			break
		}
	}
	return isCut(b, size)
}

// isCut reports whether a datagram is a fragment 0 without its payload, of a request that is
// large enough to be answered when it is shed. The datagram has that size and begins with the
// header b.
func isCut(b []byte, size int) bool {
	var h wire.Header
	return h.ReadCut(b) == nil && h.Type == wire.TypeData && h.Index == 0 && h.Total >= answeredBytes && wire.PayloadOffset(&h) == size
}

// split returns the next datagram of the last read.
func (s *Source) split(d *ingest.Datagram) bool {
	r := &s.reader
	for {
		c := &r.chain
		for c.left > 0 || c.empty {
			d.From, d.Arrived, d.Shed = c.from, c.arrived, c.shed
			if s.cut(c, d) {
				return true
			}
		}
		if r.next == r.got {
			return false
		}
		i := r.next
		r.next++
		if r.segments[i] == dropped {
			continue
		}
		*c = chain{
			from:    r.zones.decode(&r.names[i]),
			arrived: r.arrived[i],
			runs:    r.runsOf(i),
			left:    int(r.headers[i].n),
			segment: r.segments[i],
			empty:   r.headers[i].n == 0,
			shed:    r.shed[i],
		}
	}
}

// cut takes one datagram off the chain. It returns false if the datagram had to be dropped.
func (s *Source) cut(c *chain, d *ingest.Datagram) bool {
	size := uint32(min(c.segment, c.left))
	c.left -= int(size)
	c.empty = false
	d.First = c.take(size)
	d.Rest = ingest.Span{}
	if size -= d.First.Length; size == 0 {
		return true
	}
	d.Rest = c.take(size)
	if size -= d.Rest.Length; size == 0 {
		return true
	}
	return s.join(c, d, size)
}

// take cuts at most size bytes off the first run.
func (c *chain) take(size uint32) ingest.Span {
	run := &c.runs[0]
	span := ingest.Span{Offset: run.Offset, Length: min(run.Length, size)}
	run.Offset += uint64(span.Length)
	run.Length -= span.Length
	if run.Length == 0 {
		c.runs = c.runs[1:]
	}
	return span
}

// join copies a datagram in more than two runs into one run, or drops it if no run is long
// enough. Such a datagram is a jumbo that was received into a fragmented slab.
func (s *Source) join(c *chain, d *ingest.Datagram, size uint32) bool {
	var parts [slab.MaxRuns]ingest.Span
	parts[0], parts[1] = d.First, d.Rest
	n := 2
	for ; size > 0; n++ {
		parts[n] = c.take(size)
		size -= parts[n].Length
	}
	whole, ok := s.slab.Join(parts[:n])
	if !ok {
		s.truncated.Add(1)
	}
	d.First, d.Rest = whole, ingest.Span{}
	return ok
}

// control is what the kernel reports about a message.
type control struct {
	segment int   // size of a chain's datagrams; 0 if it is no chain
	stamp   int64 // arrival, nanoseconds of CLOCK_REALTIME; 0 if unknown
}

func parseControl(b []byte) (c control) {
	for len(b) >= unix.SizeofCmsghdr {
		size := binary.NativeEndian.Uint64(b)
		level := binary.NativeEndian.Uint32(b[8:])
		kind := binary.NativeEndian.Uint32(b[12:])
		if size < unix.SizeofCmsghdr || size > uint64(len(b)) {
			break
		}
		data := b[unix.SizeofCmsghdr:size]
		switch {
		case level == unix.SOL_UDP && kind == unix.UDP_GRO && len(data) >= 4:
			c.segment = int(int32(binary.NativeEndian.Uint32(data)))
		case level == unix.SOL_SOCKET && kind == unix.SO_TIMESTAMPNS_NEW && len(data) >= 16:
			c.stamp = int64(binary.NativeEndian.Uint64(data))*int64(time.Second) + int64(binary.NativeEndian.Uint64(data[8:]))
		}
		b = b[min(uint64(len(b)), (size+7)&^7):]
	}
	return c
}

// waitShedding waits for the socket; while requests are shed, at most until the next sample.
func (s *Source) waitShedding(deadline int64) (bool, error) {
	if s.shedder.shedding.on {
		s.shed()
		if look := s.shedder.shedding.next(); deadline == 0 || look < deadline {
			deadline = look
		}
	}
	return s.wait(true, deadline)
}

// wait polls for BusyPoll, then sleeps. It ends when the socket is readable (if forSocket),
// and at Wake, Close or the deadline. It reports whether Receive should continue.
func (s *Source) wait(forSocket bool, deadline int64) (bool, error) {
	r := &s.reader
	r.polls[0] = unix.PollFd{Fd: int32(s.event), Events: unix.POLLIN}
	r.polls[1] = unix.PollFd{Fd: int32(s.socket), Events: unix.POLLIN}
	polls := r.polls
	if !forSocket {
		polls = polls[:1]
	}
	var looksUntil int64
	if s.busyPoll > 0 {
		looksUntil = shm.Now() + s.busyPoll
	}
	for {
		var timeout *unix.Timespec
		var ts unix.Timespec
		looks := false
		if deadline != 0 || looksUntil != 0 {
			now := shm.Now()
			looks = now < looksUntil && (deadline == 0 || now < deadline)
			switch {
			case looks:
				timeout = &ts
			case deadline != 0:
				ts = unix.NsecToTimespec(max(deadline-now, 0))
				timeout = &ts
			}
		}
		n, err := ppoll(polls, timeout)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return false, fmt.Errorf("poll %v: %w", s.LocalAddr(), err)
		case s.closed.Load():
			return false, ingest.ErrClosed
		case n == 0 && looks:
			continue
		case n == 0:
			return false, nil
		}
		return true, nil
	}
}

// waitForRoom waits a moment for spans to be released.
func (s *Source) waitForRoom(deadline int64) error {
	until := shm.Now() + int64(noRoomPause)
	if deadline != 0 {
		until = min(until, deadline)
	}
	_, err := s.wait(false, until)
	return err
}
