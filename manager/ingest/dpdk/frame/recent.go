package frame

import "encoding/binary"

// Recent knows the flows that one thread has parsed lately, and spares it the parsing of
// their next frames: a client's datagrams differ in their payload, and of their headers in
// lengths, the IP identification and checksums. Those are looked at as Parse does; the
// others are compared, a few words.
//
// It knows IPv4 without options and tags; what else there is takes Parse. Its zero value
// is ready. One goroutine uses it.
type Recent struct{ flows [recentFlows]Flow }

const recentFlows = 16

// Flow is what frames of one client to one port have in common.
type Flow struct {
	Datagram
	// Learned is when a Learner was told of it, for the caller to keep; see Told.
	Learned int64

	known bool
	// The headers but for what differs, and the sums of what is summed of them.
	ether    [2]uint64 // with the IP header's first two bytes
	fragment uint32    // and time to live, protocol
	between  uint64    // addresses
	ports    uint32
	ip       uint64
	pseudo   uint64
}

// Places in an Ethernet frame with IPv4 and UDP, without tags and options.
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

// Find is the flow that a frame belongs to, its Datagram this frame's, where Parse would
// say OK: valid until the next call. It is nil where Parse has to look. The NIC has taken
// no tag off the frame.
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

// Note makes a frame's flow known that Parse called OK, d its datagram, in place of
// another, and returns it; it is nil where the frame is not of the kind that is known.
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
	// Halves of the sum, which carry nothing into each other yet.
	f.ip = uint64(binary.LittleEndian.Uint16(b[etherBytes:])) + uint64(f.fragment) + f.between>>32 + f.between&(1<<32-1)
	f.pseudo = pseudo(b[atBetween:atBetween+8], protoUDP, 0)
	return f
}

// Told notes that a Learner was told of a flow at now. Of others of the same client it was
// told before: when one of them comes again it has to be told again, for answers go back
// the way of the last datagram.
func (r *Recent) Told(f *Flow, now int64) {
	for i := range r.flows {
		if o := &r.flows[i]; o != f && o.known && o.From.Addr() == f.From.Addr() {
			o.Learned = 0
		}
	}
	f.Learned = now
}

// Stale reports whether a Learner should hear of a flow again.
func (f *Flow) Stale(now int64) bool { return f.Learned == 0 || now-f.Learned >= relearn }
