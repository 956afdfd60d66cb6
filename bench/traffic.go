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
	"github.com/penstock/penstock/wire"
)

// traffic is pictures on their way to one function, and how each was answered.
//
//	newTraffic ──> keep (closed loop) or pace (open loop) ──> stop ──> between
//
// Each flow is a socket of its own, so that several of the source's receive calls
// and the kernel's queues are in use.
type traffic struct {
	flows    []*flow
	stopping atomic.Bool
	senders  sync.WaitGroup
}

// flow is one socket's part. Its answers are noted by the client's goroutine.
type flow struct {
	traffic *traffic
	client  *client.Client
	picture []byte
	// again sends the next request when one ended: a closed loop.
	again bool

	outstanding sync.WaitGroup // requests that have not ended
	sent        atomic.Uint64

	mu      sync.Mutex // guards answers
	answers []answered
}

// answered is how one request ended.
type answered struct {
	at      int64 // client.Now's clock
	latency int64 // nanoseconds, from when it was handed over to be sent
	status  wire.Status
	lost    bool // ended without an answer
	unsent  bool // was never sent: too many were waiting for credit
	batch   uint16
	service time.Duration // of its batch: gather and infer
}

// trafficOptions say what a traffic is like.
type trafficOptions struct {
	port     int
	flows    int
	inFlight int // most requests in flight, of each flow
	picture  []byte
	// timeout is when a request is given up without an answer.
	timeout time.Duration
	// expect is how many answers will be noted, for the memory of each flow.
	expect int
}

func newTraffic(ctx context.Context, o trafficOptions) (*traffic, error) {
	t := &traffic{}
	for range o.flows {
		f := &flow{traffic: t, picture: o.picture, answers: make([]answered, 0, cmp.Or(o.expect, 1<<16))}
		ready := make(chan struct{})
		var err error
		f.client, err = client.Dial(ctx, fmt.Sprintf("127.0.0.1:%d", o.port), client.Options{
			InFlight: o.inFlight, QueueLimit: max(1024, o.inFlight), Timeout: cmp.Or(o.timeout, 30*time.Second),
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

// keep has each flow keep that many requests in flight until stop: each end is
// followed by the next request.
func (t *traffic) keep(inFlight int) error {
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

// pace has the flows together send so many requests a second until stop, whatever
// becomes of them. A sender that comes late sends at once what is due, and latency
// counts from when it was due.
func (t *traffic) pace(perSecond float64) {
	gap := time.Duration(float64(len(t.flows)) / perSecond * float64(time.Second))
	for i, f := range t.flows {
		t.senders.Go(func() {
			due := client.Now() + int64(gap)*int64(i)/int64(len(t.flows))
			for !t.stopping.Load() {
				if wait := due - client.Now(); wait > 0 {
					time.Sleep(time.Duration(wait))
				}
				if err := f.send(due); err != nil {
					f.note(answered{at: client.Now(), lost: true, unsent: true})
				}
				due += int64(gap)
			}
		})
	}
}

// send sends one request that was due then.
func (f *flow) send(due int64) error {
	f.outstanding.Add(1)
	_, err := f.client.Send(f.picture, client.RequestOptions{Intended: due})
	if err != nil {
		f.outstanding.Done()
		return fmt.Errorf("send request: %w", err)
	}
	f.sent.Add(1)
	return nil
}

func (f *flow) ended(r *client.Result) {
	f.note(answered{at: r.Received, latency: r.Received - r.Intended, status: r.Status, lost: r.Err != nil,
		batch: r.Batch, service: r.Gather + r.Infer})
	if f.again && !f.traffic.stopping.Load() {
		if err := f.send(client.Now()); err != nil {
			f.note(answered{at: client.Now(), lost: true, unsent: true})
		}
	}
	f.outstanding.Done()
}

func (f *flow) note(a answered) {
	f.mu.Lock()
	f.answers = append(f.answers, a)
	f.mu.Unlock()
}

// stop sends nothing more, waits until all requests have ended and closes the
// sockets. It may be called again.
func (t *traffic) stop() {
	if t.stopping.Swap(true) {
		return
	}
	t.senders.Wait()
	for _, f := range t.flows {
		f.outstanding.Wait()
	}
	t.close()
}

func (t *traffic) close() {
	for _, f := range t.flows {
		f.client.Close()
	}
}

// between returns the answers that came in that span of client.Now's clock, in the
// order of their coming. to = 0 means until now.
func (t *traffic) between(from, to int64) []answered {
	var all []answered
	for _, f := range t.flows {
		f.mu.Lock()
		for _, a := range f.answers {
			if a.at >= from && (to == 0 || a.at < to) {
				all = append(all, a)
			}
		}
		f.mu.Unlock()
	}
	slices.SortFunc(all, func(a, b answered) int { return cmp.Compare(a.at, b.at) })
	return all
}

// take returns the answers that came since it was last called, in no order, in memory
// that is the caller's.
func (t *traffic) take() (all []answered) {
	for _, f := range t.flows {
		f.mu.Lock()
		all = append(all, f.answers...)
		f.answers = f.answers[:0]
		f.mu.Unlock()
	}
	return all
}

// sent is how many requests were handed over.
func (t *traffic) sent() (n uint64) {
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

func (n *Answers) add(m Answers) {
	n.OK += m.OK
	n.Late += m.Late
	n.Incomplete += m.Incomplete
	n.Busy += m.Busy
	n.Refused += m.Refused
	n.Failed += m.Failed
	n.Unanswered += m.Unanswered
	n.Unsent += m.Unsent
}

func count(all []answered) (n Answers) {
	for _, a := range all {
		switch {
		case a.unsent:
			n.Unsent++
		case a.lost:
			n.Unanswered++
		case a.status == wire.StatusOK:
			n.OK++
		case a.status == wire.StatusLate:
			n.Late++
		case a.status == wire.StatusIncomplete:
			n.Incomplete++
		case a.status == wire.StatusBusy:
			n.Busy++
		case a.status == wire.StatusRefused:
			n.Refused++
		case a.status == wire.StatusFailed:
			n.Failed++
		}
	}
	return n
}

// latencies are those of the ok answers.
func latencies(all []answered) (out []time.Duration) {
	for _, a := range all {
		if !a.lost && a.status == wire.StatusOK {
			out = append(out, time.Duration(a.latency))
		}
	}
	return out
}

// meanBatch is the mean size of the batches that the ok answers rode in: of
// batches, so that a batch of 8 counts as one.
func meanBatch(all []answered) float64 {
	images, batches := 0.0, 0.0
	for _, a := range all {
		if !a.lost && a.status == wire.StatusOK && a.batch > 0 {
			images++
			batches += 1 / float64(a.batch)
		}
	}
	if batches == 0 {
		return 0
	}
	return images / batches
}
