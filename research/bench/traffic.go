package bench

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/shm"
)

// Traffic sends pictures to one function and records how each was answered.
//
//	NewTraffic ──> Keep (closed loop) or Pace (open loop) ──> Stop ──> Between
//
// Each flow is a separate socket, so that the load uses several of the source's
// receive calls and of the kernel's queues.
type Traffic struct {
	flows    []*flow
	stopping atomic.Bool
	senders  sync.WaitGroup
}

// flow is one socket. The client's goroutine records its answers.
type flow struct {
	traffic *Traffic
	client  *client.Client
	picture []byte
	// patience is how long a request may wait. It is long because late answers are
	// measured, too.
	patience time.Duration
	// again sends the next request after one has ended: a closed loop.
	again bool

	outstanding sync.WaitGroup // requests that have not ended
	sent        atomic.Uint64

	mu      sync.Mutex // guards answers
	answers []Answered
}

// Answered is the outcome of one request.
type Answered struct {
	At      int64 // on shm.Now's clock
	Latency int64 // nanoseconds, from handing it over to be sent
	Status  client.Status
	Unsent  bool // was never sent: too many requests were waiting for credit
	Batch   int
	Service time.Duration // of its batch: gather and infer
}

// TrafficOptions describe a traffic.
type TrafficOptions struct {
	Port     int
	Flows    int
	InFlight int // max requests in flight, per flow
	Picture  []byte
	// Timeout is the time after which an unanswered request is given up.
	Timeout time.Duration
	// Expect is the expected number of answers, for which each flow reserves memory.
	Expect int
}

func NewTraffic(ctx context.Context, o TrafficOptions) (*Traffic, error) {
	t := &Traffic{}
	timeout := cmp.Or(o.Timeout, 30*time.Second)
	for range o.Flows {
		f := &flow{traffic: t, picture: o.Picture, patience: timeout, answers: make([]Answered, 0, cmp.Or(o.Expect, 1<<16))}
		ready := make(chan struct{})
		var err error
		f.client, err = client.Dial(ctx, fmt.Sprintf("127.0.0.1:%d", o.Port), client.Options{
			InFlight: o.InFlight, QueueLimit: max(8192, o.InFlight), Timeout: timeout,
			Deliver: func(r *client.Result) {
				<-ready
				f.ended(r)
			},
		})
		if err != nil {
			t.close()
			return nil, err
		}
		close(ready)
		t.flows = append(t.flows, f)
	}
	return t, nil
}

// Keep makes each flow keep that many requests in flight until Stop: it sends the
// next request when one ends.
func (t *Traffic) Keep(inFlight int) error {
	for _, f := range t.flows {
		f.again = true
		for range inFlight {
			if err := f.send(shm.Now()); err != nil {
				return err
			}
		}
	}
	return nil
}

// Pace makes the flows together send that many requests per second until Stop,
// whatever their outcomes. A sender that is late sends all due requests immediately.
// Latency counts from when a request was due.
func (t *Traffic) Pace(perSecond float64) {
	gap := time.Duration(float64(len(t.flows)) / perSecond * float64(time.Second))
	for i, f := range t.flows {
		t.senders.Go(func() {
			due := shm.Now() + int64(gap)*int64(i)/int64(len(t.flows))
			for !t.stopping.Load() {
				if wait := due - shm.Now(); wait > 0 {
					time.Sleep(time.Duration(wait))
				}
				if err := f.send(due); err != nil {
					f.note(Answered{At: shm.Now(), Unsent: true})
				}
				due += int64(gap)
			}
		})
	}
}

// send sends one request that was due at that time.
func (f *flow) send(due int64) error {
	f.outstanding.Add(1)
	_, err := f.client.Send(f.picture, client.RequestOptions{Intended: shm.Time(due), Deadline: f.patience})
	if err != nil {
		f.outstanding.Done()
		return fmt.Errorf("send request: %w", err)
	}
	f.sent.Add(1)
	return nil
}

func (f *flow) ended(r *client.Result) {
	f.note(Answered{At: shm.Nanos(r.Received), Latency: int64(r.Received.Sub(r.Intended)), Status: r.Status,
		Batch: r.Batch, Service: r.Stages.Gather + r.Stages.Infer})
	if f.again && !f.traffic.stopping.Load() {
		if err := f.send(shm.Now()); err != nil {
			f.note(Answered{At: shm.Now(), Unsent: true})
		}
	}
	f.outstanding.Done()
}

func (f *flow) note(a Answered) {
	f.mu.Lock()
	f.answers = append(f.answers, a)
	f.mu.Unlock()
}

// Stop stops sending, waits until all requests have ended and closes the sockets. It
// may be called again.
func (t *Traffic) Stop() {
	if t.stopping.Swap(true) {
		return
	}
	t.senders.Wait()
	for _, f := range t.flows {
		f.outstanding.Wait()
	}
	t.close()
}

func (t *Traffic) close() {
	for _, f := range t.flows {
		f.client.Close()
	}
}

// Between returns the answers that arrived in that span of shm.Now's clock, in
// order of arrival. to = 0 means until now.
func (t *Traffic) Between(from, to int64) []Answered {
	var all []Answered
	for _, f := range t.flows {
		f.mu.Lock()
		for _, a := range f.answers {
			if a.At >= from && (to == 0 || a.At < to) {
				all = append(all, a)
			}
		}
		f.mu.Unlock()
	}
	slices.SortFunc(all, func(a, b Answered) int { return cmp.Compare(a.At, b.At) })
	return all
}

// Sent returns how many requests were handed over.
func (t *Traffic) Sent() (n uint64) {
	for _, f := range t.flows {
		n += f.sent.Load()
	}
	return n
}
