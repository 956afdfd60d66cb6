package wire

import "errors"

// Reason is the reason why bytes were refused, for counters. The numbers may
// change between releases; the words do not.
type Reason uint8

// The reasons; the error of the same name explains each.
const (
	ReasonNone Reason = iota
	ReasonShort
	ReasonMagic
	ReasonVersion
	ReasonType
	ReasonFlags
	ReasonCount
	ReasonIndex
	ReasonLength
	ReasonTrailing
	ReasonTotal
	ReasonLast
	ReasonOffset
	ReasonFragments
	ReasonStatus
	ReasonKind
	ReasonNACK
	ReasonPayload

	// NumReasons is the size of an array indexed by Reason.
	NumReasons
)

var reasonWords = [NumReasons]string{
	"none", "short", "magic", "version", "type", "flags", "count", "index", "length",
	"trailing", "total", "last", "offset", "fragments", "status", "kind", "nack", "payload",
}

func (r Reason) String() string {
	if r < NumReasons {
		return reasonWords[r]
	}
	return "unknown"
}

// malformed is the type of all errors of this package. They are built once, so
// that refusing a datagram needs no allocation.
type malformed struct {
	reason Reason
	text   string
}

func (m *malformed) Error() string { return m.text }

// ReasonOf returns the reason of one of this package's errors, wrapped or not.
// It returns ReasonNone for any other error.
func ReasonOf(err error) Reason {
	if m, ok := err.(*malformed); ok {
		return m.reason
	}
	var m *malformed
	if errors.As(err, &m) {
		return m.reason
	}
	return ReasonNone
}

// The errors that decoders return.
var (
	// ErrShort is returned for fewer bytes than the size of the header, the
	// extension or the result block.
	ErrShort error = &malformed{ReasonShort, "datagram is shorter than its header"}
	// ErrMagic is returned when the first two bytes are not 'P', 'S'.
	ErrMagic error = &malformed{ReasonMagic, "magic number is missing"}
	// ErrVersion is returned for a version other than Version.
	ErrVersion error = &malformed{ReasonVersion, "unknown protocol version"}
	// ErrType is returned for a type that does not exist, or that the decoder
	// does not accept.
	ErrType error = &malformed{ReasonType, "unexpected datagram type"}
	// ErrFlags is returned for a reserved flag, or one that the type does not have.
	ErrFlags error = &malformed{ReasonFlags, "flag is reserved or not allowed for this datagram type"}
	// ErrCount is returned for a fragment count of 0.
	ErrCount error = &malformed{ReasonCount, "fragment count is zero"}
	// ErrIndex is returned for an index that is not below the count.
	ErrIndex error = &malformed{ReasonIndex, "fragment index is out of range"}
	// ErrLength is returned for an empty fragment, or one that ends after its
	// datagram.
	ErrLength error = &malformed{ReasonLength, "payload is empty or ends after the datagram"}
	// ErrTrailing is returned if bytes follow the payload that are not the
	// announced padding, or if that padding is missing.
	ErrTrailing error = &malformed{ReasonTrailing, "bytes after the payload do not match the padding flag"}
	// ErrTotal is returned for a total of 0 in a request, for any other total
	// in a busy answer, and for a fragment that ends after the total.
	ErrTotal error = &malformed{ReasonTotal, "fragment does not match the total size"}
	// ErrLast is returned if the last flag disagrees with index and count.
	ErrLast error = &malformed{ReasonLast, "last flag does not match the fragment index"}
	// ErrOffset is returned if the offset is not the index times a fragment size.
	ErrOffset error = &malformed{ReasonOffset, "offset does not match the fragment index"}
	// ErrFragments is returned if the total does not split into that many fragments
	// of that size.
	ErrFragments error = &malformed{ReasonFragments, "fragment count does not match the total size"}
	// ErrStatus is returned for an unknown status, for a status that the type
	// does not allow, and for a status other than ok with a payload.
	ErrStatus error = &malformed{ReasonStatus, "status is unknown or not allowed for this datagram type"}
	// ErrKind is returned for an unknown payload kind, and for a payload
	// without a kind.
	ErrKind error = &malformed{ReasonKind, "payload kind is unknown or missing"}
	// ErrNACK is returned for a NACK that names no fragment, or a fragment
	// that the request does not have, or whose bitmap does not match its number
	// of bits.
	ErrNACK error = &malformed{ReasonNACK, "NACK does not match its bitmap"}
	// ErrPayload is returned for a payload that has not the form of its kind.
	ErrPayload error = &malformed{ReasonPayload, "payload has not the form of its kind"}
)
