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
	"github.com/penstock/penstock/wire"
)

// TestOverdue stops the serving process. Each request is answered `late` at its deadline,
// and the process finds all slots unchanged when it continues.
func TestOverdue(t *testing.T) {
	const (
		objective = 60 * time.Millisecond
		goal      = 50 * time.Millisecond
		// The manager's threads may wait this long for a CPU of a machine that runs other
		// tests. Without the rule, requests end after hang_timeout. The manager's own tests
		// check the exact times of the rule.
		bound = 10 * time.Second
		n     = 24 // less than a client's max requests in flight
	)
	nd := start(t, "hang_timeout: 30s\n"+oneFunction(nullCard(t, "digest", small), fmt.Sprintf(", slo: %v", objective)), "PENSTOCK_NULL=busy=1ms")
	active, _ := serving(t, nd, "fn")

	var mu sync.Mutex
	by, ends, unanswered := map[wire.Status]int{}, map[uint64]int{}, 0
	var answered, received []time.Duration // since the manager received the request; since the client sent it
	got := newAnswers()
	deliver := got.deliver(small)
	c := dial(t, nd, "fn", client.Options{Timeout: patience, Deliver: func(r *client.Result) {
		mu.Lock()
		ends[r.Tag]++
		switch {
		case errors.Is(r.Err, client.ErrLate): // the client gave up, as it may on a busy machine
		case r.Err != nil:
			unanswered++
		default:
			by[r.Status]++
			answered = append(answered, r.Aggregate+r.Queue)
			received = append(received, time.Duration(r.Received-r.Sent))
		}
		mu.Unlock()
		deliver(r)
	}})
	send(t, c, small, 0, n, 5*time.Millisecond)
	got.wait(n)
	settled(t, nd, "fn")

	signalAll(t, []int{active.PID}, syscall.SIGSTOP)
	mu.Lock()
	clear(by)
	answered, received = nil, nil
	mu.Unlock()
	send(t, c, small, n, n, 5*time.Millisecond)
	got.wait(2 * n)
	mu.Lock()
	slices.Sort(answered)
	slices.Sort(received)
	after := received[len(received)-1] - objective
	t.Logf("process stopped: %v; after its deadline, the manager answered the median request by %v and the last by %v; the client received them by %v and %v, goal %v, bound %v",
		by, answered[len(answered)/2]-objective, answered[len(answered)-1]-objective, received[len(received)/2]-objective, after, goal, bound)
	if by[wire.StatusLate] != n || after > bound {
		t.Errorf("answers %v, up to %v after the deadline; want %d late within %v", by, after, n, bound)
	}
	mu.Unlock()
	if f, err := nd.Function("fn"); err != nil || f.InFlight != n {
		t.Errorf("%d slots in flight (%v), want %d until the process returns them", f.InFlight, err, n)
	}

	signalAll(t, []int{active.PID}, syscall.SIGCONT)
	f := settled(t, nd, "fn")
	if f.InFlight != 0 || f.Hangs != 0 {
		t.Errorf("%d slots in flight, %d hangs; want none", f.InFlight, f.Hangs)
	}
	// Every slot can be used again: the client's credit is as before.
	for round := range 20 {
		send(t, c, small, (2+round)*n, n, time.Millisecond)
	}
	got.wait(22 * n)
	if now, _ := serving(t, nd, "fn"); now.PID != active.PID {
		t.Errorf("process %d serves, want %d still", now.PID, active.PID)
	}
	settled(t, nd, "fn")
	mu.Lock()
	defer mu.Unlock()
	for tag, times := range ends {
		if times != 1 {
			t.Errorf("request %d ended %d times", tag, times)
		}
	}
	if by[wire.StatusOK] == 0 || unanswered > 0 || got.wrong > 0 {
		t.Errorf("after the stop: %v; %s", by, got)
	}
}
