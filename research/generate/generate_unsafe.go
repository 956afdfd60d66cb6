//go:build dpdk && cgo

package generate

// #cgo pkg-config: libdpdk
// #include <stdlib.h>
// #include "generate.h"
import "C"

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/wire"
)

// Traffic is what a Generator makes.
type Traffic struct {
	// From is the client, To a function's address. Both are IPv4, so that the headers
	// take 64 bytes.
	From, To netip.AddrPort
	// A request consists of Fragments full fragments of FragmentBytes each.
	Fragments, FragmentBytes int
	// Complete also writes the payload of each frame. A real NIC does that without the
	// CPU.
	Complete bool
}

// descriptors is the number of buffers in the queue, as on a NIC's ring. A buffer is no
// longer in the CPU's caches when its turn comes.
const descriptors = 1024

// headerBytes precede the payload of every frame: Ethernet 14, IPv4 20, UDP 8,
// Penstock 22.
const headerBytes = C.GEN_HEADERS

// FrameBytes is the length of each frame.
func (t Traffic) FrameBytes() int { return headerBytes + t.FragmentBytes }

// Device is the DPDK port that provides buffers for such frames without filling them.
func (t Traffic) Device() string { return fmt.Sprintf("net_null0,size=%d,copy=0", t.FrameBytes()) }

// Generator is traffic on one queue of a port.
type Generator struct {
	port, queue C.uint16_t
	stream      *C.struct_gen_stream
	callback    unsafe.Pointer
}

// Forever is a limit that no generator reaches.
const Forever = ^uint64(0)

// Attach installs the generator on a queue of a port. It makes no frames until Allow. No
// thread may poll the queue during the call.
func Attach(device string, queue int, t Traffic) (_ *Generator, err error) {
	name, _, _ := strings.Cut(device, ",")
	g := &Generator{queue: C.uint16_t(queue), stream: C.gen_new(descriptors)}
	if g.stream == nil {
		return nil, unix.ENOMEM
	}
	defer func() {
		if err != nil {
			C.gen_release(g.stream)
			err = fmt.Errorf("make traffic on %s: %w", name, err)
		}
	}()
	if !t.From.Addr().Is4() || !t.To.Addr().Is4() || t.Fragments < 1 || t.FragmentBytes < 1 || t.FragmentBytes > C.GEN_PAYLOAD {
		return nil, fmt.Errorf("%+v: want IPv4 addresses, pieces, and 1 to %d bytes of each", t, C.GEN_PAYLOAD)
	}
	cname := C.CString(name)
	defer C.free(unsafe.Pointer(cname))
	if code := C.gen_port(cname, &g.port); code != 0 {
		return nil, unix.Errno(-code)
	}
	for i, b := range t.Headers([6]byte{}) { // the callback fills in the port's own address
		g.stream.headers[i] = C.uint8_t(b)
	}
	if t.Complete {
		g.stream.whole = 1
	}
	g.stream.pieces, g.stream.piece_bytes = C.uint32_t(t.Fragments), C.uint32_t(t.FragmentBytes)
	if g.callback = C.gen_attach(g.port, g.queue, g.stream); g.callback == nil {
		return nil, unix.EINVAL
	}
	return g, nil
}

// Headers returns the headers of a request's first fragment, for a port with the
// Ethernet address to.
func (t Traffic) Headers(to [6]byte) []byte {
	b := make([]byte, headerBytes)
	const ethernet, ip, udp = 14, 20, 8
	copy(b, to[:])
	copy(b[6:], []byte{2, 0, 0, 0, 0, 1, 8, 0})
	h := b[ethernet:]
	h[0] = 0x45
	binary.BigEndian.PutUint16(h[2:], uint16(t.FrameBytes()-ethernet))
	h[8], h[9] = 64, unix.IPPROTO_UDP
	src, dst := t.From.Addr().As4(), t.To.Addr().As4()
	copy(h[12:], src[:])
	copy(h[16:], dst[:])
	binary.BigEndian.PutUint16(h[10:], headerChecksum(h[:ip]))
	binary.BigEndian.PutUint16(h[ip:], t.From.Port())
	binary.BigEndian.PutUint16(h[ip+2:], t.To.Port())
	binary.BigEndian.PutUint16(h[ip+4:], uint16(t.FrameBytes()-ethernet-ip))
	// The UDP checksum is 0: "none" over IPv4 (RFC 768). With a real NIC, the NIC
	// verifies it.
	fragment := wire.FragmentHeader(wire.TypeData, 0, t.Fragments*t.FragmentBytes, t.FragmentBytes, 0)
	fragment.Flags = 0
	fragment.Put(h[ip+udp:])
	return b
}

// headerChecksum is the checksum of an IPv4 header whose checksum field is zero (RFC
// 1071).
func headerChecksum(h []byte) uint16 {
	sum := uint32(0)
	for i := 0; i < len(h); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(h[i:]))
	}
	sum = sum>>16 + sum&0xffff
	return ^uint16(sum>>16 + sum)
}

// Allow sets the limit for the total number of frames.
func (g *Generator) Allow(limit uint64) {
	atomic.StoreUint64((*uint64)(&g.stream.limit), limit)
}

// Made is the number of frames so far. It is exact while no thread polls the queue.
func (g *Generator) Made() uint64 { return atomic.LoadUint64((*uint64)(&g.stream.made)) }

// Drain polls the queue so many times and frees what comes. It is the bare path of a frame,
// with which a benchmark compares. No other thread may poll the queue.
func (g *Generator) Drain(polls int) { C.gen_drain(g.port, g.queue, C.uint64_t(polls)) }

// DrainRead is Drain that also reads every frame's first cache line, which holds its headers.
func (g *Generator) DrainRead(polls int) {
	var sum C.uint64_t
	C.gen_drain_read(g.port, g.queue, C.uint64_t(polls), &sum)
}

// Close removes the generator. No thread may poll the queue any more.
func (g *Generator) Close() error {
	defer C.gen_release(g.stream)
	if code := C.gen_detach(g.port, g.queue, g.callback); code != 0 {
		return fmt.Errorf("end traffic: %w", unix.Errno(-code))
	}
	return nil
}

// Fragment writes the fields of one fragment of a request into a frame that begins with
// Headers.
func Fragment(frame []byte, request uint32, index, fragments, fragmentBytes int) {
	h := wire.FragmentHeader(wire.TypeData, request, fragments*fragmentBytes, fragmentBytes, index)
	h.Put(frame[headerBytes-wire.HeaderSize:])
}
