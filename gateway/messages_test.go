package gateway

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/penstock/penstock/gateway/openinference/inference"
	"github.com/penstock/penstock/internal/testing/must"
)

// framed is a message as gRPC sends it.
func framed(message string) string { return "\x00\x00\x00\x00" + string(rune(len(message))) + message }

// TestMessages reads the bodies of calls, whole and broken.
func TestMessages(t *testing.T) {
	kind := (&inference.ServerLiveRequest{}).ProtoReflect().Descriptor()
	zipped := "\x01" + framed(packed(t, "gzip", "hello"))[1:]
	bomb := packed(t, "gzip", string(make([]byte, maxMessage+1)))
	bomb = string(binary.BigEndian.AppendUint32([]byte{1}, uint32(len(bomb)))) + bomb
	for _, c := range []struct {
		name, body, want string
		err              error
	}{
		{"compressed", zipped, framed("hello"), nil},
		{"cut off", zipped[:20], "", io.ErrUnexpectedEOF},
		{"not compressed", "\x01" + framed("hello")[1:], "", io.ErrUnexpectedEOF},
		{"bomb", bomb, "\x00\x02\x00\x00\x01", nil},
		{"message", framed("hello"), framed("hello"), nil},
		{"empty message", framed(""), framed(""), nil},
		{"no message", "", "", nil},
		{"second message", framed("hello") + framed("world"), framed("hello"), nil},
		{"part of a message", framed("hello")[:8], "", io.ErrUnexpectedEOF},
		{"part of a prefix", "\x00\x00", "", io.ErrUnexpectedEOF},
		{"too long", "\x00\x02\x00\x00\x01hello", "\x00\x02\x00\x00\x01", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := &messages{ctx: t.Context(), cancel: func() {}, encoding: "gzip", from: io.NopCloser(bytes.NewBufferString(c.body)), memory: newMemory(), kind: kind}
			got, err := io.ReadAll(m)
			if string(got) != c.want || !errors.Is(err, c.err) {
				t.Errorf("%q, %v, want %q, %v", got, err, c.want, c.err)
			}
			m.release()
			if !m.memory.bodies.TryAcquire(maxBodies) {
				t.Error("memory was not freed")
			}
		})
	}
}

// TestDecodedBytes counts raw tensors, small numbers, which grow most, and empty fields, which are structs of their own.
func TestDecodedBytes(t *testing.T) {
	kind := (&inference.ModelInferRequest{}).ProtoReflect().Descriptor()
	input := func(c *inference.InferTensorContents) []*inference.ModelInferRequest_InferInputTensor {
		return []*inference.ModelInferRequest_InferInputTensor{{Contents: c}}
	}
	for want, m := range map[int]*inference.ModelInferRequest{
		2*1003 + 192:          {RawInputContents: [][]byte{make([]byte, 1000)}},
		2*1009 + 3*192 + 8000: {Inputs: input(&inference.InferTensorContents{Uint64Contents: make([]uint64, 1000)})},
		2*2000 + 1000*192:     {RawInputContents: make([][]byte, 1000)},
		2*2006 + 1002*192:     {Inputs: input(&inference.InferTensorContents{BytesContents: make([][]byte, 1000)})},
	} {
		message, err := proto.Marshal(m)
		must.OK(t, err)
		if got := decodedBytes(message, kind); got != want {
			t.Errorf("%d bytes for a message of %d, want %d", got, len(message), want)
		}
	}
	if got := decodedBytes(bytes.Repeat([]byte{0x3a, 0}, maxMessage/2), kind); got <= maxBodies {
		t.Errorf("%d bytes for a message full of empty fields", got)
	}
}
