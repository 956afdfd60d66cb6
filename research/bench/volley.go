package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/penstock/penstock/wire"
)

// volley sends n requests that become complete at the same moment. It sends all
// fragments but the last of each request, then the last fragments in one train that
// the kernel cuts (UDP_SEGMENT). So n requests form one batch, and the time after
// their last packet is Penstock's, not the sender's.
type volley struct {
	conn      *net.UDPConn
	n         int
	fragments int
	datagram  int // bytes
	bytes     []byte
	last      []byte // the train of last fragments
	control   []byte
	id        uint32
	room      []byte
}

// settle is the time in which all fragments but the last must be received. At 1
// GB/s a picture of 150 KB takes 150 µs.
const (
	settle            = 500 * time.Microsecond
	settlePerFragment = time.Microsecond
)

// newVolley makes volleys of n requests of that picture. Its length must be a
// multiple of wire.DefaultFragmentBytes, so that the kernel can cut a train of last
// fragments.
func newVolley(port, n int, picture []byte) (*volley, error) {
	if len(picture)%wire.DefaultFragmentBytes != 0 {
		return nil, fmt.Errorf("send volleys of %d bytes: want a multiple of %d", len(picture), wire.DefaultFragmentBytes)
	}
	to := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(port))
	conn, err := net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(to))
	if err != nil {
		return nil, fmt.Errorf("open volley: %w", err)
	}
	v := &volley{
		conn: conn, n: n, fragments: len(picture) / wire.DefaultFragmentBytes, datagram: wire.HeaderSize + wire.DefaultFragmentBytes,
		id: uint32(time.Now().UnixNano()), room: make([]byte, wire.MaxDatagram),
	}
	if n*v.datagram > wire.MaxDatagram || n > 64 { // UDP_MAX_SEGMENTS of older kernels
		conn.Close()
		return nil, fmt.Errorf("send volleys of %d: want at most %d, which fit one train", n, min(64, wire.MaxDatagram/v.datagram))
	}
	for i := range v.fragments {
		b := make([]byte, v.datagram)
		h := wire.FragmentHeader(wire.TypeData, 0, len(picture), wire.DefaultFragmentBytes, i)
		h.Put(b)
		copy(b[wire.HeaderSize:], picture[i*wire.DefaultFragmentBytes:])
		v.bytes = append(v.bytes, b...)
	}
	v.last = make([]byte, n*v.datagram)
	v.control = segmentControl(uint16(v.datagram))
	return v, nil
}

func (v *volley) close() { v.conn.Close() }

// fire sends one volley and returns its results, without payloads, in the order of
// arrival. It fails if one of them does not arrive within patience.
func (v *volley) fire(ctx context.Context, patience time.Duration) ([]wire.Result, error) {
	first := v.id
	v.id += uint32(v.n)
	train := min(64, wire.MaxDatagram/v.datagram)
	for r := range v.n {
		for i := range v.fragments {
			binary.LittleEndian.PutUint32(v.bytes[i*v.datagram+4:], first+uint32(r))
		}
		copy(v.last[r*v.datagram:], v.bytes[(v.fragments-1)*v.datagram:])
		for from := 0; from < v.fragments-1; from += train {
			to := min(from+train, v.fragments-1)
			if _, _, err := v.conn.WriteMsgUDP(v.bytes[from*v.datagram:to*v.datagram], v.control, nil); err != nil {
				return nil, fmt.Errorf("send volley: %w", err)
			}
		}
	}
	time.Sleep(settle + time.Duration(v.n*v.fragments)*settlePerFragment)
	if _, _, err := v.conn.WriteMsgUDP(v.last, v.control, nil); err != nil {
		return nil, fmt.Errorf("send volley: %w", err)
	}
	results := make([]wire.Result, 0, v.n)
	seen := make([]bool, v.n)
	if err := v.conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return nil, err
	}
	for len(results) < v.n {
		n, err := v.conn.Read(v.room)
		if err != nil {
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			return nil, fmt.Errorf("wait for %d results of a volley of %d: %w", v.n-len(results), v.n, err)
		}
		h, result, _, err := wire.DecodeResult(v.room[:n])
		if errors.Is(err, wire.ErrType) {
			continue // a NACK, for what the kernel dropped: the request ends as incomplete
		}
		if err != nil {
			return nil, fmt.Errorf("read result: %w", err)
		}
		if i := h.RequestID - first; i < uint32(v.n) && !seen[i] {
			seen[i] = true
			results = append(results, result)
		}
	}
	return results, nil
}
