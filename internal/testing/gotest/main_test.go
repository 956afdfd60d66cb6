package main

import (
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/testing/must"
)

const header = `{"Action":"start","Package":"github.com/penstock/penstock/wire"}
`

func TestReport(t *testing.T) {
	for _, c := range []struct {
		name    string
		events  string
		want    []string
		without string
		lenient bool
		failed  bool
		skipped int
	}{
		{
			name: "pass",
			events: `{"Action":"output","Package":"p","Test":"TestA","Output":"a detail\n"}
{"Action":"pass","Package":"p","Test":"TestA","Elapsed":1.5}
{"Action":"output","Package":"p","Output":"ok  \tp\t1.6s\n"}
{"Action":"pass","Package":"p","Elapsed":1.6}`,
			want:    []string{"ok  \tp\t1.6s\n", "1.50 s  p.TestA\n"},
			without: "a detail",
		},
		{
			name: "fail prints the output",
			events: `{"Action":"output","Package":"p","Test":"TestA","Output":"    a_test.go:3: wrong\n"}
{"Action":"fail","Package":"p","Test":"TestA","Elapsed":1.5}`,
			want:   []string{"a_test.go:3: wrong"},
			failed: true,
		},
		{
			name: "skip",
			events: `{"Action":"output","Package":"github.com/penstock/penstock/wire","Test":"TestA/b","Output":"    a_test.go:3: no python3\n"}
{"Action":"output","Package":"github.com/penstock/penstock/wire","Test":"TestA/b","Output":"--- SKIP: TestA/b (0.00s)\n"}
{"Action":"skip","Package":"github.com/penstock/penstock/wire","Test":"TestA/b","Elapsed":0}`,
			want:   []string{"SKIPPED: wire.TestA/b: no python3\n", "FAIL: 1 tests were skipped"},
			failed: true, skipped: 1,
		},
		{
			name:    "skip that is no failure",
			events:  `{"Action":"skip","Package":"p","Test":"TestA","Elapsed":0}`,
			want:    []string{"SKIPPED: p.TestA"},
			without: "FAIL", lenient: true, skipped: 1,
		},
		{
			name: "excused skip",
			events: `{"Action":"output","Package":"p","Test":"TestA","Output":"    a_test.go:3: not on this machine: no huge pages\n"}
{"Action":"skip","Package":"p","Test":"TestA","Elapsed":0}`,
			want:    []string{"skipped, allowed: p.TestA: not on this machine: no huge pages\n"},
			without: "FAIL",
		},
		{
			name: "long test",
			events: `{"Action":"output","Package":"p","Test":"TestA","Output":"    a_test.go:3: not with -short: it takes a minute\n"}
{"Action":"skip","Package":"p","Test":"TestA","Elapsed":0}`,
			want:    []string{"skipped, allowed: p.TestA: not with -short: it takes a minute\n"},
			without: "FAIL",
		},
		{
			name:   "package without tests",
			events: `{"Action":"skip","Package":"p","Elapsed":0}`,
		},
		{
			name:   "build output",
			events: `{"ImportPath":"p","Action":"build-output","Output":"a.go:3: undefined: x\n"}`,
			want:   []string{"a.go:3: undefined: x"},
		},
		{
			name:   "words of go test itself",
			events: `go: no such package`,
			want:   []string{"go: no such package\n"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out strings.Builder
			r := &report{out: &out, strict: !c.lenient, tests: map[string]*test{}}
			must.OK(t, r.read(strings.NewReader(header+c.events), nil))
			r.summarize(1)

			for _, want := range c.want {
				if !strings.Contains(out.String(), want) {
					t.Errorf("printed %q, want %q in it", out.String(), want)
				}
			}
			if c.without != "" && strings.Contains(out.String(), c.without) {
				t.Errorf("printed %q, want no %q", out.String(), c.without)
			}
			if r.failed != c.failed || len(r.skipped) != c.skipped {
				t.Errorf("failed %t with %d skipped, want %t with %d", r.failed, len(r.skipped), c.failed, c.skipped)
			}
		})
	}
}

func TestProgress(t *testing.T) {
	const began = `"Time":"2026-11-28T07:00:00Z","Package":"github.com/penstock/penstock/test/e2e"`
	for _, c := range []struct{ name, events, want string }{
		{"nothing runs yet", header, "… 0 tests have ended; now: go compiles\n"},
		{"one runs, one waits for others, one has ended",
			header + `{"Action":"run","Test":"TestA",` + began + `}
{"Action":"run","Test":"TestB",` + began + `}
{"Action":"run","Test":"TestB/part",` + began + `}
{"Action":"pause","Test":"TestA",` + began + `}
{"Action":"run","Test":"TestC",` + began + `}
{"Action":"pass","Test":"TestC",` + began + `}
`, "… 1 tests have ended; now: test/e2e.TestB (90 s)\n"},
		{"many", header + `{"Action":"run","Test":"TestA",` + began + `}
{"Action":"run","Test":"TestB",` + began + `}
{"Action":"run","Test":"TestC",` + began + `}
{"Action":"run","Test":"TestD",` + began + `}
`, "… 0 tests have ended; now: test/e2e.TestA (90 s), test/e2e.TestB (90 s), test/e2e.TestC (90 s), 1 more\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out strings.Builder
			r := &report{out: &out, tests: map[string]*test{}}
			events, feed := io.Pipe()
			ticks, done := make(chan time.Time), make(chan error)
			go func() { done <- r.read(events, ticks) }()

			for line := range strings.Lines(c.events + "{}\n") { // read takes a line before the next one is written
				io.WriteString(feed, line)
			}
			ticks <- time.Date(2026, 11, 28, 7, 1, 30, 0, time.UTC)
			feed.Close()
			must.OK(t, <-done)
			if got := out.String(); got != c.want {
				t.Errorf("printed %q, want %q", got, c.want)
			}
		})
	}
}

func TestHoldPorts(t *testing.T) {
	holdPorts()
	for _, at := range []string{"127.0.0.1:9650", "127.0.0.1:9651"} {
		if l, err := net.Listen("tcp", at); err == nil {
			l.Close()
			t.Errorf("%s is free", at)
		}
	}
	if c, err := net.ListenPacket("udp", "127.0.0.1:5001"); err == nil {
		c.Close()
		t.Error("UDP port 5001 is free")
	}
}
