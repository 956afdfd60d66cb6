package gateway

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	rpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// messages are those of a call of gRPC. Each begins with a byte that says whether it is compressed, and its length in four.
type messages struct {
	grpc.ServerStream // for methods that nothing calls

	ctx    context.Context
	w      http.ResponseWriter
	r      *http.Request
	memory *memory
	kind   protoreflect.MessageDescriptor
	// stream sets the deadlines of a stream; nil: the call is none.
	stream *http.ResponseController
	// encoding of compressed messages; empty: none that the gateway knows.
	encoding string
	// current is the last message that was received. It counts until the next.
	current *buffer
}

type messagesKey struct{}

const (
	// maxMessage is the max length of a message: with copies of its tensors it fits into the memory of bodies.
	maxMessage = maxBodies / 4
	// maxSilence is the max time between two messages of a stream.
	maxSilence = 5 * time.Minute

	messagePrefix = 5
)

// Context implements grpc.ServerStream.
func (m *messages) Context() context.Context { return m.ctx }

// RecvMsg reads the next message. io.EOF says that a stream has no more.
func (m *messages) RecvMsg(to any) error {
	m.release()
	if m.stream != nil {
		if err := m.stream.SetReadDeadline(time.Now().Add(maxSilence)); err != nil {
			return fmt.Errorf("set deadline of stream: %w", err)
		}
	}
	prefix := make([]byte, messagePrefix)
	_, err := io.ReadFull(m.r.Body, prefix)
	if err == io.EOF && m.stream != nil {
		return err
	}
	if err == nil {
		err = m.read(prefix[0] == 1, int64(binary.BigEndian.Uint32(prefix[1:])))
	}
	if err == nil {
		err = m.current.reserve(m.ctx, decodedBytes(m.current.data, m.kind))
	}
	if err == nil {
		err = proto.Unmarshal(m.current.data, to.(proto.Message))
	}
	if err != nil {
		return badRequest(fmt.Errorf("read message: %w", err))
	}
	return nil
}

// read reads a message of some size.
func (m *messages) read(compressed bool, size int64) (err error) {
	if size > maxMessage {
		return &httpError{http.StatusRequestEntityTooLarge, fmt.Errorf("%d bytes, want at most %d", size, maxMessage)}
	}
	body := io.LimitReader(m.r.Body, size)
	if compressed {
		if m.encoding == "" {
			return rpcstatus.Error(codes.Unimplemented, "message is compressed, want grpc-encoding gzip, deflate or identity")
		}
		m.current, err = m.memory.inflate(m.ctx, m.encoding, body, maxMessage)
		return err
	}
	if m.current, err = m.memory.read(m.ctx, body, size); err == nil && len(m.current.data) < int(size) {
		err = io.ErrUnexpectedEOF
	}
	return err
}

// SendMsg sends an answer. That of a call which is no stream goes out at once, at its end.
func (m *messages) SendMsg(answer any) error {
	v := answer.(proto.Message)
	framed, err := proto.MarshalOptions{}.MarshalAppend(make([]byte, messagePrefix, messagePrefix+proto.Size(v)), v)
	if err != nil {
		return fmt.Errorf("encode answer: %w", err)
	}
	binary.BigEndian.PutUint32(framed[1:], uint32(len(framed)-messagePrefix))
	if _, err = m.w.Write(framed); err == nil && m.stream != nil {
		err = m.stream.Flush()
	}
	return err
}

// decodedBytes is the memory of a message besides itself: two copies of its tensors, and Go's form of its fields.
func decodedBytes(message []byte, of protoreflect.MessageDescriptor) int {
	return 2*len(message) + fieldBytes(message, of)
}

// fieldBytes is the max size of Go's form of the fields of a message, without their texts. It stops at a size that is too large.
func fieldBytes(message []byte, of protoreflect.MessageDescriptor) (sum int) {
	const (
		perField  = 192 // a struct, its place in a list that grows, or in a map
		perNumber = 8   // a small number in one byte becomes a uint64
	)
	for len(message) > 0 && sum <= maxBodies {
		number, _, n := protowire.ConsumeField(message)
		if n < 0 {
			break // RecvMsg says what is wrong
		}
		sum += perField
		_, kind, tag := protowire.ConsumeTag(message)
		if field := of.Fields().ByNumber(number); field != nil && kind == protowire.BytesType {
			content, _ := protowire.ConsumeBytes(message[tag:n])
			if field.Message() != nil {
				sum += fieldBytes(content, field.Message())
			} else if field.IsPacked() {
				sum += perNumber * len(content)
			}
		}
		message = message[n:]
	}
	return sum
}

// release frees the memory of a message.
func (m *messages) release() {
	if m.current != nil {
		m.current.release()
		m.current = nil
	}
}
