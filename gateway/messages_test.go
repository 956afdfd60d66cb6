package gateway

import (
	"bytes"
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
	for _, c := range []struct {
		name, body, want string
		err              error
	}{
		{"message", framed("hello"), framed("hello"), nil},
		{"empty message", framed(""), framed(""), nil},
		{"no message", "", "", nil},
		{"second message", framed("hello") + framed("world"), framed("hello"), nil},
		{"part of a message", framed("hello")[:8], "", io.ErrUnexpectedEOF},
		{"part of a prefix", "\x00\x00", "", io.ErrUnexpectedEOF},
		{"too long", "\x00\x02\x00\x00\x01hello", "\x00\x02\x00\x00\x01", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := &messages{ctx: t.Context(), cancel: func() {}, from: io.NopCloser(bytes.NewBufferString(c.body)), memory: newMemory()}
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

// TestDecodedBytes counts small numbers, which grow most, and raw tensors.
func TestDecodedBytes(t *testing.T) {
	for want, m := range map[int]*inference.ModelInferRequest{
		2 * 1003:  {RawInputContents: [][]byte{make([]byte, 1000)}},
		10 * 1009: {Inputs: []*inference.ModelInferRequest_InferInputTensor{{Contents: &inference.InferTensorContents{Uint64Contents: make([]uint64, 1000)}}}},
	} {
		message, err := proto.Marshal(m)
		must.OK(t, err)
		if got := decodedBytes(message); got != want {
			t.Errorf("%d bytes for a message of %d, want %d", got, len(message), want)
		}
	}
}
