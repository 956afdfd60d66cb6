// Package wire encodes and decodes the datagrams between client and manager
// over UDP. docs/wire.md is the same as a standard for clients in any language.
// Its examples are this package's golden bytes.
//
// A datagram is a Header, then the contents of its type:
//
//	data    Header · [Extension] · a fragment of the picture · [padding]    client -> manager
//	result  Header · Result · a fragment of the result's payload             manager -> client
//	busy    Header · Result with StatusBusy                               manager -> client
//	nack    Header · which fragments to send again                           manager -> client
//	hello   Header · Hello, and proof the same                               both
//
// Everything is little-endian and packed. The package is pure: it has no clock,
// no I/O and no state. Nothing allocates, except an Append that outgrows its
// destination. Any goroutine may call any function. Decoders accept hostile
// bytes: they never panic, and return one of this package's errors, whose
// Reason identifies a counter. Encoders take a caller's values and panic if the
// wire format cannot represent a value.
package wire

import "encoding/binary"

// HeaderSize is the size of a Header. After 14 bytes of Ethernet, 20 of IPv4
// and 8 of UDP, it puts what follows at byte 64 of the frame.
const HeaderSize = 22

// BlockSize is the size of the Extension and of the Result block. Either block
// keeps the payload's alignment the same as after the header alone.
const BlockSize = 64

// PaddingUnit divides the length of every padded datagram. In a train of
// datagrams packed back to back (UDP_GRO), every payload therefore has the same
// alignment.
const PaddingUnit = 16

// MaxDatagram is the largest UDP payload over IPv4: 65,535 − 20 (IPv4) − 8 (UDP).
const MaxDatagram = 65535 - 20 - 8

// MaxFragmentBytes is the max size of a fragment in a datagram with an extension or a
// result block.
const MaxFragmentBytes = MaxDatagram - HeaderSize - BlockSize

// DefaultFragmentBytes is the fragment size to use if nothing else is known. With all
// headers it fits every common MTU, and it is a multiple of 64.
const DefaultFragmentBytes = 1024

// MaxFragments is the max fragment count of a request or of a result.
const MaxFragments = 1<<16 - 1

// Version is the protocol version of this package.
const Version = 1

// magic is 'P', 'S' on the wire, read as a little-endian uint16.
const magic = 'P' | 'S'<<8

// Type is the type of a datagram.
type Type uint8

// The types. Clients send TypeData, managers send the next three, and both send the last two.
const (
	TypeData   Type = 1
	TypeResult Type = 2
	TypeNACK   Type = 3 // a NACK
	TypeBusy   Type = 4
	TypeHello  Type = 5
	TypeProof  Type = 6
)

func (t Type) String() string {
	switch t {
	case TypeData:
		return "data"
	case TypeResult:
		return "result"
	case TypeNACK:
		return "nack"
	case TypeBusy:
		return "busy"
	case TypeHello:
		return "hello"
	case TypeProof:
		return "proof"
	}
	return "unknown"
}

// Flags qualify a datagram. The bits not named here are reserved and zero.
type Flags uint8

// The flags. Data may have all of them, results and busy answers FlagLast and
// FlagRetransmitted, hellos and proofs FlagLast, NACKs none.
const (
	FlagLast          Flags = 1 // the fragment with the highest index
	FlagRetransmitted Flags = 2 // sent before, in full or in part
	FlagPadded        Flags = 4 // padded to a multiple of PaddingUnit
	FlagExtension     Flags = 8 // an Extension follows the header
)

// allowedFlags is indexed by type; a type that does not exist allows none.
var allowedFlags = [16]Flags{
	TypeData:   FlagLast | FlagRetransmitted | FlagPadded | FlagExtension,
	TypeResult: FlagLast | FlagRetransmitted,
	TypeBusy:   FlagLast | FlagRetransmitted,
	TypeHello:  FlagLast,
	TypeProof:  FlagLast,
}

// Header is the first 22 bytes of every datagram:
//
//	 0  u8 'P' · u8 'S' · u8 version (high nibble), type (low nibble) · u8 flags
//	 4  u32 request id
//	 8  u32 byte offset · u32 total bytes
//	16  u16 fragment index · u16 fragment count · u16 payload length
//
// In a data datagram, Offset, Total, Index and Count describe the picture; in a
// result, the result's payload. In a NACK, Total and Count repeat those of the
// request, and Length is the size of what follows the header.
type Header struct {
	Type          Type
	Flags         Flags
	RequestID     uint32
	Offset, Total uint32 // bytes
	Index, Count  uint16 // fragments
	Length        uint16 // bytes of payload in this datagram
}

// Put writes the header to the first HeaderSize bytes of b.
func (h *Header) Put(b []byte) {
	b = b[:HeaderSize:HeaderSize]
	binary.LittleEndian.PutUint16(b[0:], magic)
	b[2] = Version<<4 | byte(h.Type)
	b[3] = byte(h.Flags)
	binary.LittleEndian.PutUint32(b[4:], h.RequestID)
	binary.LittleEndian.PutUint32(b[8:], h.Offset)
	binary.LittleEndian.PutUint32(b[12:], h.Total)
	binary.LittleEndian.PutUint16(b[16:], h.Index)
	binary.LittleEndian.PutUint16(b[18:], h.Count)
	binary.LittleEndian.PutUint16(b[20:], h.Length)
}

// PayloadOffset is the payload's offset in h's datagram: after the header, and
// after the extension or the result block if there is one.
func PayloadOffset(h *Header) int {
	if h.Flags&FlagExtension != 0 || h.Type == TypeResult || h.Type == TypeBusy {
		return HeaderSize + BlockSize
	}
	return HeaderSize
}

// DatagramSize is the length of h's datagram, padding included.
func DatagramSize(h *Header) int {
	n := PayloadOffset(h) + int(h.Length)
	if h.Flags&FlagPadded != 0 {
		n = (n + PaddingUnit - 1) &^ (PaddingUnit - 1)
	}
	return n
}

// FragmentSize is the size in bytes of every fragment except the last, of the picture
// or result to which h's datagram belongs. A checked header always determines
// it. A fragment that is not the last has the full size. The last one's offset is
// its index times the size. A single fragment is everything. FragmentSize is 0 for a
// NACK, a busy answer, and a result without payload.
func FragmentSize(h *Header) uint32 {
	switch {
	case h.Type == TypeNACK:
		return 0
	case h.Index == 0 || h.Index != h.Count-1:
		return uint32(h.Length)
	}
	return h.Offset / uint32(h.Index)
}

// Fragments is the number of fragments of fragmentBytes that hold total bytes; at least
// one.
func Fragments(total, fragmentBytes int) int {
	if total == 0 {
		return 1
	}
	return (total-1)/fragmentBytes + 1
}

// FragmentHeader is the header of fragment index, if total bytes are split into
// fragments of fragmentBytes. It sets FlagLast and no other flag.
func FragmentHeader(t Type, requestID uint32, total, fragmentBytes, index int) Header {
	count := Fragments(total, fragmentBytes)
	if uint64(total) > 1<<32-1 || count > MaxFragments || fragmentBytes > MaxFragmentBytes || uint(index) >= uint(count) {
		panic("wire: no such fragment")
	}
	h := Header{
		Type:      t,
		RequestID: requestID,
		Offset:    uint32(index * fragmentBytes),
		Total:     uint32(total),
		Index:     uint16(index),
		Count:     uint16(count),
		Length:    uint16(min(fragmentBytes, total-index*fragmentBytes)),
	}
	if index == count-1 {
		h.Flags = FlagLast
	}
	return h
}

// DecodeHeader reads the header of the datagram b and checks everything that is
// checkable within one datagram. It accepts exactly what a client or manager
// that follows docs/wire.md can have sent. The payload is
// b[PayloadOffset(&h):][:h.Length].
func DecodeHeader(b []byte) (Header, error) { return checkHeader(b, len(b)) }

// checkHeader is DecodeHeader for a datagram of datagramBytes, of which b holds
// at least the first HeaderSize bytes. The rest may be elsewhere.
func checkHeader(b []byte, datagramBytes int) (h Header, err error) {
	err = h.Read(b, datagramBytes)
	return h, err
}

// Read is checkHeader into h, which holds nothing useful if Read fails. It
// writes field by field: a copy of a whole Header that was just written waits
// for its stores, for longer than all of Read takes.
func (h *Header) Read(b []byte, datagramBytes int) error {
	if len(b) < HeaderSize || datagramBytes < HeaderSize {
		return ErrShort
	}
	b = b[:HeaderSize:HeaderSize]
	if binary.LittleEndian.Uint16(b) != magic {
		return ErrMagic
	}
	if b[2]>>4 != Version {
		return ErrVersion
	}
	h.Type, h.Flags = Type(b[2]&15), Flags(b[3])
	h.RequestID = binary.LittleEndian.Uint32(b[4:])
	h.Offset, h.Total = binary.LittleEndian.Uint32(b[8:]), binary.LittleEndian.Uint32(b[12:])
	h.Index, h.Count = binary.LittleEndian.Uint16(b[16:]), binary.LittleEndian.Uint16(b[18:])
	h.Length = binary.LittleEndian.Uint16(b[20:])
	return h.check(datagramBytes)
}

// ReadCut is Read for a datagram that was cut after its header, or within what
// follows. It does not check the datagram's length, and assumes that it was as
// the header says.
func (h *Header) ReadCut(b []byte) error {
	err := h.Read(b, HeaderSize)
	if err == ErrLength && h.Length > 0 {
		return h.check(DatagramSize(h))
	}
	if err == nil {
		return ErrLength // nothing was cut
	}
	return err
}

func (h *Header) check(datagramBytes int) error {
	if h.Type < TypeData || h.Type > TypeProof {
		return ErrType
	}
	if h.Flags&^allowedFlags[h.Type&15] != 0 {
		return ErrFlags
	}
	if h.Count == 0 {
		return ErrCount
	}
	if h.Index >= h.Count {
		return ErrIndex
	}
	end := PayloadOffset(h) + int(h.Length)
	if end > datagramBytes {
		return ErrLength
	}
	if DatagramSize(h) != datagramBytes {
		return ErrTrailing
	}
	if h.Type == TypeNACK {
		return h.checkNACK()
	}
	return h.checkFragment()
}

// checkFragment checks that some fragment size makes this fragment of this total. The
// length of a fragment other than the last gives the size. For the last one the
// offset does, so that only the last needs a division.
func (h *Header) checkFragment() error {
	last := h.Index == h.Count-1
	if last != (h.Flags&FlagLast != 0) {
		return ErrLast
	}
	offset, length, total := uint64(h.Offset), uint64(h.Length), uint64(h.Total)
	index, count := uint64(h.Index), uint64(h.Count)
	if total == 0 {
		return h.checkEmpty()
	}
	if h.Type == TypeBusy {
		return ErrTotal
	}
	if length == 0 {
		return ErrLength
	}
	if offset+length > total {
		return ErrTotal
	}
	if last {
		return checkLast(index, offset, length, total)
	}
	if offset != index*length {
		return ErrOffset
	}
	if (count-1)*length >= total || total > count*length {
		return ErrFragments
	}
	return nil
}

// checkLast is checkFragment for the last fragment.
func checkLast(index, offset, length, total uint64) error {
	if index == 0 {
		if offset != 0 {
			return ErrOffset
		}
	} else {
		size := offset / index
		if size == 0 || size > 1<<16-1 || size*index != offset {
			return ErrOffset
		}
		if length > size {
			return ErrFragments
		}
	}
	if offset+length != total {
		return ErrFragments
	}
	return nil
}

// checkEmpty is checkFragment for a total of 0, which only an answer may have.
func (h *Header) checkEmpty() error {
	switch {
	case h.Type == TypeData || h.Length != 0:
		return ErrTotal
	case h.Count != 1:
		return ErrFragments
	case h.Offset != 0:
		return ErrOffset
	}
	return nil
}
