package main

import (
	"strings"
	"testing"
)

const header = `{"Action":"start","Package":"github.com/penstock/penstock/wire"}
`

func TestReport(t *testing.T) {
	for _, c := range []struct {
		name    string
		events  string
		want    []string
		without string
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
			want:    []string{"SKIPPED: wire.TestA/b: no python3\n", "FAIL: 1 tests were skipped"},
			skipped: 1,
		},
		{
			name: "excused skip",
			events: `{"Action":"output","Package":"p","Test":"TestA","Output":"    a_test.go:3: not on this machine: no huge pages\n"}
{"Action":"skip","Package":"p","Test":"TestA","Elapsed":0}`,
			want:    []string{"skipped, allowed: p.TestA: not on this machine: no huge pages\n"},
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
			r := &report{out: &out, tests: map[string]*test{}}
			if err := r.read(strings.NewReader(header + c.events)); err != nil {
				t.Fatal(err)
			}
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
