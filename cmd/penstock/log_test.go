package main

import (
	"bytes"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/rs/zerolog"
)

// stuck is a log reader that reads nothing until the test releases it.
type stuck struct {
	begin chan struct{}
	lines []string
}

func (s *stuck) Write(line []byte) (int, error) {
	<-s.begin
	s.lines = append(s.lines, string(line))
	return len(line), nil
}

func TestLog(t *testing.T) {
	const more = 7
	out := &stuck{begin: make(chan struct{})}
	w := newWaitingWriter(out, func(lines uint64) { out.lines = append(out.lines, fmt.Sprint(lines, " missing")) })
	buffer := make([]byte, 0, 16)
	write := func(i int) {
		buffer = fmt.Append(buffer[:0], "line ", i)
		if n, err := w.Write(buffer); n != len(buffer) || err != nil {
			t.Fatalf("line %d: %d, %v", i, n, err)
		}
	}
	for i := range keptLines + more {
		write(i)
	}
	close(out.begin)
	for len(w.lines) > 0 {
		runtime.Gosched()
	}
	write(-1)
	w.end()
	// The writer may have taken one line out of the queue, which made room for
	// another.
	kept := len(out.lines) - 2
	if kept != keptLines && kept != keptLines+1 {
		t.Fatalf("%d lines are written, want %d", kept, keptLines)
	}
	var want []string
	for i := range kept {
		want = append(want, fmt.Sprint("line ", i))
	}
	want = append(want, fmt.Sprint(keptLines+more-kept, " missing"), "line -1")
	if !slices.Equal(out.lines, want) {
		t.Errorf("written: … %q, want … %q", out.lines[kept-1:], want[kept-1:])
	}
}

func TestLogUnread(t *testing.T) {
	out := &stuck{begin: make(chan struct{})}
	defer close(out.begin)
	w := newWaitingWriter(out, func(uint64) {})
	for range 2 * keptLines {
		if _, err := w.Write([]byte("line")); err != nil {
			t.Fatal(err)
		}
	}
	w.end()
}

func TestLogErrors(t *testing.T) {
	var out bytes.Buffer
	missingFrom(zerolog.New(&out).Level(zerolog.ErrorLevel))(7)
	if !strings.HasPrefix(out.String(), `{"level":"warn","lines":7,`) {
		t.Errorf("logged %q", &out)
	}
}
