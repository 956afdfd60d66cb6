// Package loadfake replaces the manager as the peer of a load generator. It is a
// system that answers after a time. A test can make it lose, refuse, repeat,
// reorder or falsify answers.
//
// It uses the time package's clock. In a testing/synctest bubble that clock
// advances only while all goroutines sleep, so a run of a minute takes no real
// time.
package loadfake

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/loadgen"
	"github.com/penstock/penstock/shm"
	"github.com/penstock/penstock/wire"
)

// Clock is the time package's clock.
type Clock struct{}

// epoch is a fixed time before the program starts, and before a bubble's start at
// midnight on 1 January 2000.
var epoch = time.Unix(0, 0)

// Now returns the time since 1970.
func (Clock) Now() int64 { return int64(time.Since(epoch)) }

// Alarm returns an alarm that sleeps with the time package.
func (c Clock) Alarm(ctx context.Context) (loadgen.Alarm, error) { return alarm{ctx}, nil }

type alarm struct{ ctx context.Context }

func (a alarm) Wait(until int64) bool {
	timer := time.NewTimer(time.Duration(until - Clock{}.Now()))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-a.ctx.Done():
	}
	return a.ctx.Err() == nil
}

func (alarm) Close() error { return nil }

// Request is a request that the system received.
type Request struct {
	// Number counts the system's requests from 0.
	Number   int
	Function string
	Stream   int
	Picture  []byte
}

// Outcome is what the system does with a request. The zero value answers ok
// immediately.
type Outcome struct {
	// Refused is Send's error.
	Refused error
	// Lost requests get no reply before the sender is closed.
	Lost bool
	// Delay is added to Service; later requests may overtake.
	Delay time.Duration
	// Times is how often the reply arrives; 0 means once.
	Times   int
	Result  wire.Result
	Payload []byte
	// Err gives the request up.
	Err error
}

// errClosed ends outstanding requests when their sender is closed.
var errClosed = errors.New("fake: closed")

// System answers requests. Set its fields before the first use; after that any
// goroutine may use it.
type System struct {
	// Service is how long the only server takes per request; others wait in order.
	Service time.Duration
	// Room is the max number of requests that the system holds; further ones are
	// answered busy immediately. 0 is no limit.
	Room int
	// Behave decides what happens to a request; nil answers all ok. The system
	// calls it with its lock held.
	Behave func(Request) Outcome
	// Share, if set, returns each function's share after that many requests.
	Share func(function string, requests int) float64

	mu       sync.Mutex
	requests int
	held     int
	freeAt   int64
	open     int // senders
	status   map[string]*control.FunctionStatus
}

// Dial is a loadgen.Dialer.
func (s *System) Dial(_ context.Context, f loadgen.Function, stream int, deliver func(*client.Result)) (loadgen.Sender, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open++
	return &sender{system: s, function: f.Name, stream: stream, deliver: deliver, outstanding: make(map[uint64]*time.Timer)}, nil
}

// Open returns how many senders are not closed.
func (s *System) Open() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open
}

// Status returns the status that a manager would report. A function is in it from
// its first request on.
func (s *System) Status(context.Context) (control.Status, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all control.Status
	for _, f := range s.status {
		now := *f
		if s.Share != nil {
			now.SharePercent = s.Share(f.Name, int(f.Accepted))
		}
		all.Functions = append(all.Functions, now)
	}
	return all, nil
}

// take decides what happens to a request, and when. A request that is not held is
// answered immediately and was not accepted.
func (s *System) take(r Request) (outcome Outcome, held bool, after time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r.Number = s.requests
	s.requests++
	if s.Behave != nil {
		outcome = s.Behave(r)
	}
	if outcome.Refused != nil {
		return outcome, false, 0
	}
	if s.Room > 0 && s.held >= s.Room {
		return Outcome{Result: wire.Result{Status: wire.StatusBusy}}, false, 0
	}
	if s.status == nil {
		s.status = make(map[string]*control.FunctionStatus)
	}
	if s.status[r.Function] == nil {
		s.status[r.Function] = &control.FunctionStatus{Name: r.Function}
	}
	s.status[r.Function].Accepted++
	if outcome.Lost {
		s.status[r.Function].Lost++
		return outcome, true, 0
	}
	s.held++
	now := Clock{}.Now()
	s.freeAt = max(s.freeAt, now) + int64(s.Service)
	return outcome, true, time.Duration(s.freeAt-now) + outcome.Delay
}

func (s *System) replied(function string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held--
	s.status[function].Replied++
}

// sender belongs to one stream. Lock order: its mu before the system's.
type sender struct {
	system   *System
	function string
	stream   int
	deliver  func(*client.Result)

	mu          sync.Mutex
	closed      bool
	outstanding map[uint64]*time.Timer // nil for lost requests
}

func (s *sender) Send(picture []byte, _ int64, tag uint64) error {
	outcome, held, after := s.system.take(Request{Function: s.function, Stream: s.stream, Picture: picture})
	if outcome.Refused != nil {
		return outcome.Refused
	}
	if !held {
		s.reply(tag, outcome)
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if outcome.Lost {
		s.outstanding[tag] = nil
		return nil
	}
	// Never 0: such a timer crashes the race detector in a bubble of synctest
	// (golang/go#78156).
	s.outstanding[tag] = time.AfterFunc(max(after, 1), func() {
		s.system.replied(s.function)
		s.reply(tag, outcome)
	})
	return nil
}

func (s *sender) reply(tag uint64, outcome Outcome) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	delete(s.outstanding, tag)
	r := outcome.Result
	result := client.Result{Status: client.StatusOK + client.Status(r.Status), Kind: r.Kind, Batch: int(r.Batch),
		Stages: client.Stages{Queue: r.Queue, Infer: r.Infer},
		Tag:    tag, Payload: outcome.Payload, Sent: time.Now(), Received: shm.Time(Clock{}.Now()), Err: outcome.Err}
	for range max(outcome.Times, 1) {
		s.deliver(&result)
	}
}

func (s *sender) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errClosed
	}
	s.closed = true
	for tag, timer := range s.outstanding {
		if timer != nil {
			timer.Stop()
		}
		s.deliver(&client.Result{Tag: tag, Sent: time.Now(), Err: errClosed})
	}
	s.system.mu.Lock()
	defer s.system.mu.Unlock()
	s.system.open--
	return nil
}
