package testbed

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/wire"
)

// Traffic is pictures on their way to one function, and how each was answered.
//
//	NewTraffic ──> Keep (closed loop) or Pace (open loop) ──> Stop ──> Between
//
// Each flow is a socket of its own, so that several of the source's receive calls
// and the kernel's queues are in use.
type Traffic struct {
	flows    []*flow
	stopping atomic.Bool
	senders  sync.WaitGroup
}

// flow is one socket's part. Its answers are noted by the client's goroutine.
type flow struct {
	traffic *Traffic
	client  *client.Client
	picture []byte
	// patience is how long a request may wait: late answers are measured, too.
	patience time.Duration
	// again sends the next request when one ended: a closed loop.
	again bool

	outstanding sync.WaitGroup // requests that have not ended
	sent        atomic.Uint64

	mu      sync.Mutex // guards answers
	answers []Answered
}

// Answered is how one request ended.
type Answered struct {
	At      int64 // client.Now's clock
	Latency int64 // nanoseconds, from when it was handed over to be sent
	Status  wire.Status
	Lost    bool // ended without an answer
	unsent  bool // was never sent: too many were waiting for credit
	Batch   uint16
	Service time.Duration // of its batch: gather and infer
}

// TrafficOptions say what a traffic is like.
type TrafficOptions struct {
	Port     int
	Flows    int
	InFlight int // most requests in flight, of each flow
	Picture  []byte
	// Timeout is when a request is given up without an answer.
	Timeout time.Duration
	// Expect is how many answers will be noted, for the memory of each flow.
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

// Keep has each flow keep that many requests in flight until stop: each end is
// followed by the next request.
func (t *Traffic) Keep(inFlight int) error {
	for _, f := range t.flows {
		f.again = true
		for range inFlight {
			if err := f.send(client.Now()); err != nil {
				return err
			}
		}
	}
	return nil
}

// Pace has the flows together send so many requests a second until stop, whatever
// becomes of them. A sender that comes late sends at once what is due, and latency
// counts from when it was due.
func (t *Traffic) Pace(perSecond float64) {
	gap := time.Duration(float64(len(t.flows)) / perSecond * float64(time.Second))
	for i, f := range t.flows {
		t.senders.Go(func() {
			due := client.Now() + int64(gap)*int64(i)/int64(len(t.flows))
			for !t.stopping.Load() {
				if wait := due - client.Now(); wait > 0 {
					time.Sleep(time.Duration(wait))
				}
				if err := f.send(due); err != nil {
					f.note(Answered{At: client.Now(), Lost: true, unsent: true})
				}
				due += int64(gap)
			}
		})
	}
}

// send sends one request that was due then.
func (f *flow) send(due int64) error {
	f.outstanding.Add(1)
	_, err := f.client.Send(f.picture, client.RequestOptions{Intended: due, Deadline: f.patience})
	if err != nil {
		f.outstanding.Done()
		return fmt.Errorf("send request: %w", err)
	}
	f.sent.Add(1)
	return nil
}

func (f *flow) ended(r *client.Result) {
	f.note(Answered{At: r.Received, Latency: r.Received - r.Intended, Status: r.Status, Lost: r.Err != nil,
		Batch: r.Batch, Service: r.Gather + r.Infer})
	if f.again && !f.traffic.stopping.Load() {
		if err := f.send(client.Now()); err != nil {
			f.note(Answered{At: client.Now(), Lost: true, unsent: true})
		}
	}
	f.outstanding.Done()
}

func (f *flow) note(a Answered) {
	f.mu.Lock()
	f.answers = append(f.answers, a)
	f.mu.Unlock()
}

// Stop sends nothing more, waits until all requests have ended and closes the
// sockets. It may be called again.
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

// Between returns the answers that came in that span of client.Now's clock, in the
// order of their coming. to = 0 means until now.
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

// Take returns the answers that came since it was last called, in no order, in memory
// that is the caller's.
func (t *Traffic) Take() (all []Answered) {
	for _, f := range t.flows {
		f.mu.Lock()
		all = append(all, f.answers...)
		f.answers = f.answers[:0]
		f.mu.Unlock()
	}
	return all
}

// Sent is how many requests were handed over.
func (t *Traffic) Sent() (n uint64) {
	for _, f := range t.flows {
		n += f.sent.Load()
	}
	return n
}

// Answers counts how requests ended.
type Answers struct {
	OK         uint64 `json:"ok"`
	Late       uint64 `json:"late"`
	Incomplete uint64 `json:"incomplete"`
	Busy       uint64 `json:"busy"`
	Refused    uint64 `json:"refused"`
	Failed     uint64 `json:"failed"`
	// Unanswered ended without any answer; Unsent were never sent, as too many waited
	// for credit.
	Unanswered uint64 `json:"unanswered"`
	Unsent     uint64 `json:"unsent"`
}

func (n *Answers) Add(m Answers) {
	n.OK += m.OK
	n.Late += m.Late
	n.Incomplete += m.Incomplete
	n.Busy += m.Busy
	n.Refused += m.Refused
	n.Failed += m.Failed
	n.Unanswered += m.Unanswered
	n.Unsent += m.Unsent
}

func Count(all []Answered) (n Answers) {
	for _, a := range all {
		switch {
		case a.unsent:
			n.Unsent++
		case a.Lost:
			n.Unanswered++
		case a.Status == wire.StatusOK:
			n.OK++
		case a.Status == wire.StatusLate:
			n.Late++
		case a.Status == wire.StatusIncomplete:
			n.Incomplete++
		case a.Status == wire.StatusBusy:
			n.Busy++
		case a.Status == wire.StatusRefused:
			n.Refused++
		case a.Status == wire.StatusFailed:
			n.Failed++
		}
	}
	return n
}

// Latencies are those of the ok answers.
func Latencies(all []Answered) (out []time.Duration) {
	for _, a := range all {
		if !a.Lost && a.Status == wire.StatusOK {
			out = append(out, time.Duration(a.Latency))
		}
	}
	return out
}

// MeanBatch is the mean size of the batches that the ok answers rode in: of
// batches, so that a batch of 8 counts as one.
func MeanBatch(all []Answered) float64 {
	images, batches := 0.0, 0.0
	for _, a := range all {
		if !a.Lost && a.Status == wire.StatusOK && a.Batch > 0 {
			images++
			batches += 1 / float64(a.Batch)
		}
	}
	if batches == 0 {
		return 0
	}
	return images / batches
}

// Pause waits, unless ctx ends.
func Pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
