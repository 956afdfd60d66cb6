package program

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
)

func TestTail(t *testing.T) {
	var many, panicked Tail
	for i := range 20 {
		many.Add(fmt.Sprint("line ", i))
	}
	if got := many.Lines(); len(got) != tailLines || got[tailLines-1] != "line 19" {
		t.Errorf("of 20 lines it keeps %q", got)
	}
	panicked.Add("loading")
	panicked.Add("panic: index out of range [7] with length 3")
	for range 30 {
		panicked.Add("goroutine 1 [running]:")
	}
	if got := panicked.Lines(); !slices.Equal(got, []string{"loading", "panic: index out of range [7] with length 3"}) {
		t.Errorf("of a panic it keeps %q", got)
	}
	var long Tail
	long.Add(strings.Repeat("ä", maxLineBytes))
	if got := long.Lines()[0]; len(got) > maxLineBytes+len("…") || !strings.HasPrefix(got, "ää") || strings.ContainsRune(got, '�') {
		t.Errorf("of a long line it keeps %q", got)
	}
}

func TestReadLines(t *testing.T) {
	in := "one\r\n\n\xff\n" + strings.Repeat("x", 3*maxLine) + "\nlast"
	var got []string
	ReadLines(strings.NewReader(in), func(l string) {
		if len(l) > maxLine {
			t.Errorf("a line of %d bytes", len(l))
		}
		got = append(got, l)
	})
	if got[0] != "one" || got[1] != "�" || got[len(got)-1] != "last" {
		t.Errorf("read %.40q", got)
	}
	if n := len(strings.Join(got[2:len(got)-1], "")); n != 3*maxLine {
		t.Errorf("of the long line %d bytes came, want %d", n, 3*maxLine)
	}
}

func TestRelay(t *testing.T) {
	for _, c := range []struct{ in, log, message string }{
		{"plain", `{"level":"info","stream":"stderr","message":"plain"}`, "plain"},
		{
			"Could not load symbol nvrtcVersion. Error: x", `{"level":"debug","stream":"stderr","message":"Could not load symbol nvrtcVersion. Error: x"}`, "",
		},
		{`{"level":"info","time":"x","if":"f","n":3,"message":"ready"}`, `{"level":"info","n":3,"message":"ready"}`, ""},
		{`{"time":"x","level":"WARN","msg":"slow disk","n":3}`, `{"level":"warn","n":3,"message":"slow disk"}`, "slow disk"},
		{`{"level":"error","error":"no such file","message":"load model"}`, `{"level":"error","error":"no such file","message":"load model"}`, "load model: no such file"},
		{`{"level":"error","process":"if","if":"f","instance":0,"generation":1,"worker":"w","pid":7,"message":"cannot go on"}`, `{"level":"error","message":"cannot go on"}`, "cannot go on"},
		{`{"level":"fatal","message":"boom"}`, `{"level":"error","message":"boom"}`, "boom"},
		{`{"not":`, `{"level":"info","stream":"stderr","message":"{\"not\":"}`, `{"not":`},
	} {
		var buf bytes.Buffer
		if said := Relay(zerolog.New(&buf), "stderr", c.in); said != c.message {
			t.Errorf("%s says %q, want %q", c.in, said, c.message)
		}
		if got := strings.TrimSpace(buf.String()); got != c.log {
			t.Errorf("%s is logged as %s, want %s", c.in, got, c.log)
		}
	}
}

func TestLine(t *testing.T) {
	if got := Line("two\nlines\t of it"); got != "two lines of it" {
		t.Errorf("%q", got)
	}
	if got := Line(strings.Repeat("ä", maxLineBytes)); len(got) > maxLineBytes+len("…") || strings.ContainsRune(got, '�') {
		t.Errorf("%d bytes", len(got))
	}
}

func TestOutputRate(t *testing.T) {
	o := NewOutput(zerolog.Nop())
	start, bytes, lost := o.at, 0, uint64(0)
	const seconds, lines = 60, 1000 // of one KiB, per second
	for i := range seconds * lines {
		logged, dropped, _ := o.admit(1<<10, start.Add(time.Duration(i)*time.Second/lines))
		if logged {
			bytes += 1 << 10
		}
		lost += dropped
	}
	if bytes > logBurst+seconds*logRate || bytes < seconds*logRate {
		t.Errorf("%d bytes in %d s, want at most %d per second", bytes, seconds, logRate)
	}
	if total := uint64(seconds * lines); lost+o.dropped+uint64(bytes>>10) != total {
		t.Errorf("%d lines counted as dropped and %d logged, want %d", lost+o.dropped, bytes>>10, total)
	}
}
