package loadgen_test

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/loadgen"
)

func snapshot(elapsed time.Duration) loadgen.Snapshot {
	return loadgen.Snapshot{
		Elapsed: elapsed, Left: 30*time.Second - elapsed,
		Functions: []loadgen.Live{
			{Name: "face", SLO: 25 * time.Millisecond, PerSecond: 199.6, WithinSLO: 99.25, P99: 8100 * time.Microsecond, SharePercent: 40, ShareKnown: true, Outstanding: 2},
			{Name: "detect", SLO: 400 * time.Millisecond, PerSecond: 4},
		},
	}
}

func TestSnapshot(t *testing.T) {
	s := snapshot(12 * time.Second)
	if got, want := s.String(), " 18 s left │ face 200/s 99.2 % in time, p99 8.1 of 25 ms, 2 open, 40 % │ detect 4/s p99 – of 400 ms, 0 open"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	s.WarmingUp = true
	if !strings.Contains(s.String(), "18 s left, warming up │") {
		t.Errorf("%q", s.String())
	}
}

func TestProgressTerminal(t *testing.T) {
	var out bytes.Buffer
	progress := loadgen.NewProgress(&out, func() int { return 20 })
	progress.Show(snapshot(0))
	progress.Show(snapshot(250 * time.Millisecond))
	progress.End()
	want := "\r 30 s left │ face …\x1b[K" + "\r 30 s left │ face …\x1b[K" + "\r\x1b[K"
	if out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
}

func TestProgressFile(t *testing.T) {
	var out bytes.Buffer
	progress := loadgen.NewProgress(&out, nil)
	for elapsed := time.Duration(0); elapsed <= 20*time.Second; elapsed += loadgen.ObserveEvery {
		progress.Show(snapshot(elapsed))
	}
	progress.End()
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	if len(lines) != 5 || !strings.HasPrefix(lines[1], " 25 s left") || strings.ContainsAny(out.String(), "\r\x1b") {
		t.Errorf("%q", lines)
	}
}
