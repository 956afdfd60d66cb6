package e2e

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/internal/testing/nodetest"
)

// TestOverdue stops the serving process and its shadow, which would take over. Each request is answered `late` at its deadline,
// and the process finds all slots unchanged when it continues.
func TestOverdue(t *testing.T) {
	const (
		objective = 60 * time.Millisecond
		goal      = 50 * time.Millisecond
		n         = 24 // less than a client's max requests in flight
	)
	nd := start(t, "hang_timeout: 30s\n"+oneFunction(nodetest.Card(t, "digest", small), fmt.Sprintf(", slo: %v", objective)), "PENSTOCK_NULL=busy=1ms")
	active, shadow := nodetest.Serving(t, nd, "fn")

	var mu sync.Mutex
	by, ends, gaveUp, unanswered := map[client.Status]int{}, map[uint64]int{}, 0, 0
	var answered, received []time.Duration // since the manager received the request; since the client sent it
	got := nodetest.NewAnswers()
	deliver := got.Deliver(small)
	c := nodetest.Dial(t, nd, "fn", client.Options{Timeout: patience, Deliver: func(r *client.Result) {
		mu.Lock()
		ends[r.Tag]++
		switch {
		case errors.Is(r.Err, client.ErrLate): // as may happen on a busy machine
			gaveUp++
		case r.Err != nil:
			unanswered++
		default:
			by[r.Status]++
			answered = append(answered, r.Stages.Aggregate+r.Stages.Queue)
			received = append(received, r.Received.Sub(r.Sent))
		}
		mu.Unlock()
		deliver(r)
	}})
	nodetest.Send(t, c, small, 0, n, 5*time.Millisecond)
	got.Wait(n)
	nodetest.Settled(t, nd, "fn")

	// If a busy machine delays all requests before the manager has them, repeat.
	const maxAttempts = 10
	sent := n
	for attempt, late := 1, 0; late == 0; attempt++ {
		signalAll(t, []int{shadow.PID, active.PID}, syscall.SIGSTOP)
		mu.Lock()
		clear(by)
		answered, received, gaveUp = nil, nil, 0
		mu.Unlock()
		nodetest.Send(t, c, small, sent, n, 5*time.Millisecond)
		sent += n
		got.Wait(sent)

		mu.Lock()
		late = by[client.StatusLate]
		if late+by[client.StatusIncomplete]+gaveUp != n || late == 0 && attempt == maxAttempts {
			t.Errorf("process stopped: answers %v, the client gave up %d; want all of %d late", by, gaveUp, n)
		}
		if late > 0 {
			slices.Sort(answered)
			slices.Sort(received)
			t.Logf("process stopped: %v; after its deadline, the manager answered the median request by %v and the last by %v; the client received them by %v and %v, goal %v",
				by, answered[len(answered)/2]-objective, answered[len(answered)-1]-objective, received[len(received)/2]-objective, received[len(received)-1]-objective, goal)
		}
		mu.Unlock()
		if f, err := nd.Function("fn"); err != nil || f.InFlight != late || f.Hangs != 0 {
			t.Errorf("%d slots in flight, %d hangs (%v), want %d until the process returns them", f.InFlight, f.Hangs, err, late)
		}

		signalAll(t, []int{active.PID, shadow.PID}, syscall.SIGCONT)
		if f := nodetest.Settled(t, nd, "fn"); f.InFlight != 0 || f.Hangs != 0 {
			t.Errorf("%d slots in flight, %d hangs; want none", f.InFlight, f.Hangs)
		}
		if t.Failed() {
			return
		}
	}
	// Every slot can be used again: the client's credit is as before.
	for range 20 {
		nodetest.Send(t, c, small, sent, n, time.Millisecond)
		sent += n
	}
	got.Wait(sent)
	if now, _ := nodetest.Serving(t, nd, "fn"); now.PID != active.PID {
		t.Errorf("process %d serves, want %d still", now.PID, active.PID)
	}
	nodetest.Settled(t, nd, "fn")
	mu.Lock()
	defer mu.Unlock()
	for tag, times := range ends {
		if times != 1 {
			t.Errorf("request %d ended %d times", tag, times)
		}
	}
	if by[client.StatusOK] == 0 || unanswered > 0 || got.Wrong > 0 {
		t.Errorf("after the stop: %v; %s", by, got)
	}
}
