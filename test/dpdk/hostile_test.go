package dpdk

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/nodetest"
	"github.com/penstock/penstock/internal/testing/wait"
	"github.com/penstock/penstock/wire"
)

// TestForeignFrames sends frames that no kernel would
// send, and valid ones in between.
func TestForeignFrames(t *testing.T) {
	l := newLaboratory(t)
	// A packet of more than 1,500 bytes exceeds the port's MTU, but not the cable's.
	must.OK(t, run("ip", "link", "set", "cam0", "mtu", "9000"))
	l.node.must(t, "ip", "link", "set", "node0", "mtu", "9000")
	r := devices[0].start(t, l, setup{})
	h := newHost(t, address4)
	h.resolve()
	h6 := newHost(t, address6)
	h6.resolve()
	good, good6 := h.picture(1, nodetest.Picture(small, 1))[0], h6.picture(1, nodetest.Picture(small, 1))[0]
	const ethernet, ip4, ip6 = 14, 20, 40
	with := func(b []byte, change func(b []byte)) []byte {
		b = slices.Clone(b)
		change(b)
		return b
	}
	checksum := func(b []byte) { // computes the checksum of the IPv4 header again
		head := b[ethernet : ethernet+ip4]
		binary.BigEndian.PutUint16(head[10:], 0)
		sum := uint32(0)
		for i := 0; i < ip4; i += 2 {
			sum += uint32(binary.BigEndian.Uint16(head[i:]))
		}
		for sum > 0xffff {
			sum = sum>>16 + sum&0xffff
		}
		binary.BigEndian.PutUint16(head[10:], ^uint16(sum))
	}
	wrong := map[string][][]byte{
		"not_ip":  {h.frame(h.via, 0x88b5, gopacket.Payload(make([]byte, 100)))},
		"not_udp": {with(good, func(b []byte) { b[ethernet+9] = 6; checksum(b) }), with(good6, func(b []byte) { b[ethernet+6] = 6 })},
		"truncated": {
			good[:ethernet+ip4+4], good[:len(good)-50], good6[:ethernet+20], good6[:len(good6)-1],
		},
		"bad_header": {
			with(good, func(b []byte) { b[ethernet] = 0x43 }),
			with(good, func(b []byte) { b[ethernet+ip4+4], b[ethernet+ip4+5] = 0, 3 }),
		},
		"bad_checksum": {
			with(good, func(b []byte) { b[ethernet+10] ^= 1 }),
			with(good, func(b []byte) { b[len(b)-1] ^= 1 }),
			with(good6, func(b []byte) { b[len(b)-9] ^= 0x40 }),
		},
		"foreign_address": {with(good, func(b []byte) { b[ethernet+19]++; checksum(b) })},
		"foreign_port":    {h.to9999(good)},
		"bad_source":      {with(good, func(b []byte) { copy(b[ethernet+12:], []byte{224, 0, 0, 1}); checksum(b) })},
		// The cable transmits these frames, but they are larger than one of the
		// port's buffers.
		"scattered or truncated": {h.datagram(make([]byte, 8000)), h6.datagram(make([]byte, 5000))},
	}
	for reason, frames := range wrong {
		t.Run(reason, func(t *testing.T) {
			h.t = t
			count := func() (n float64) {
				for name := range strings.SplitSeq(reason, " or ") {
					n += r.dropped(t, name)
				}
				return n
			}
			before := count()
			for range 3 {
				h.send(frames...)
			}
			wait.For(t, "the frames to be counted", func() bool { return count() >= before+float64(3*len(frames)) })
			if got := count(); got > before+float64(3*len(frames)) {
				t.Errorf("%v were counted, %d were sent", got-before, 3*len(frames))
			}
		})
	}
	h.t = t
	for id := range uint32(20) {
		h.send(wrong["truncated"]...)
		h.send(wrong["bad_checksum"]...)
		h.ask(100+id, nodetest.Picture(small, int(id)))
	}
	nodetest.Settled(t, r.Node, "fn")
}

// TestIPFragments sends fragments of IP packets. The kernel of an af_packet
// port reassembles them itself, and keeps them until the rest arrives.
func TestIPFragments(t *testing.T) {
	for _, d := range devices[1:] {
		t.Run(d.name, func(t *testing.T) {
			l := newLaboratory(t)
			r := d.start(t, l, setup{})
			for _, to := range []netip.AddrPort{address4, address6} {
				h := newHost(t, to)
				h.resolve()
				before := r.dropped(t, "fragment")
				frames := h.fragments(h.picture(1, nodetest.Picture(small, 1))[0])
				h.send(frames...)
				wait.For(t, "fragments to be counted", func() bool { return r.dropped(t, "fragment") >= before+float64(len(frames)) })
				h.ask(2, nodetest.Picture(small, 2))
			}
			nodetest.Settled(t, r.Node, "fn")
		})
	}
}

// fragments divides a frame's IP packet into two fragments (RFC 791 3.2, RFC 8200
// 4.5).
func (h *host) fragments(frame []byte) [][]byte {
	h.t.Helper()
	const ethernet, ip4, ip6, cut = 14, 20, 40, 512
	if h.to.Addr().Is4() {
		payload := frame[ethernet+ip4:]
		part := func(flags layers.IPv4Flag, offset uint16, b []byte) []byte {
			kind, _, ip := h.ip(layers.IPProtocolUDP)
			head := ip.(*layers.IPv4)
			head.Id, head.Flags, head.FragOffset = 77, flags, offset
			return h.frame(h.via, kind, head, gopacket.Payload(b))
		}
		return [][]byte{part(layers.IPv4MoreFragments, 0, payload[:cut]), part(0, cut/8, payload[cut:])}
	}
	payload := frame[ethernet+ip6:]
	part := func(offset uint16, b []byte) []byte {
		kind, _, ip := h.ip(layers.IPProtocolIPv6Fragment)
		extension := []byte{byte(layers.IPProtocolUDP), 0, byte(offset >> 8), byte(offset), 0, 0, 0, 77}
		return h.frame(h.via, kind, ip, gopacket.Payload(append(extension, b...)))
	}
	return [][]byte{part(1, payload[:cut]), part(cut, payload[cut:])} // offset in units of eight bytes, shifted by three; 1: more fragments follow
}

// to9999 returns a datagram for a port that belongs to no function.
func (h *host) to9999([]byte) []byte {
	other := *h
	other.to = wirePort(h.to, 9999)
	return other.datagram(make([]byte, 64))
}

// TestNoise sends frames of random bytes, and valid ones with
// random bytes changed.
func TestNoise(t *testing.T) {
	for _, d := range devices {
		t.Run(d.name, func(t *testing.T) {
			l := newLaboratory(t)
			r := d.start(t, l, setup{})
			h := newHost(t, address4)
			h.resolve()
			good := h.picture(1, nodetest.Picture(small, 1))
			random := newRandom(5)
			for i := range 5000 {
				f := slices.Clone(good[i%len(good)])
				switch i % 3 {
				case 0:
					for j := 12; j < len(f); j++ {
						f[j] = byte(random.Uint32())
					}
					f = f[:14+random.IntN(len(f)-14)]
				case 1:
					f[12+random.IntN(60)] = byte(random.Uint32())
				case 2:
					f = f[:14+random.IntN(len(f)-14)]
				}
				h.send(f)
			}
			for id := range uint32(20) {
				h.ask(1000+id, nodetest.Picture(small, int(id)))
			}
			nodetest.Settled(t, r.Node, "fn")
		})
	}
}

// TestFewMbufs begins more pictures
// than fit into packet memory and completes none. Other pictures must still be
// answered.
func TestFewMbufs(t *testing.T) {
	l := newLaboratory(t)
	const mbufs = 4096
	r := devices[0].start(t, l, setup{
		bytes: 500 * fragmentBytes,
		more:  []string{"mbufs: 4096"},
		// Nothing expires during the test: memory must come from evictions.
		up: "aggregate: {deadline: 60s}",
	})
	h := newHost(t, address4)
	h.resolve()
	bytes := 500 * fragmentBytes
	for id := range uint32(3 * mbufs / 500) {
		frames := h.picture(id, nodetest.Picture(bytes, int(id)))
		for i := 0; i < 400; i += 50 {
			h.send(frames[i : i+50]...)
			time.Sleep(time.Millisecond)
		}
	}
	if held := nodetest.Metric(t, r.Node, `penstock_port_mbufs{state="held"}`); held == 0 {
		t.Error("no mbuf is held by the pictures that were begun")
	}
	whole := newHost(t, address4)
	whole.resolve()
	for id := range uint32(5) {
		p := nodetest.Picture(bytes, int(id))
		frames := whole.picture(id, p)
		for i := 0; i < len(frames); i += 50 {
			whole.send(frames[i:min(i+50, len(frames))]...)
			time.Sleep(time.Millisecond)
		}
		whole.askAgain(id, frames, p)
	}
	if evicted := nodetest.Metric(t, r.Node, `penstock_requests_evicted_total{function="fn"}`); evicted == 0 {
		text, _ := r.Metrics()
		t.Errorf("no request was evicted:\n%s", nodetest.Counted(text))
	}
	told := 0
	for {
		_, a, _ := h.answer(200 * time.Millisecond)
		if a == nil {
			break
		}
		if a.Status == wire.StatusIncomplete || a.Status == wire.StatusBusy {
			told++
		}
	}
	if told == 0 {
		t.Error("the client whose pictures were evicted was not told")
	}
}

// askAgain waits for the answer to a picture, and meanwhile sends the fragments that
// NACKs request.
func (h *host) askAgain(id uint32, frames [][]byte, p []byte) {
	h.t.Helper()
	deadline := time.Now().Add(patience)
	for time.Now().Before(deadline) {
		var done bool
		got := h.receive(500*time.Millisecond, func(packet gopacket.Packet) bool {
			udp, ok := packet.Layer(layers.LayerTypeUDP).(*layers.UDP)
			if !ok {
				return false
			}
			if nack, err := wire.DecodeNACK(udp.Payload); err == nil && nack.RequestID == id {
				for i := range nack.Missing {
					h.send(frames[i])
				}
				return true
			}
			head, a, payload, err := wire.DecodeResult(udp.Payload)
			if err != nil || head.RequestID != id {
				return false
			}
			if a.Status != wire.StatusOK {
				h.send(frames...) // evicted, or busy: send it again
				return true
			}
			done = isDigest(&a, payload, p)
			return true
		})
		if done {
			return
		}
		if got == nil {
			h.send(frames[0]) // query the state of the request
		}
	}
	h.t.Fatalf("request %d was not answered", id)
}
