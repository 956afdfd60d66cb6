//go:build dpdk && cgo

package dpdk

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"github.com/penstock/penstock/datapath/dpdk/eal"
	"github.com/penstock/penstock/datapath/dpdk/frame"
	"github.com/penstock/penstock/datapath/ingest"
)

var (
	// errNoNeighbour is returned by Send for an address that sent no frame lately. Answers go
	// back by the path of the requests.
	errNoNeighbour = errors.New("no route: no packet has come from there")
	// errTooLong is returned for a datagram that exceeds the port's MTU.
	errTooLong = errors.New("larger than the port's MTU")
	// errFamily is returned if the port has no address of the destination's family.
	errFamily = errors.New("the port has no address of its family")
	// ErrQueueFull is returned when the transmit queue, or the pool, has no room.
	ErrQueueFull = errors.New("the port's send queue is full")
)

// sender is a transmit queue, with the buffers for a burst.
type sender struct {
	mu       sync.Mutex // guards the following, and the queue
	mbufs    [eal.Burst]uint64
	data     [eal.Burst]uint64
	lengths  [eal.Burst]uint32
	offloads [eal.Burst]eal.Offload
}

// Send sends packets in order; see ingest.Source. Any goroutine may call it.
func (s *Source) Send(packets []ingest.Packet) (n int, err error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed.Load() {
		return 0, ingest.ErrClosed
	}
	queue := int(s.queue.Load())
	q := &s.group.senders[queue]
	q.mu.Lock()
	defer q.mu.Unlock()
	for n < len(packets) {
		sent, err := s.sendBurst(queue, packets[n:min(len(packets), n+eal.Burst)])
		n += sent
		if err != nil {
			return n, fmt.Errorf("send to %v: %w", packets[n].To, err)
		}
	}
	return n, nil
}

// sendBurst sends a burst, up to the first packet that cannot be sent. The queue's lock is
// held.
func (s *Source) sendBurst(queue int, packets []ingest.Packet) (sent int, err error) {
	g := s.group
	q := &g.senders[queue]
	if g.pool.Alloc(q.mbufs[:len(packets)], q.data[:len(packets)]) != nil {
		g.unsent.Add(uint64(len(packets)))
		return 0, ErrQueueFull
	}
	filled := 0
	for i := range packets {
		if q.lengths[i], q.offloads[i], err = s.fill(q.data[i], &packets[i]); err != nil {
			break
		}
		filled++
	}
	g.pool.Free(q.mbufs[filled:len(packets)])
	sent = g.device.Send(queue, q.mbufs[:filled], q.lengths[:filled], q.offloads[:filled])
	if sent < filled {
		g.unsent.Add(uint64(filled - sent))
		err = ErrQueueFull
	}
	return sent, err
}

// fill writes a packet's frame at data.
func (s *Source) fill(data uint64, p *ingest.Packet) (length uint32, offload eal.Offload, err error) {
	g := s.group
	to := netip.AddrPortFrom(p.To.Addr().Unmap(), p.To.Port())
	link, own, ok := g.table.Find(to.Addr())
	if !own.IsValid() {
		own = g.address(to.Addr())
	}
	switch {
	case !own.IsValid():
		return 0, 0, errFamily
	case !ok:
		g.noNeighbour.Add(1)
		return 0, 0, errNoNeighbour
	}
	ether, ip := frame.HeaderBytes(&link, to.Addr())
	if ip+udpHeaderBytes+len(p.Data) > g.taken.MTU {
		return 0, 0, errTooLong
	}
	filled := frame.FillAll
	if g.taken.FillsChecksums {
		filled, offload = 0, eal.FillChecksums(ether, ip, to.Addr().Is6())
	}
	n := frame.PutUDP(g.room(data), &link, netip.AddrPortFrom(own, s.local.Port()), to, p.Data, filled)
	if n == 0 {
		return 0, 0, errTooLong
	}
	return uint32(n), offload, nil
}

const udpHeaderBytes = 8
