package zmtp

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"io"
	"testing"
	"testing/iotest"
)

// FuzzMessages compares the reader with a simple parser. However the bytes are split, it returns
// the messages within the limits, up to the first that exceeds them or is cut.
func FuzzMessages(f *testing.F) {
	f.Add([]byte{0, 2, 'h', 'i', 0, 0}, true)
	f.Add(append(binary.BigEndian.AppendUint64([]byte{flagLong}, 3), "abc"...), true)
	f.Add([]byte{flagMore, 0, flagMore, 1, 'x', 0, 1, 'y', 0, 0}, false)
	f.Add([]byte{flagCommand, 5, 4, 'P', 'I', 'N', 'G'}, false)
	limits := Limits{Bytes: 300, Parts: 3}
	f.Add([]byte{flagCommand, 0, 0, 0}, true)
	f.Fuzz(func(t *testing.T, b []byte, slow bool) {
		if at := bytes.Index(b, []byte("\x04PING")); at >= 0 && at+len("\x04PING")+2 <= len(b) {
			return // it would be answered, on a connection that the test does not have
		}
		from := io.Reader(bytes.NewReader(b))
		if slow {
			from = iotest.OneByteReader(from)
		}
		c := &Conn{limits: limits, timed: &timedConn{}, in: bufio.NewReader(from)}
		for n, want := range parse(b, limits) {
			m, err := c.Next()
			if err == nil {
				var got []byte
				if got, err = io.ReadAll(m); err == nil && !bytes.Equal(got, want) {
					t.Fatalf("message %d of % x is % x, want % x", n, b, got, want)
				}
			}
			if err != nil {
				t.Fatalf("message %d of % x: %v", n, b, err)
			}
		}
		if m, err := c.Next(); err == nil {
			if got, err := io.ReadAll(m); err == nil {
				t.Errorf("% x has one more message: % x", b, got)
			}
		}
	})
}

// parse returns the messages in b.
func parse(b []byte, l Limits) (all [][]byte) {
	var message []byte
	for parts := 1; len(b) > 0; parts++ {
		flags, header, size := b[0], 2, uint64(0)
		if flags&flagLong != 0 {
			header = 9
		}
		command := flags&^flagLong == flagCommand
		if flags&^(flagMore|flagLong) != 0 && !command || len(b) < header {
			return all
		}
		if size = uint64(b[1]); header == 9 {
			size = binary.BigEndian.Uint64(b[1:])
		}
		b = b[header:]
		if command {
			if size > min(uint64(len(b)), maxCommandBytes) {
				return all
			}
			b = b[size:]
			parts--
			continue
		}
		if size > uint64(len(b)) || len(message)+int(size) > l.Bytes || parts > l.Parts {
			return all
		}
		message, b = append(message, b[:size]...), b[size:]
		if flags&flagMore == 0 {
			all, message, parts = append(all, message), nil, 0
		} else if parts == l.Parts {
			return all
		}
	}
	return all
}
