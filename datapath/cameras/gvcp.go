package cameras

import "encoding/binary"

// The GigE Vision Control Protocol, big-endian. A camera takes commands at ControlPort. This one requests packets.
//
//	 0  u8 0x42 · u8 flags · u16 command
//	 4  u16 length of the rest · u16 request id, not 0
//	 8  u16 stream channel · u16 block id; 0 if extended
//	12  u32 first packet id · u32 last packet id
//	20  u64 block id, if extended

// ControlPort is the UDP port of cameras for commands.
const ControlPort = 3956

const (
	commandKey   = 0x42
	extendedIDs  = 0x10
	packetResend = 0x0040
)

// Resend asks a camera to send the packets First to Last of a picture again.
type Resend struct {
	// Block is the picture. Extended: its id has 64 bits.
	Block       uint64
	Extended    bool
	First, Last uint32
}

// Append appends the command. Cameras do not acknowledge it.
func (r *Resend) Append(b []byte) []byte {
	flags, block := byte(0), uint32(uint16(r.Block))
	length := uint16(12)
	if r.Extended {
		flags, block, length = extendedIDs, 0, 20
	}
	b = append(b, commandKey, flags)
	for _, word := range []uint16{packetResend, length, 1} {
		b = binary.BigEndian.AppendUint16(b, word)
	}
	for _, word := range []uint32{block, r.First, r.Last} {
		b = binary.BigEndian.AppendUint32(b, word)
	}
	if r.Extended {
		b = binary.BigEndian.AppendUint64(b, r.Block)
	}
	return b
}
