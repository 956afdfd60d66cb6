package client

import (
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/wire"
)

const (
	// trainSegments and trainBytes bound a train, which is a message of
	// datagrams that the kernel splits. The first is UDP_MAX_SEGMENTS of the
	// first kernels with UDP_SEGMENT (include/linux/udp.h). The second is
	// slightly less than an IPv4 datagram holds.
	trainSegments = 64
	trainBytes    = 64_000
)

// transmitter sends a burst of datagrams in as few system calls as possible.
// Datagrams of one size are sent as a train that the kernel splits
// (UDP_SEGMENT), and the trains by sendmmsg. The kernel gathers headers and
// pictures, which are never copied here. One goroutine uses it.
type transmitter struct {
	raw      syscall.RawConn
	segments bool // the kernel can split trains

	heads     [burstDatagrams][wire.HeaderSize + wire.BlockSize]byte
	vectors   [2 * burstDatagrams]unix.Iovec // header and fragment of each
	datagrams [burstDatagrams]outgoing
	n         int // datagrams
	size      int // bytes

	messages [burstDatagrams]message
	first    [burstDatagrams + 1]int // index of the datagram with which each message begins
	control  [burstDatagrams][controlBytes]byte

	// write is the system call on messages[:writing], built once. It sets how
	// many messages were sent, or the error.
	write            func(fd uintptr) bool
	writing, written int
	errno            syscall.Errno
}

// outgoing is a datagram: its size, its request, and whether it is the complete request.
type outgoing struct {
	size    int
	request uint32
	alone   bool
}

func newTransmitter(raw syscall.RawConn) *transmitter {
	t := &transmitter{raw: raw}
	// A kernel that supports the option returns its value.
	_ = raw.Control(func(fd uintptr) {
		_, err := unix.GetsockoptInt(int(fd), unix.SOL_UDP, unix.UDP_SEGMENT)
		t.segments = err == nil
	})
	t.write = func(fd uintptr) bool {
		t.written, t.errno = sendMessages(fd, t.messages[:t.writing])
		return t.errno != unix.EAGAIN && t.errno != unix.EINTR
	}
	return t
}

func (t *transmitter) room() bool { return t.n < burstDatagrams && t.size < burstSize }

func (t *transmitter) add(h wire.Header, e wire.Extension, fragment []byte) int {
	head := t.heads[t.n][:wire.PayloadOffset(&h)]
	h.Put(head)
	if h.Flags&wire.FlagExtension != 0 {
		e.Put(head[wire.HeaderSize:])
	}
	t.vectors[2*t.n], t.vectors[2*t.n+1] = vector(head), vector(fragment)
	d := outgoing{size: wire.DatagramSize(&h), request: h.RequestID, alone: h.Count == 1}
	t.datagrams[t.n] = d
	t.n++
	t.size += d.size
	return d.size
}

func (t *transmitter) flush(n *counts) (unreachable uint64, err error) {
	defer t.clear()
	refused := 0 // ECONNREFUSED in a row
	for from := 0; from < t.n; {
		t.writing = t.pack(from)
		if err := t.raw.Write(t.write); err != nil {
			return unreachable, fmt.Errorf("send datagrams: %w", err)
		}
		n.sends.Add(1)
		to := t.first[t.written]
		n.datagrams.Add(uint64(to - from))
		for _, d := range t.datagrams[from:to] {
			n.bytes.Add(uint64(d.size))
		}
		from = to
		if t.written > 0 {
			refused = 0
			continue
		}
		train := t.first[1]-from > 1
		switch {
		case t.errno == unix.ECONNREFUSED && refused == 0:
			// The ICMP response to an earlier datagram: the kernel reports the
			// error once, and did not try this message.
			unreachable++
			refused++
		case train && (t.errno == unix.EINVAL || t.errno == unix.EMSGSIZE || t.errno == unix.EIO || t.errno == unix.EOPNOTSUPP):
			// The fragments are larger than the path's frames, or the device
			// cannot compute checksums. The kernel then refuses such trains,
			// but not single datagrams.
			t.segments = false
		default:
			n.sendErrors.Add(1)
			from = t.first[1]
		}
	}
	return unreachable, nil
}

// pack makes messages of the datagrams from index from on, and returns their
// number.
func (t *transmitter) pack(from int) int {
	m := 0
	for at := from; at < t.n; m++ {
		end := at + 1
		if t.segments {
			end = t.trainEnd(at)
		}
		t.first[m] = at
		t.messages[m] = message{}
		t.messages[m].gather(t.vectors[2*at : 2*end])
		if end-at > 1 {
			t.messages[m].cut(t.control[m][:], uint16(t.datagrams[at].size))
		}
		at = end
	}
	t.first[m] = t.n
	return m
}

// trainEnd returns the end of the train that begins with datagram at. All its
// datagrams have the size of the first one; only the last may be shorter. A
// request in several fragments shares no train with another. A train may arrive as
// one chain of datagrams, and an overloaded manager sheds a chain by the
// request of its first datagram.
func (t *transmitter) trainEnd(at int) int {
	size := t.datagrams[at].size
	end, bytes := at+1, size
	for end < t.n && end-at < trainSegments {
		d, before := &t.datagrams[end], &t.datagrams[end-1]
		next := d.size
		if next > size || bytes+next > trainBytes {
			break
		}
		if d.request != before.request && !(d.alone && before.alone) {
			break
		}
		bytes += next
		end++
		if next < size {
			break
		}
	}
	return end
}

// clear drops the burst, and its references to pictures.
func (t *transmitter) clear() {
	clear(t.vectors[:2*t.n])
	t.n, t.size = 0, 0
}
