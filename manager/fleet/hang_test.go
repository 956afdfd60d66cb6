package fleet

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testing/must"
)

func TestHangMessage(t *testing.T) {
	b := newNode(t, configs.DeviceCPU, nil, "governor")
	b.cfg.HangTimeout = 2 * time.Second
	must.OK(t, b.add(named("a", 20)))
	b.turns()
	f, in := b.functions.find("a"), b.instance("a", 0)
	var log bytes.Buffer
	in.log = zerolog.New(&log)
	before, _ := b.serves("a")
	bed := &bed{f, t}
	bed.dial().Send(1)
	bed.eventually("the request is there", func() bool { return f.port.Stats().InFlight == 1 })
	// A process that loads its model is not taken for one that hangs.
	b.loaded("a", &control.Residency{State: control.Loading})
	in.watch(max(in.queue.Oldest(), in.ringSince) + f.hangTimeout)
	if q := in.pair.Process(before); q.Role == control.Kill {
		t.Fatalf("the process is %+v while it loads its model", q)
	}
	b.loaded("a", &control.Residency{State: control.Running})
	in.watch(max(in.queue.Oldest(), in.ringSince) + f.hangTimeout)
	if q := in.pair.Process(before); q.Role != control.Kill {
		t.Fatalf("the process is %+v, want it killed", q)
	}
	for _, want := range []string{`"message":"process hangs; killed it"`, `"after_ms":`, `"hang_timeout_ms":2000`} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log %q does not say %s", log.String(), want)
		}
	}
	if got, want := f.instances.failure(), "no answer after 2s (hang_timeout)"; !strings.Contains(got, want) {
		t.Errorf("the failure is %q, want %q", got, want)
	}
	b.turns()
	if now, _ := b.serves("a"); now == before {
		t.Error("it serves still")
	}
	if s := b.status("a"); s.Hangs != 1 || s.HangTimeoutMillis != 2000 {
		t.Errorf("status says %d hangs after %v ms, want 1 after 2000", s.Hangs, s.HangTimeoutMillis)
	}
}

// TestUnansweredRequest checks that a request without a process fails after twice the hang
// timeout, and not before.
func TestUnansweredRequest(t *testing.T) {
	b := newBed(t, configs.Default(), 100)
	in, s := b.instances[0], b.dial()
	s.Send(1)
	b.eventually("the request is published", func() bool { return in.queue.Oldest() != 0 })
	published := in.queue.Oldest()
	in.watch(published + 2*b.hangTimeout - 1)
	if n := b.port.Stats().InFlight; n != 1 {
		t.Fatalf("%d requests in flight before patience ends, want 1", n)
	}
	in.watch(published + 2*b.hangTimeout + 1)
	if e := s.Next(); e.Tag != 1 || e.Status != client.StatusFailed {
		t.Fatalf("request %d is %v, want 1 failed", e.Tag, e.Status)
	}
}
