package recovery

import (
	"testing"
	"time"
)

const (
	us          = int64(time.Microsecond)
	ms          = int64(time.Millisecond)
	resendAfter = 100 * time.Millisecond
	count       = 48
)

func begun(sentAt, roundTrip int64) *Request {
	var r Request
	r.Begin(count, resendAfter)
	r.Sent(sentAt, roundTrip)
	return &r
}

func expectAsk(t *testing.T, r *Request, at int64) {
	t.Helper()
	if got := r.AskAt(); got != at {
		t.Errorf("asks at %v, want %v", time.Duration(got), time.Duration(at))
	}
}

func TestQuestions(t *testing.T) {
	t.Run("double while nothing is heard", func(t *testing.T) {
		r := begun(5*ms, 0)
		at := 5 * ms
		for silence := 100 * ms; silence < 2000*ms; silence *= 2 {
			at += silence
			expectAsk(t, r, at)
			if r.Ask(at - 1) {
				t.Fatal("asked too early")
			}
			if !r.Ask(at) {
				t.Fatal("did not ask in time")
			}
			if r.AskAt() != 0 || r.Ask(at) {
				t.Fatal("asked while the question leaves")
			}
			r.Sent(at, 0)
		}
	})

	t.Run("follow the NACK's delay", func(t *testing.T) {
		r := begun(0, 0)
		if !r.NACK(4*ms, 10) {
			t.Fatal("NACK was ignored")
		}
		expectAsk(t, r, 0)
		r.Sent(5*ms, 0)
		expectAsk(t, r, 11*ms)
		if !r.Ask(11 * ms) {
			t.Fatal("did not ask in time")
		}
		r.Sent(11*ms, 0)
		expectAsk(t, r, 23*ms)
		r.NACK(12*ms, 10) // a question is answered sooner; the longest delay counts
		r.Sent(13*ms, 0)
		expectAsk(t, r, 19*ms)
	})

	t.Run("keep their bounds", func(t *testing.T) {
		r := begun(0, 0)
		r.NACK(10*us, 10)
		r.Sent(20*us, 0)
		expectAsk(t, r, 20*us+int64(minSilence))
		r.NACK(20*us+90*ms, 10)
		r.Sent(200*ms, 0)
		expectAsk(t, r, 300*ms)
	})

	t.Run("wait while an answer arrives", func(t *testing.T) {
		r := begun(0, 0)
		r.NACK(ms, 10)
		r.Sent(2*ms, 0)
		r.Answered(3*ms, 0, false)
		expectAsk(t, r, 3*ms+100*ms/gapPart)
		r.Answered(4*ms, 10*ms, false)
		expectAsk(t, r, 24*ms)
		r.Answered(5*ms, 80*ms, false)
		expectAsk(t, r, 105*ms)
		r.Answered(6*ms, 80*ms, true) // all that it asked for has arrived
		expectAsk(t, r, 6*ms)
	})
}

func TestNACK(t *testing.T) {
	t.Run("is ignored while fragments leave", func(t *testing.T) {
		var r Request
		r.Begin(count, resendAfter)
		if r.NACK(ms, 3) {
			t.Error("NACK was followed")
		}
	})

	t.Run("is ignored for a round trip", func(t *testing.T) {
		r := begun(0, 2*ms)
		if r.NACK(2*ms-1, 3) {
			t.Error("NACK was followed too early")
		}
		if !r.NACK(2*ms, 3) {
			t.Error("NACK was ignored")
		}
	})

	t.Run("is ignored for longer if nothing arrives", func(t *testing.T) {
		r, now := begun(0, 0), ms
		r.NACK(now, 8)
		for _, step := range []struct {
			missing int
			ignored int64 // after the last fragment, before this NACK
		}{{8, 500 * us}, {8, 1000 * us}, {8, 2000 * us}, {7, 4000 * us}, {3, 4000 * us}} {
			r.Sent(now, 0)
			if r.NACK(now+step.ignored-1, step.missing) {
				t.Errorf("NACK of %d fragments was followed too early", step.missing)
			}
			now += step.ignored
			if !r.NACK(now, step.missing) {
				t.Errorf("NACK of %d fragments was ignored %v after the last fragment", step.missing, time.Duration(step.ignored))
			}
		}
	})

	t.Run("answers a question at once", func(t *testing.T) {
		r := begun(0, 0)
		r.NACK(ms, 8)
		r.Sent(ms, 0)
		if !r.Ask(r.AskAt()) {
			t.Fatal("did not ask")
		}
		now := 20 * ms
		r.Sent(now, 5*ms)
		if !r.NACK(now+10*us, 8) {
			t.Error("the answer to the question was ignored")
		}
	})
}
