package wire

import (
	"encoding/binary"
	"net/netip"
	"time"
)

// Status is how a request ended.
type Status uint8

// The statuses.
const (
	// StatusOK has the result's payload.
	StatusOK Status = 0
	// StatusLate means that the request could no longer meet its deadline and
	// did not run.
	StatusLate Status = 1
	// StatusIncomplete means that fragments were missing when the aggregation
	// ended; Missing is their number.
	StatusIncomplete Status = 2
	// StatusBusy means that there was no room for the request. The datagram has
	// TypeBusy.
	StatusBusy Status = 3
	// StatusRefused means that the request can never run: it is not a picture
	// that the model takes.
	StatusRefused Status = 4
	// StatusFailed means that the request was complete and its run failed.
	StatusFailed Status = 5
	// StatusMoved means that the client is to send the request, and others, to Moved. Only clients that follow get it.
	StatusMoved Status = 6
	// NumStatuses is the size of an array indexed by Status.
	NumStatuses = 7
)

var statusWords = [NumStatuses]string{"ok", "late", "incomplete", "busy", "refused", "failed", "moved"}

func (s Status) String() string {
	if int(s) < len(statusWords) {
		return statusWords[s]
	}
	return "unknown"
}

// Kind is the kind of a result's payload.
type Kind uint8

// The payload kinds. Content.Decode reads them all.
const (
	KindNone      Kind = 0  // no payload
	KindTopK      Kind = 1  // the likeliest classes
	KindBoxes     Kind = 2  // boxes
	KindRaw       Kind = 3  // the model's outputs as f32, in the card's order
	KindPoints    Kind = 4  // boxes with points
	KindMasks     Kind = 5  // boxes with masks
	KindPolygons  Kind = 6  // outlines, such as rotated boxes
	KindEmbedding Kind = 7  // a vector of length 1
	KindMap       Kind = 8  // a value per cell of a grid
	KindText      Kind = 9  // a line of text
	KindTensors   Kind = 10 // the model's outputs with names, types and shapes
	// NumKinds is the number of kinds.
	NumKinds = 11
)

var kindWords = [NumKinds]string{"none", "topk", "boxes", "raw", "points", "masks", "polygons", "embedding", "map", "text", "tensors"}

func (k Kind) String() string {
	if int(k) < len(kindWords) {
		return kindWords[k]
	}
	return "unknown"
}

// Result is the block after the header of every result and busy datagram. Each
// fragment of a result has the complete block. 64 bytes:
//
//	 0  u8 status · u8 payload kind · u16 batch
//	 4  u16 credit · u16 missing fragments
//	 8  u32 model version
//	12  u32 aggregate · u32 queue · u32 gather · u32 infer · u32 reply, all µs
//	32  u64 the client's send time
//	40  u64 address cookie, 0 for none
//	48  u32 the function's latency objective, µs, 0 for unknown
//	52  u32 the size of the function's pictures, 0 for unknown
//	56  u32 the size of the largest picture of another format or shape, 0 for none
//	60  u8 1 if the function needs a token, else 0 · 3 × zero, ignored when read
//
// With StatusMoved no stage was reached. In the place of their times are:
//
//	12  16 × IPv6 address, ::ffff:0:0/96 for IPv4 · u16 port · u16 lifetime, s
type Result struct {
	Status Status
	Kind   Kind
	// Batch is the number of requests in this request's batch, 0 if it did not
	// run.
	Batch uint16
	// Credit is how many more requests of this client the manager had room for
	// when the answer left, not counting those that it had already seen.
	Credit uint16
	// Missing is the number of missing fragments, with StatusIncomplete.
	Missing      uint16
	ModelVersion uint32
	// The stage times; 0 for stages that the request did not reach. The wire
	// has whole microseconds, at most 71 minutes.
	//
	//	Aggregate  first fragment arrived -> request complete
	//	Queue      complete -> taken into a batch
	//	Gather     taken -> fragments gathered into the batch tensor
	//	Infer      gathered -> inferred
	//	Reply      inferred -> answer leaves
	Aggregate, Queue, Gather, Infer, Reply time.Duration
	// SentAt repeats Extension.SentAt; 0 if the request had no extension.
	SentAt uint64
	// Cookie is the value for the client to echo in Extension.Cookie. 0 means
	// that the manager needs no proof of the client's address.
	Cookie uint64
	// Objective is the latency objective of the function, counted like
	// Extension.Deadline. 0 comes from a manager that is older than this field.
	// The wire has whole microseconds, at most 71 minutes.
	Objective time.Duration
	// PictureBytes is the size of the function's pictures. Only StatusRefused has it.
	PictureBytes uint32
	// LargestPicture is the size of the largest Extension.Picture that the function takes. 0 means that it takes none.
	LargestPicture uint32
	// NeedsToken is set with StatusRefused if the function has keys, and the request had no valid token.
	NeedsToken bool
	// Moved is where the client is to send requests for Lifetime, with StatusMoved. Lifetime 0 is for this request only.
	// The wire has whole seconds, rounded up, at most 18 hours.
	Moved    netip.AddrPort
	Lifetime time.Duration
}

// StageNames are the names of the stages in reports, in order.
var StageNames = [...]string{"aggregate", "queue", "gather", "infer", "reply"}

// Stages is the time that the request spent in the manager.
func (r *Result) Stages() time.Duration {
	return r.Aggregate + r.Queue + r.Gather + r.Infer + r.Reply
}

// Put writes the block to the first BlockSize bytes of b.
func (r *Result) Put(b []byte) {
	b = b[:BlockSize:BlockSize]
	b[0] = byte(r.Status)
	b[1] = byte(r.Kind)
	binary.LittleEndian.PutUint16(b[2:], r.Batch)
	binary.LittleEndian.PutUint16(b[4:], r.Credit)
	binary.LittleEndian.PutUint16(b[6:], r.Missing)
	binary.LittleEndian.PutUint32(b[8:], r.ModelVersion)
	if r.Status == StatusMoved {
		to := r.Moved.Addr().As16()
		copy(b[12:], to[:])
		binary.LittleEndian.PutUint16(b[28:], r.Moved.Port())
		binary.LittleEndian.PutUint16(b[30:], uint16(min((r.Lifetime+time.Second-1)/time.Second, 1<<16-1)))
	} else {
		for i, stage := range [...]time.Duration{r.Aggregate, r.Queue, r.Gather, r.Infer, r.Reply} {
			binary.LittleEndian.PutUint32(b[12+4*i:], micros(stage))
		}
	}
	binary.LittleEndian.PutUint64(b[32:], r.SentAt)
	binary.LittleEndian.PutUint64(b[40:], r.Cookie)
	binary.LittleEndian.PutUint32(b[48:], micros(r.Objective))
	binary.LittleEndian.PutUint32(b[52:], r.PictureBytes)
	binary.LittleEndian.PutUint32(b[56:], r.LargestPicture)
	clear(b[60:])
	if r.NeedsToken {
		b[60] = 1
	}
}

// AppendResult appends the datagram for fragment index of an answer, whose payload
// is split into fragments of fragmentBytes (Fragments returns their number). again sets
// the flag of a repeated answer. The caller owns the payload, which is copied.
// An answer that is not ok has no payload, and an answer with a payload has a
// kind.
func AppendResult(dst []byte, requestID uint32, r *Result, payload []byte, fragmentBytes, index int, again bool) []byte {
	return AppendPart(dst, requestID, r, len(payload), payload, 0, fragmentBytes, index, again)
}

// AppendPart is AppendResult for a payload of total bytes of which only a part is known. The part begins at
// byte from and contains fragment index.
func AppendPart(dst []byte, requestID uint32, r *Result, total int, part []byte, from, fragmentBytes, index int, again bool) []byte {
	if total > 0 && (r.Status != StatusOK || r.Kind == KindNone) {
		panic("wire: payload needs status ok and a kind")
	}
	t := TypeResult
	if r.Status == StatusBusy {
		t = TypeBusy
	}
	h := FragmentHeader(t, requestID, total, fragmentBytes, index)
	if again {
		h.Flags |= FlagRetransmitted
	}
	var head [HeaderSize + BlockSize]byte
	h.Put(head[:])
	r.Put(head[HeaderSize:])
	dst = append(dst, head[:]...)
	return append(dst, part[int(h.Offset)-from:][:h.Length]...)
}

// DecodeResult reads an answer: a datagram of TypeResult or TypeBusy. The
// payload is the fragment that h describes; it aliases b.
func DecodeResult(b []byte) (h Header, r Result, payload []byte, err error) {
	if h, err = DecodeHeader(b); err != nil {
		return h, r, nil, err
	}
	if h.Type != TypeResult && h.Type != TypeBusy {
		return h, r, nil, ErrType
	}
	block := b[HeaderSize:][:BlockSize] // checked: PayloadOffset is within the datagram
	r = Result{
		Status:         Status(block[0]),
		Kind:           Kind(block[1]),
		Batch:          binary.LittleEndian.Uint16(block[2:]),
		Credit:         binary.LittleEndian.Uint16(block[4:]),
		Missing:        binary.LittleEndian.Uint16(block[6:]),
		ModelVersion:   binary.LittleEndian.Uint32(block[8:]),
		SentAt:         binary.LittleEndian.Uint64(block[32:]),
		Cookie:         binary.LittleEndian.Uint64(block[40:]),
		Objective:      time.Duration(binary.LittleEndian.Uint32(block[48:])) * time.Microsecond,
		PictureBytes:   binary.LittleEndian.Uint32(block[52:]),
		LargestPicture: binary.LittleEndian.Uint32(block[56:]),
		NeedsToken:     block[0] == byte(StatusRefused) && block[60] == 1,
	}
	if r.Status == StatusMoved {
		r.Moved = netip.AddrPortFrom(netip.AddrFrom16([16]byte(block[12:])).Unmap(), binary.LittleEndian.Uint16(block[28:]))
		r.Lifetime = time.Duration(binary.LittleEndian.Uint16(block[30:])) * time.Second
		if a := r.Moved.Addr(); a.IsUnspecified() || a.IsMulticast() || r.Moved.Port() == 0 {
			return h, r, nil, ErrStatus
		}
	} else {
		for i, stage := range [...]*time.Duration{&r.Aggregate, &r.Queue, &r.Gather, &r.Infer, &r.Reply} {
			*stage = time.Duration(binary.LittleEndian.Uint32(block[12+4*i:])) * time.Microsecond
		}
	}
	switch {
	case r.Status >= NumStatuses, (r.Status == StatusBusy) != (h.Type == TypeBusy):
		return h, r, nil, ErrStatus
	case r.Status != StatusOK && h.Total != 0:
		return h, r, nil, ErrStatus
	case r.Kind >= NumKinds, r.Kind == KindNone && h.Total != 0:
		return h, r, nil, ErrKind
	}
	return h, r, b[HeaderSize+BlockSize:], nil
}
