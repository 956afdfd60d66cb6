package gateway

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// messages is the body of a call of gRPC. Package grpc reads all of a body into memory, even if it has no end. So this one gives
// it one message at a time. The next comes when the last is answered. A call that is no stream has one.
type messages struct {
	ctx    context.Context
	cancel context.CancelFunc
	from   io.ReadCloser
	memory *memory
	kind   protoreflect.MessageDescriptor
	// stream sets the deadlines of a stream; nil: the call is none.
	stream *http.ResponseController
	// encoding of compressed messages. Package grpc gets them decompressed.
	encoding string
	// answered receives when the method is done with a message.
	answered chan struct{}

	// The goroutine that reads owns the rest, until it ends.
	current *buffer
	unread  net.Buffers // the prefix and current
	ended   bool
}

type messagesKey struct{}

const (
	// maxMessage is the max length of a message: with copies of its tensors it fits into the memory of bodies.
	maxMessage = maxBodies / 4
	// maxSilence is the max time between two messages of a stream.
	maxSilence = 5 * time.Minute

	messagePrefix = 5 // bytes: whether it is compressed, and the length in big endian
)

// Read reads the messages as they came.
func (m *messages) Read(to []byte) (int, error) {
	if len(m.unread) == 0 {
		if err := m.next(); err != nil {
			return 0, err
		}
	}
	n, _ := m.unread.Read(to) // it ends with the message, not with the call
	return n, nil
}

// next receives a message.
func (m *messages) next() error {
	if m.current != nil && m.stream != nil {
		select {
		case <-m.answered:
		case <-m.ctx.Done():
			return m.ctx.Err()
		}
	}
	if m.ended || m.current != nil && m.stream == nil {
		return io.EOF
	}
	m.release()
	if m.stream != nil {
		if err := m.stream.SetReadDeadline(time.Now().Add(maxSilence)); err != nil {
			return fmt.Errorf("set deadline of stream: %w", err)
		}
	}

	prefix := make([]byte, messagePrefix)
	if _, err := io.ReadFull(m.from, prefix); err != nil {
		return err
	}
	size := int64(binary.BigEndian.Uint32(prefix[1:]))
	body := io.LimitReader(m.from, size)
	var err error
	switch compressed := prefix[0] == 1 && m.encoding != ""; {
	case size > maxMessage:
		err = &http.MaxBytesError{Limit: maxMessage}
	case compressed:
		m.current, err = m.memory.inflate(m.ctx, m.encoding, body, maxMessage)
		prefix[0] = 0
	default:
		if m.current, err = m.memory.read(m.ctx, body, size); err == nil && len(m.current.data) < int(size) {
			err = io.ErrUnexpectedEOF
		}
	}
	var large *http.MaxBytesError
	if errors.As(err, &large) { // package grpc refuses it when it sees the prefix
		binary.BigEndian.PutUint32(prefix[1:], maxMessage+1)
		m.unread, m.ended = net.Buffers{prefix}, true
		return nil
	}
	if err != nil {
		return err
	}
	message := m.current.data
	binary.BigEndian.PutUint32(prefix[1:], uint32(len(message)))
	m.unread = net.Buffers{prefix, message}
	return m.current.reserve(m.ctx, decodedBytes(message, m.kind))
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
			break // package grpc says what is wrong
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

// Close makes Read return.
func (m *messages) Close() error {
	m.cancel()
	return m.from.Close()
}
