// Package loadgen sends pictures to inference functions on a schedule and reports
// how the functions answered.
//
//		Spec ─┬─ function: 1 arrivals ──when──> 2 scheduler ──picture, tag──> Sender ──UDP──> manager
//		      │                                      │ 3 opens an entry                          │
//		      │            histograms, counts <── 4 ledger <────────────reply, tag───────────────┘
//		      └─ …                                   │ 5 the rest is unanswered after the grace time
//		                                         6 Report
//
//	 1. Package arrival computes, without a clock, when each request is meant to leave
//	    and which stream sends it.
//	 2. One scheduler goroutine per function sleeps until then and hands the picture to
//	    the stream's Sender. It never waits for an answer (open loop): a client that
//	    holds back would hide that the system is slow.
//	 3. The ledger records the intended moment under a tag. The reply carries the tag back.
//	 4. Latency counts from the intended moment to the reply's arrival. A request that left
//	    late because the system (or this program) stalled is therefore not counted as quick
//	    ("coordinated omission", G. Tene). An ok answer is compared with the reference, if
//	    there is one.
//	 5. At the end, outstanding requests get a grace time. Requests without an answer after
//	    it are unanswered.
//	 6. Every request that was meant to be sent is in the report once.
//
// Subpackages are arrival (when) and answer (is the answer right).
//
// Locks: a ledger's mu and the watch's mu are leaves. No callback is called with
// one held.
package loadgen

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/loadgen/answer"
	"github.com/penstock/penstock/loadgen/arrival"
)

// Spec describes a run.
type Spec struct {
	// Duration is the measured time. Warmup comes before it. The run sends and
	// checks the requests of the warm-up like others, but no other figure counts
	// them.
	Duration, Warmup time.Duration
	// Grace is how long a run waits at its end for outstanding requests. 0 means
	// replyGrace of the longest objective.
	Grace     time.Duration
	Functions []Function
	// Schedule changes rates. Its times count from the end of the warm-up.
	Schedule arrival.Schedule
	// Seed makes the arrivals reproducible.
	Seed uint64
}

// Function is one inference function's traffic.
type Function struct {
	Name string
	// Addr is the address of its UDP port, in the form that the Dialer expects.
	Addr string
	// KeyFile has the key of its clients; empty: they need none.
	KeyFile string
	// SLO is the latency objective, from the intended moment to the reply.
	SLO time.Duration
	// PerSecond is the rate of all streams together until the schedule changes it.
	// For a Video process, 0 means the cameras' own rate.
	PerSecond float64
	Arrivals  arrival.Process
	// Streams is how many clients send, each from its own socket. 0 means 1. For a
	// Video process it means as many as make up PerSecond.
	Streams int
	// Pictures are the payloads of requests, which are sent in turn. The run only reads them.
	Pictures [][]byte
	// Deadline and Priority go to the manager with each request. A zero value is
	// not sent.
	Deadline time.Duration
	Priority uint8
	// Tolerance is how far an answer may differ from the reference; the zero value
	// means answer.Default.
	Tolerance answer.Tolerance
}

// Reference computes the right answers: it runs the same model in this process.
// One goroutine uses it.
type Reference interface {
	// Answer returns the function's answer to a picture, which the caller keeps.
	// It returns ErrNoReference if it does not know the function.
	Answer(function string, picture []byte) (answer.Answer, error)
}

// ErrNoReference is returned by a Reference for a function that is not checked.
var ErrNoReference = errors.New("no reference for this function")

// Sender sends requests from one socket.
type Sender interface {
	// Send takes a request and returns without waiting. It keeps the picture until
	// the reply is delivered, which may be before Send returns. An error means
	// that the request will not be sent and that nothing is delivered for it.
	// intended is the time at which the request was meant to leave, on the run's
	// Clock. Only one goroutine calls Send.
	Send(picture []byte, intended int64, tag uint64) error
	// Close closes the socket and ends outstanding requests with an error. Nothing
	// is delivered after Close has returned.
	Close() error
}

// Dialer opens the socket of one stream. Ends of requests are delivered from any goroutine,
// possibly several at once, and once per tag. A result is valid until its delivery returns. Its Received is of
// the run's Clock. It has Err if the sender gave the request up; Sent then tells whether a byte had left. With
// client.ErrLate the request could no longer be answered in time.
type Dialer func(ctx context.Context, f Function, stream int, deliver func(*client.Result)) (Sender, error)

// Options connect a run to its surroundings: sockets, clock, reference, manager,
// display.
type Options struct {
	Dial Dialer
	// Clock is SystemClock if nil.
	Clock Clock
	// Reference checks the answers; nil checks none.
	Reference Reference
	// Status asks the manager. If nil, shares, swaps and losses are unknown.
	Status func(ctx context.Context) (control.Status, error)
	// Observe, if not nil, is called every ObserveEvery from its own goroutine,
	// and once at the end. The callee owns the snapshot.
	Observe func(Snapshot)
}

// ObserveEvery is how often Observe is called: a line that changes four times per
// second can still be read. statusEvery is how often the run asks the manager.
const (
	ObserveEvery = 250 * time.Millisecond
	statusEvery  = 500 * time.Millisecond
)

// replyGrace is how long a run waits at its end for outstanding requests: two
// seconds, or four times the objective if that is more.
func replyGrace(slo time.Duration) time.Duration { return max(2*time.Second, 4*slo) }

// interruptedGrace is the rest of the grace time after an interrupt.
const interruptedGrace = time.Second

// complete returns the spec with its defaults filled in, or an error if the spec
// is invalid.
func (s Spec) complete() (Spec, error) {
	switch {
	case s.Duration <= 0:
		return s, fmt.Errorf("duration of %v, want more than 0", s.Duration)
	case s.Warmup < 0 || s.Grace < 0:
		return s, fmt.Errorf("warm-up of %v and grace time of %v, want 0 or more", s.Warmup, s.Grace)
	case len(s.Functions) == 0:
		return s, errors.New("no function to send to")
	}
	s.Functions = append([]Function(nil), s.Functions...)
	names := make(map[string]bool, len(s.Functions))
	var known []string
	for i := range s.Functions {
		f := &s.Functions[i]
		if names[f.Name] {
			return s, fmt.Errorf("function %q is listed twice", f.Name)
		}
		names[f.Name] = true
		known = append(known, f.Name)
		if err := f.complete(); err != nil {
			return s, fmt.Errorf("function %q: %w", f.Name, err)
		}
	}
	if s.Grace == 0 {
		for _, f := range s.Functions {
			s.Grace = max(s.Grace, replyGrace(f.SLO))
		}
	}
	return s, s.Schedule.CheckFunctions(known)
}

func (f *Function) complete() error {
	switch {
	case f.Deadline < 0:
		return fmt.Errorf("deadline of %v, want 0 or more", f.Deadline)
	case f.SLO <= 0:
		return fmt.Errorf("objective of %v, want more than 0", f.SLO)
	case !(f.PerSecond >= 0) || math.IsInf(f.PerSecond, 1):
		return fmt.Errorf("rate of %v requests per second, want 0 or more", f.PerSecond)
	case f.Streams < 0:
		return fmt.Errorf("%d streams", f.Streams)
	case len(f.Pictures) == 0:
		return errors.New("no pictures")
	}
	if f.Arrivals.Shape == arrival.Video {
		if !(f.Arrivals.FramesPerSecond > 0) {
			return fmt.Errorf("camera of %v frames per second, want more than 0", f.Arrivals.FramesPerSecond)
		}
		if f.Streams == 0 {
			f.Streams = int(math.Ceil(f.PerSecond / f.Arrivals.FramesPerSecond))
		}
		if f.PerSecond == 0 {
			f.PerSecond = float64(max(f.Streams, 1)) * f.Arrivals.FramesPerSecond
		}
	}
	f.Streams = max(f.Streams, 1)
	if f.Tolerance == (answer.Tolerance{}) {
		f.Tolerance = answer.Default
	}
	return nil
}
