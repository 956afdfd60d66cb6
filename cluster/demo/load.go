package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/client"
)

// patience is how long a client waits for an answer. A request without one until then is lost.
const patience = 10 * time.Second

// A way is how clients reach a function.
type way string

const (
	// plain clients know the function's Service only, and are never moved.
	plain way = "Service"
	// following clients know the nodes' addresses. They go where nodes send them, and leave nodes that are silent.
	following way = "addresses"
)

// request is a request that has ended.
type request struct {
	flow               *flow
	intended, received time.Time
	status             client.Status
	// late means that the answer came after the function's objective, or that the node or the client gave up, because it would.
	late bool
}

// load is the traffic of all clients. Any goroutine may use it.
type load struct {
	mu    sync.Mutex
	ended []request // guarded by mu
	flows []*flow
}

// flow is one client, which sends at a rate.
type flow struct {
	function string
	way      way
	to       string
	picture  []byte

	client *client.Client
	stop   context.CancelFunc
	done   chan struct{}

	waits atomic.Int64 // requests that have not ended

	mu        sync.Mutex
	perSecond float64 // guarded by mu
}

// start starts a client. To is what client.Dial takes. It sends until close.
func (l *load) start(function functionSpec, w way, to string, trusted []netip.Prefix, perSecond float64) (*flow, error) {
	f := &flow{
		function: function.name, way: w, to: to, picture: make([]byte, function.pictureBytes),
		perSecond: perSecond, done: make(chan struct{}),
	}
	c, err := client.Dial(context.Background(), to, client.Options{
		Timeout: patience, Trusted: trusted,
		Deliver: func(r *client.Result) {
			late := r.Status == client.StatusLate || errors.Is(r.Err, client.ErrLate) ||
				r.Status == client.StatusOK && r.Received.Sub(r.Intended) > function.slo
			l.mu.Lock()
			defer l.mu.Unlock()
			l.ended = append(l.ended, request{flow: f, intended: r.Intended, received: r.Received, status: r.Status, late: late})
			f.waits.Add(-1)
		},
	})
	if err != nil {
		return nil, err
	}
	f.client = c
	ctx, stop := context.WithCancel(context.Background())
	f.stop = stop
	l.flows = append(l.flows, f)
	go f.send(ctx)
	return f, nil
}

// send sends each request at its intended time. If it is behind, it sends what is due at once.
func (f *flow) send(ctx context.Context) {
	defer close(f.done)
	for next := time.Now(); ; {
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Until(next)):
		}
		f.waits.Add(1)
		// An error is that of a full queue, which a client of this rate never has.
		if _, err := f.client.Send(f.picture, client.RequestOptions{Intended: next}); err != nil {
			panic(fmt.Sprintf("send to %s: %v", f.to, err))
		}
		f.mu.Lock()
		next = next.Add(time.Duration(float64(time.Second) / f.perSecond))
		f.mu.Unlock()
	}
}

// setRate sets the rate of a function's clients of all ways, in total.
func (l *load) setRate(function string, perSecond float64) {
	own := l.of(function)
	for _, f := range own {
		f.mu.Lock()
		f.perSecond = perSecond / float64(len(own))
		f.mu.Unlock()
	}
}

func (l *load) of(function string) (own []*flow) {
	for _, f := range l.flows {
		if f.function == function {
			own = append(own, f)
		}
	}
	return own
}

// close stops all clients, waits for what they sent, and returns how each request ended.
func (l *load) close() []request {
	for _, f := range l.flows {
		f.stop()
		<-f.done
	}
	for _, f := range l.flows {
		for end := time.Now().Add(patience); f.waits.Load() > 0 && time.Now().Before(end); {
			time.Sleep(10 * time.Millisecond)
		}
		f.client.Close()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.ended)
}

// tally counts how requests ended.
type tally struct {
	sent, answered, lost, busy, late, failed int
	worst                                    time.Duration
}

// count counts requests. If the node or the client gave a request up, it is late and not answered.
func count(requests []request) (t tally) {
	for _, r := range requests {
		t.sent++
		if r.late {
			t.late++
		}
		switch {
		case r.status == client.StatusOK:
			t.answered++
			t.worst = max(t.worst, r.received.Sub(r.intended))
		case r.late:
		case r.status == client.StatusBusy:
			t.busy++
		case r.status == client.StatusUnanswered:
			t.lost++
		default:
			t.failed++
		}
	}
	return t
}

// silence returns the longest time without an answer that a client had after a moment. A client whose requests are never
// answered again counts until the end.
func silence(requests []request, f *flow, from, to time.Time) time.Duration {
	at := []time.Time{from, to}
	for _, r := range requests {
		if r.flow == f && r.status == client.StatusOK && r.received.After(from) && r.received.Before(to) {
			at = append(at, r.received)
		}
	}
	slices.SortFunc(at, time.Time.Compare)
	longest := time.Duration(0)
	for i := range at[1:] {
		longest = max(longest, at[i+1].Sub(at[i]))
	}
	return longest
}
