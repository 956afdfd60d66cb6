package wire

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// The golden bytes are in examples/client/datagrams.md: blocks fenced as
// "hexdump NAME".

// The request of the examples: a picture of 40 bytes in fragments of 16.
const (
	exampleID       = 0x01020304
	exampleFragment = 16
)

func examplePicture() []byte {
	b := make([]byte, 40)
	for i := range b {
		b[i] = 0x80 + byte(i)
	}
	return b
}

// exampleCookie is the bytes a0 a1 … a7.
const exampleCookie = 0xa7a6a5a4a3a2a1a0

var exampleProof = Extension{Cookie: exampleCookie}

var exampleQuestion = Extension{Cookie: exampleCookie, Missing: Missing{base: 3, span: 256, bitmap: [MaxMissing / 8]byte{0: 0b101, 31: 0x80}}}

var exampleRequest = Extension{
	Cookie: exampleCookie, LowestScore: 0x4000, Stream: 0x01020304, Picture: Picture{Format: FormatUYVY, Width: 4, Height: 4, Stride: 10, Colours: BT709 | FullRange},
}

var exampleFollows = Extension{Cookie: exampleCookie, Follows: true}

var exampleExtension = Extension{Deadline: 25 * time.Millisecond, Priority: 3, SentAt: 0x1122334455667788}

var (
	exampleClasses = []Class{{Class: 9, P: 0.75}, {Class: 258, P: 0.125}}
	exampleTopK    = Result{
		Status: StatusOK, Kind: KindTopK, Batch: 4, Credit: 7, ModelVersion: 2,
		Aggregate: 300 * time.Microsecond, Queue: 1500 * time.Microsecond, Gather: 40 * time.Microsecond,
		Infer: 2 * time.Millisecond, Reply: 15 * time.Microsecond, SentAt: 0x1122334455667788,
	}
	exampleBoxes      = []Box{{Class: 1, Score: 0.5, X0: 0, Y0: 0.25, X1: 0.5, Y1: 1}}
	exampleBoxResult  = Result{Status: StatusOK, Kind: KindBoxes, Batch: 1, Credit: 64, ModelVersion: 1}
	exampleTensors    = []Tensor{{Name: "num", Type: "i64", Shape: []int64{}, Data: []byte{2, 0, 0, 0, 0, 0, 0, 0}}, {Name: "y", Type: "f16", Shape: []int64{2, 1}, Data: []byte{0, 0x3c, 0, 0xc0}}}
	exampleTensorOK   = Result{Status: StatusOK, Kind: KindTensors, Batch: 1, Credit: 64, ModelVersion: 1}
	exampleIncomplete = Result{Status: StatusIncomplete, Credit: 8, Missing: 1, ModelVersion: 2, Aggregate: 6250 * time.Microsecond}
	exampleLate       = Result{Status: StatusLate, Credit: 5, ModelVersion: 2, Aggregate: 300 * time.Microsecond, Queue: 18 * time.Millisecond, Objective: 25 * time.Millisecond}
	exampleNoToken    = Result{Status: StatusRefused, ModelVersion: 2, NeedsToken: true}
	exampleBusy       = Result{Status: StatusBusy, ModelVersion: 2}
	exampleMoved      = Result{Status: StatusMoved, ModelVersion: 2, Moved: netip.MustParseAddrPort("192.0.2.2:5001"), Lifetime: 30 * time.Second}
	exampleProve      = Result{Status: StatusBusy, ModelVersion: 2, Cookie: exampleCookie}
)

// The handshake of the examples: the key is exampleKey, the nonce 00 01 … 0f, and the challenge the cookie's bytes.
const exampleKey = "an example of a key"

func exampleHello(t Type) []byte {
	h := Hello{Value: exampleCookie}
	for i := range h.Nonce {
		h.Nonce[i] = byte(i)
	}
	if t == TypeProof {
		h.Sign([]byte(exampleKey))
	}
	return h.Append(nil, t)
}

// exampleData returns a data datagram as docs/wire.md specifies it.
func exampleData(index int, flags Flags, e *Extension) []byte {
	picture := examplePicture()
	h := FragmentHeader(TypeData, exampleID, len(picture), exampleFragment, index)
	h.Flags |= flags
	b := make([]byte, DatagramSize(&h))
	h.Put(b)
	if e != nil {
		e.Put(b[HeaderSize:])
	}
	copy(b[PayloadOffset(&h):], picture[h.Offset:][:h.Length])
	return b
}

// examples returns all golden datagrams, by name.
func examples() map[string][]byte {
	nack, _ := AppendNACK(nil, exampleID, 40, 3, []uint64{0b101}, 0)
	boxes := AppendBoxes(nil, exampleBoxes)
	return map[string][]byte{
		"data-first":       exampleData(0, FlagExtension, &exampleExtension),
		"data-middle":      exampleData(1, 0, nil),
		"data-last":        exampleData(2, 0, nil),
		"data-again":       exampleData(1, FlagRetransmitted|FlagPadded, nil),
		"nack":             nack,
		"result":           AppendResult(nil, exampleID, &exampleTopK, AppendTopK(nil, exampleClasses), DefaultFragmentBytes, 0, false),
		"result-fragments": AppendResult(nil, exampleID, &exampleBoxResult, boxes, exampleFragment, 1, true),
		"result-tensors":   AppendResult(nil, exampleID, &exampleTensorOK, appendTensors(exampleTensors), DefaultFragmentBytes, 0, false),
		"incomplete":       AppendResult(nil, exampleID, &exampleIncomplete, nil, DefaultFragmentBytes, 0, false),
		"late":             AppendResult(nil, exampleID, &exampleLate, nil, DefaultFragmentBytes, 0, false),
		"busy-cookie":      AppendResult(nil, exampleID, &exampleProve, nil, DefaultFragmentBytes, 0, false),
		"data-cookie":      exampleData(0, FlagExtension|FlagRetransmitted, &exampleProof),
		"refused-token":    AppendResult(nil, exampleID, &exampleNoToken, nil, DefaultFragmentBytes, 0, false),
		"data-follows":     exampleData(0, FlagExtension, &exampleFollows),
		"moved":            AppendResult(nil, exampleID, &exampleMoved, nil, DefaultFragmentBytes, 0, false),
		"hello":            exampleHello(TypeHello),
		"proof":            exampleHello(TypeProof),
		"data-question":    exampleData(0, FlagExtension|FlagRetransmitted, &exampleQuestion),
		"data-request":     exampleData(0, FlagExtension, &exampleRequest),
		"busy":             AppendResult(nil, exampleID, &exampleBusy, nil, DefaultFragmentBytes, 0, false),
	}
}

func appendTensors(tensors []Tensor) (payload []byte) {
	for _, t := range tensors {
		payload = append(AppendTensorHead(payload, t.Name, t.Type, t.Shape), t.Data...)
	}
	return payload
}

// dump formats b as the page does.
func dump(b []byte) string {
	var s strings.Builder
	for i, row := 0, 0; i < len(b); i, row = i+row, 0 {
		row = min(16, len(b)-i)
		fmt.Fprintf(&s, "%04x  % x\n", i, b[i:i+row])
	}
	return s.String()
}

// documented returns the datagrams of the page, by name.
func documented(t *testing.T) map[string][]byte {
	t.Helper()
	page, err := os.ReadFile("../examples/client/datagrams.md")
	if err != nil {
		t.Fatalf("read the examples: %v", err)
	}
	block := regexp.MustCompile("(?ms)^```hexdump (\\S+)\n(.*?)^```")
	shown := make(map[string][]byte)
	for _, m := range block.FindAllStringSubmatch(string(page), -1) {
		var b []byte
		for line := range strings.Lines(m[2]) {
			_, digits, _ := strings.Cut(line, "  ")
			row, err := hex.DecodeString(strings.Join(strings.Fields(digits), ""))
			if err != nil {
				t.Fatalf("example %s: %v", m[1], err)
			}
			b = append(b, row...)
		}
		shown[m[1]] = b
	}
	return shown
}

func TestEncodeGolden(t *testing.T) {
	shown := documented(t)
	for name, want := range examples() {
		if !bytes.Equal(shown[name], want) {
			t.Errorf("examples/client/datagrams.md, example %s: the encoder makes\n%sthe page shows\n%s", name, dump(want), dump(shown[name]))
		}
		delete(shown, name)
	}
	for name := range shown {
		t.Errorf("examples/client/datagrams.md shows %s, which no encoder is tested against", name)
	}
}

func TestDecodeGolden(t *testing.T) {
	shown := documented(t)
	header := func(typ Type, flags Flags, offset, total uint32, index, count, length uint16) Header {
		return Header{Type: typ, Flags: flags, RequestID: exampleID, Offset: offset, Total: total, Index: index, Count: count, Length: length}
	}
	for name, want := range map[string]Header{
		"data-first":       header(TypeData, FlagExtension, 0, 40, 0, 3, 16),
		"data-cookie":      header(TypeData, FlagExtension|FlagRetransmitted, 0, 40, 0, 3, 16),
		"data-question":    header(TypeData, FlagExtension|FlagRetransmitted, 0, 40, 0, 3, 16),
		"data-request":     header(TypeData, FlagExtension, 0, 40, 0, 3, 16),
		"busy-cookie":      header(TypeBusy, FlagLast, 0, 0, 0, 1, 0),
		"data-follows":     header(TypeData, FlagExtension, 0, 40, 0, 3, 16),
		"moved":            header(TypeResult, FlagLast, 0, 0, 0, 1, 0),
		"data-middle":      header(TypeData, 0, 16, 40, 1, 3, 16),
		"data-last":        header(TypeData, FlagLast, 32, 40, 2, 3, 8),
		"data-again":       header(TypeData, FlagRetransmitted|FlagPadded, 16, 40, 1, 3, 16),
		"nack":             header(TypeNACK, 0, 0, 40, 0, 3, 5),
		"result":           header(TypeResult, FlagLast, 0, 12, 0, 1, 12),
		"result-fragments": header(TypeResult, FlagLast|FlagRetransmitted, 16, 22, 1, 2, 6),
		"incomplete":       header(TypeResult, FlagLast, 0, 0, 0, 1, 0),
		"busy":             header(TypeBusy, FlagLast, 0, 0, 0, 1, 0),
		"late":             header(TypeResult, FlagLast, 0, 0, 0, 1, 0),
	} {
		b := shown[name]
		got, err := DecodeHeader(b)
		if err != nil || got != want {
			t.Errorf("%s: got %+v, %v; want %+v", name, got, err, want)
			continue
		}
		if got.Type == TypeData && !bytes.Equal(b[PayloadOffset(&got):][:got.Length], examplePicture()[got.Offset:][:got.Length]) {
			t.Errorf("%s: the payload is not the picture's", name)
		}
	}

	for name, want := range map[string]Extension{
		"data-first": exampleExtension, "data-cookie": exampleProof, "data-question": exampleQuestion, "data-request": exampleRequest, "data-follows": exampleFollows,
	} {
		if e, err := DecodeExtension(shown[name][HeaderSize:]); err != nil || e != want {
			t.Errorf("extension of %s: got %+v, %v; want %+v", name, e, err, want)
		}
	}
	unknown := bytes.Clone(shown["data-question"][HeaderSize:])
	unknown[5] = 255
	if e, err := DecodeExtension(unknown); err != nil || e != exampleProof {
		t.Errorf("extension of an unknown use: got %+v, %v; want %+v", e, err, exampleProof)
	}
	for name, want := range map[string]Result{
		"busy-cookie": exampleProve, "refused-token": exampleNoToken, "moved": exampleMoved,
		"result": exampleTopK, "result-fragments": exampleBoxResult, "result-tensors": exampleTensorOK, "incomplete": exampleIncomplete, "busy": exampleBusy, "late": exampleLate,
	} {
		if _, got, _, err := DecodeResult(shown[name]); err != nil || got != want {
			t.Errorf("%s: got %+v, %v; want %+v", name, got, err, want)
		}
	}
	_, _, payload, _ := DecodeResult(shown["result"])
	if classes, err := DecodeTopK(nil, payload); err != nil || !reflect.DeepEqual(classes, exampleClasses) {
		t.Errorf("top-k: got %v, %v; want %v", classes, err, exampleClasses)
	}
	for name, typ := range map[string]Type{"hello": TypeHello, "proof": TypeProof} {
		got, h, err := DecodeHello(shown[name])
		if err != nil || got != typ || h.Value != exampleCookie || h.Signed([]byte(exampleKey)) != (typ == TypeProof) {
			t.Errorf("%s: got %v %+v, %v", name, got, h, err)
		}
	}
	nack, err := DecodeNACK(shown["nack"])
	if err != nil || nack.RequestID != exampleID || nack.Total != 40 || nack.Count != 3 || !slices.Equal(missing(nack), []int{1}) {
		t.Errorf("NACK: got %+v naming %v, %v", nack, missing(nack), err)
	}
}

func missing(w NACK) []int { return slices.Collect(w.Missing) }
