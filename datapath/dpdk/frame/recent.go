package frame

import "encoding/binary"

// Recent caches the flows that one thread has parsed lately, so that their next frames need
// no parsing. Datagrams of one client differ in their payload, and in these header fields:
// lengths, the IP identification and checksums. Recent checks those as Parse does; it
// compares the other fields, which are a few words.
//
// It handles IPv4 without options and tags; everything else needs Parse. Its zero value is
// ready. Only one goroutine may use it.
type Recent struct{ flows [recentFlows]Flow }

const recentFlows = 16

// Flow holds what frames of one client to one port have in common.
type Flow struct {
	Datagram
	// Learned is when a Learner last learned the flow; the caller keeps it with Told.
	Learned int64

	known bool
	// The constant header fields, and their partial sums.
	ether    [2]uint64 // with the IP header's first two bytes
	fragment uint32    // and time to live, protocol
	between  uint64    // addresses
	ports    uint32
	ip       uint64
	pseudo   uint64
}

// Offsets in an Ethernet frame with IPv4 and UDP, without tags and options.
const (
	atLength   = etherBytes + 2
	atID       = etherBytes + 4
	atFragment = etherBytes + 6
	atChecksum = etherBytes + 10
	atBetween  = etherBytes + 12
	atUDP      = etherBytes + ip4Bytes
	plainBytes = atUDP + udpBytes
)

func (r *Recent) slot(b []byte) *Flow {
	return &r.flows[(b[atUDP+1]^b[atBetween+3])%recentFlows]
}

// Find returns the flow of a frame for which Parse would return OK, with this frame's
// Datagram; it is valid until the next call. Find returns nil if Parse must handle the frame.
// The NIC must not have removed a tag from the frame.
func (r *Recent) Find(b []byte, check Checks) *Flow {
	if len(b) < plainBytes {
		return nil
	}
	f := r.slot(b)
	if binary.LittleEndian.Uint64(b) != f.ether[0] || binary.LittleEndian.Uint64(b[8:]) != f.ether[1] ||
		binary.LittleEndian.Uint64(b[atBetween:]) != f.between || binary.LittleEndian.Uint32(b[atUDP:]) != f.ports ||
		binary.LittleEndian.Uint32(b[atFragment:]) != f.fragment || !f.known {
		return nil
	}
	total, length := int(binary.BigEndian.Uint16(b[atLength:])), int(binary.BigEndian.Uint16(b[atUDP+4:]))
	if total > len(b)-etherBytes || length < udpBytes || length > total-ip4Bytes {
		return nil
	}
	if check&CheckIP != 0 {
		s := f.ip + uint64(binary.LittleEndian.Uint32(b[atLength:])) + uint64(binary.LittleEndian.Uint16(b[atChecksum:]))
		if fold(s) != 0xffff {
			return nil
		}
	}
	if check&CheckUDP != 0 {
		if sent := binary.BigEndian.Uint16(b[atUDP+6:]); sent != 0 {
			s := sum16(uint16(length), f.pseudo)
			if (check&AllowUnfilled == 0 || sent != fold(s)) && fold(sum(b[atUDP:atUDP+length], s)) != 0xffff {
				return nil
			}
		}
	}
	f.Payload = Span{Offset: plainBytes, Length: uint32(length - udpBytes)}
	return f
}

// Note adds the flow of a frame for which Parse returned OK with datagram d. It may replace
// another flow. It returns the flow, or nil if Recent cannot handle such frames.
func (r *Recent) Note(b []byte, d *Datagram) *Flow {
	if len(b) < plainBytes || binary.BigEndian.Uint32(b[12:])>>8 != typeIP4<<8|0x45 || d.Payload.Offset != plainBytes {
		return nil
	}
	f := r.slot(b)
	*f = Flow{
		Datagram: *d, known: true,
		ether:    [2]uint64{binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:])},
		fragment: binary.LittleEndian.Uint32(b[atFragment:]),
		between:  binary.LittleEndian.Uint64(b[atBetween:]),
		ports:    binary.LittleEndian.Uint32(b[atUDP:]),
	}
	// Add halves of the sum, so that there is no carry between them yet.
	f.ip = uint64(binary.LittleEndian.Uint16(b[etherBytes:])) + uint64(f.fragment) + f.between>>32 + f.between&(1<<32-1)
	f.pseudo = pseudo(b[atBetween:atBetween+8], protoUDP, 0)
	return f
}

// Told records that a Learner learned a flow at now. It marks the other flows of the same
// client as stale. If one of them comes again, the Learner must learn it again, because
// answers go back by the path of the last datagram.
func (r *Recent) Told(f *Flow, now int64) {
	for i := range r.flows {
		if o := &r.flows[i]; o != f && o.known && o.From.Addr() == f.From.Addr() {
			o.Learned = 0
		}
	}
	f.Learned = now
}

// Stale reports whether a Learner must learn a flow again.
func (f *Flow) Stale(now int64) bool { return f.Learned == 0 || now-f.Learned >= relearn }
