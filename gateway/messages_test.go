package gateway

import (
	"bytes"
	"encoding/binary"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	rpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/penstock/penstock/gateway/openinference/inference"
	"github.com/penstock/penstock/internal/testing/must"
)

// framed is a message as gRPC sends it.
func framed(message string) string {
	return string(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message)))) + message
}

// live is a message of which only the fields that the gateway does not know have content.
func live(content string) string {
	return string(protowire.AppendString(protowire.AppendTag(nil, 100, protowire.BytesType), content))
}

// TestMessages reads the bodies of calls, whole and broken.
func TestMessages(t *testing.T) {
	hello := live("hello")
	zipped := "\x01" + framed(packed(t, "gzip", hello))[1:]
	bomb := "\x01" + framed(packed(t, "gzip", string(make([]byte, maxMessage+1))))[1:]
	for _, c := range []struct {
		name, encoding, body, want, err string
		code                            codes.Code
	}{
		{"compressed", "gzip", zipped, hello, "", codes.OK},
		{"other encoding", "", zipped, "", "message is compressed, want grpc-encoding gzip, deflate or identity", codes.Unimplemented},
		{"cut off", "gzip", zipped[:20], "", "unexpected EOF", codes.InvalidArgument},
		{"not compressed", "gzip", "\x01" + framed("hello, hello")[1:], "", "gzip: invalid header", codes.InvalidArgument},
		{"bomb", "gzip", bomb, "", "request body too large", codes.ResourceExhausted},
		{"message", "", framed(hello), hello, "", codes.OK},
		{"empty message", "", framed(""), "", "", codes.OK},
		{"no message", "", "", "", "EOF", codes.InvalidArgument},
		{"second message", "", framed(hello) + framed("world"), hello, "", codes.OK},
		{"part of a message", "", framed(hello)[:8], "", "unexpected EOF", codes.InvalidArgument},
		{"part of a prefix", "", "\x00\x00", "", "unexpected EOF", codes.InvalidArgument},
		{"no protobuf", "", framed("hello"), "", "cannot parse", codes.InvalidArgument},
		{"too long", "", "\x00\x02\x00\x00\x01hello", "", "33554433 bytes, want at most 33554432", codes.ResourceExhausted},
	} {
		t.Run(c.name, func(t *testing.T) {
			to := &inference.ServerLiveRequest{}
			m := &messages{
				ctx: t.Context(), r: httptest.NewRequest(http.MethodPost, "/", strings.NewReader(c.body)),
				encoding: c.encoding, memory: newMemory(), kind: to.ProtoReflect().Descriptor(),
			}
			err := m.RecvMsg(to)
			if got := string(to.ProtoReflect().GetUnknown()); err == nil && got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
			if status := rpcstatus.Convert(rpcError(err)); status.Code() != c.code || !strings.Contains(status.Message(), c.err) {
				t.Errorf("%v, want %v %s", err, c.code, c.err)
			}
			m.release()
			if !m.memory.bodies.TryAcquire(maxBodies) {
				t.Error("memory was not freed")
			}
		})
	}
}

func TestTimeout(t *testing.T) {
	for text, want := range map[string]time.Duration{"100m": 100 * time.Millisecond, "2S": 2 * time.Second, "1H": time.Hour, "99999999H": 2562047 * time.Hour, "5M": 5 * time.Minute, "7u": 7 * time.Microsecond, "3n": 3} {
		if got, err := timeout(text); err != nil || got != want {
			t.Errorf("%s: %v, %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"5", "m", "5s", "1ms", "-1m", "x", "99999999999999999999S"} {
		if got, err := timeout(text); rpcstatus.Code(rpcError(err)) != codes.InvalidArgument {
			t.Errorf("%s: %v, %v", text, got, err)
		}
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
