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
	emptied := func() {
		for len(w.lines) > 0 {
			runtime.Gosched()
		}
	}
	write(0)
	emptied() // the writer has the first line, so the queue has room for as many as it keeps
	const kept = 1 + keptLines
	for i := range keptLines + more - 1 {
		write(1 + i)
	}
	close(out.begin)
	emptied()
	write(-1)
	w.end()
	var want []string
	for i := range kept {
		want = append(want, fmt.Sprint("line ", i))
	}
	want = append(want, fmt.Sprint(keptLines+more-kept, " missing"), "line -1")
	if !slices.Equal(out.lines, want) {
		t.Errorf("%d lines are written: … %q, want %d: … %q", len(out.lines), out.lines[min(kept-1, len(out.lines)):], len(want), want[kept-1:])
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
