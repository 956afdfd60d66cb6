package orchestrator

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"pgregory.net/rapid"
)

func TestBackoffDoubles(t *testing.T) {
	var b backoff
	now := t0
	for i, want := range []time.Duration{100, 200, 400, 800, 1600, 3200, 5000, 5000} {
		b.ended(now, time.Second, true, "crash")
		if got := b.until.Sub(now); got != want*time.Millisecond {
			t.Errorf("failure %d waits %v, want %v", i+1, got, want*time.Millisecond)
		}
		now = now.Add(time.Minute)
	}
}

func TestBackoffReset(t *testing.T) {
	var b backoff
	for range 5 {
		b.ended(t0, time.Second, true, "crash")
	}
	b.ended(t0, time.Second, false, "") // stopped as ordered, which says nothing about its health
	if b.failures != 5 {
		t.Errorf("%d failures are left after a stop, want 5", b.failures)
	}
	b.ended(t0, minLifetime, true, "crash")
	if b != (backoff{last: "crash"}) {
		t.Errorf("after a good life it is %+v, want no failures and why it ended", b)
	}
	b.ended(t0, minLifetime, false, "asked")
	if b != (backoff{}) {
		t.Errorf("after a good life and end it is %+v", b)
	}
}

func TestBackoffTooFewGroups(t *testing.T) {
	var b backoff
	for _, c := range []struct {
		groups int
		first  bool
	}{{1, true}, {1, false}, {2, true}, {1, false}, {2, false}, {4, true}} {
		if first := b.recordTooFew(c.groups, "too few"); first != c.first || b.failures != 0 {
			t.Errorf("%d groups: %v, %+v; want %v", c.groups, first, b, c.first)
		}
	}
	b.ended(t0, minLifetime, false, "")
	if !b.recordTooFew(1, "too few") {
		t.Error("after a good life it remembers how many groups were too few")
	}
}

func TestBackoffWrongAnswers(t *testing.T) {
	var b backoff
	for _, c := range []struct {
		percent float64
		first   bool
	}{{30, true}, {30, false}, {28, true}, {27, true}, {100, false}, {0, false}} {
		if first := b.recordWrong(c.percent, "wrong"); first != c.first || b.failures != 0 {
			t.Errorf("%v %%: %v, %+v; want %v", c.percent, first, b, c.first)
		}
	}
}

func TestBackoffMax(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := backoff{failures: rapid.IntRange(0, 1<<40).Draw(t, "failures")}
		if d := b.delay(); d < 0 || d > maxBackoff || b.failures > 0 && d < minBackoff {
			t.Fatalf("%d failures wait %v", b.failures, d)
		}
	})
}

func TestSplitCPUs(t *testing.T) {
	for _, c := range []struct {
		allowed      []int
		reserved     int
		manager, ifs []int
	}{
		{[]int{3}, 0, []int{3}, []int{3}},
		{[]int{3}, 1, []int{3}, []int{3}},
		{[]int{0, 1}, 0, []int{0}, []int{1}},
		{[]int{0, 1}, 5, []int{0}, []int{1}},
		{[]int{2, 4, 6, 8}, 0, []int{2}, []int{4, 6, 8}},
		{[]int{2, 4, 6, 8}, 2, []int{2, 4}, []int{6, 8}},
		{[]int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, 0, []int{0, 1}, []int{2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}},
	} {
		manager, ifs := splitCPUs(c.allowed, c.reserved)
		if !slices.Equal(manager, c.manager) || !slices.Equal(ifs, c.ifs) {
			t.Errorf("%v with %d reserved: %v and %v, want %v and %v", c.allowed, c.reserved, manager, ifs, c.manager, c.ifs)
		}
	}
}

func TestSplitCPUsDisjoint(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		allowed := make([]int, rapid.IntRange(2, 300).Draw(t, "n"))
		for i := range allowed {
			allowed[i] = 2 * i
		}
		manager, ifs := splitCPUs(allowed, rapid.IntRange(-5, 400).Draw(t, "reserved"))
		if len(manager) == 0 || len(ifs) == 0 || !slices.Equal(slices.Concat(manager, ifs), allowed) {
			t.Fatalf("%v and %v of %v", manager, ifs, allowed)
		}
	})
}

func TestIFCPUs(t *testing.T) {
	manager, ifs := IFCPUs(0)
	allowed := allowedCPUs()
	if len(ifs) == 0 || len(manager) == 0 {
		t.Fatalf("%v and %v", manager, ifs)
	}
	for _, cpu := range slices.Concat(manager, ifs) {
		if !slices.Contains(allowed, cpu) {
			t.Errorf("CPU %d is not allowed here", cpu)
		}
	}
}

func TestTail(t *testing.T) {
	var many, panicked tail
	for i := range 20 {
		many.add(fmt.Sprint("line ", i))
	}
	if got := many.lines(); len(got) != tailLines || got[tailLines-1] != "line 19" {
		t.Errorf("of 20 lines it keeps %q", got)
	}
	panicked.add("loading")
	panicked.add("panic: index out of range [7] with length 3")
	for range 30 {
		panicked.add("goroutine 1 [running]:")
	}
	if got := panicked.lines(); !slices.Equal(got, []string{"loading", "panic: index out of range [7] with length 3"}) {
		t.Errorf("of a panic it keeps %q", got)
	}
	var long tail
	long.add(strings.Repeat("ä", tailLineBytes))
	if got := long.lines()[0]; len(got) > tailLineBytes+len("…") || !strings.HasPrefix(got, "ää") || strings.ContainsRune(got, '�') {
		t.Errorf("of a long line it keeps %q", got)
	}
}

func TestReadLines(t *testing.T) {
	in := "one\r\n\n\xff\n" + strings.Repeat("x", 3*maxLine) + "\nlast"
	var got []string
	readLines(strings.NewReader(in), func(l string) {
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
		{`{"level":"error","error":"no such file","message":"load model"}`, `{"level":"error","error":"no such file","message":"load model"}`, "load model: no such file"},
		{`{"level":"error","process":"if","if":"f","instance":0,"generation":1,"worker":"w","pid":7,"message":"cannot go on"}`, `{"level":"error","message":"cannot go on"}`, "cannot go on"},
		{`{"level":"fatal","message":"boom"}`, `{"level":"error","message":"boom"}`, "boom"},
		{`{"not":`, `{"level":"info","stream":"stderr","message":"{\"not\":"}`, `{"not":`},
	} {
		var buf bytes.Buffer
		if said := relay(zerolog.New(&buf), "stderr", c.in); said != c.message {
			t.Errorf("%s says %q, want %q", c.in, said, c.message)
		}
		if got := strings.TrimSpace(buf.String()); got != c.log {
			t.Errorf("%s is logged as %s, want %s", c.in, got, c.log)
		}
	}
}

func TestReasonBound(t *testing.T) {
	if got := line("two\nlines\t of it"); got != "two lines of it" {
		t.Errorf("%q", got)
	}
	if got := line(strings.Repeat("ä", maxReason)); len(got) > maxReason+len("…") || strings.ContainsRune(got, '�') {
		t.Errorf("%d bytes", len(got))
	}
}
