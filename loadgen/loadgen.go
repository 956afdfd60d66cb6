// Package loadgen sends pictures to inference functions as the world would, and
// says how they were answered.
//
//		Spec ─┬─ function: 1 arrivals ──when──> 2 scheduler ──picture, tag──> Sender ──UDP──> manager
//		      │                                      │ 3 opens an entry                          │
//		      │            histograms, counts <── 4 ledger <────────────reply, tag───────────────┘
//		      └─ …                                   │ 5 the rest is unanswered after the grace time
//		                                         6 Report
//
//	 1. Package arrival says, without a clock, when each request is meant to leave
//	    and by which stream.
//	 2. A scheduler goroutine a function sleeps until then and hands the picture to
//	    the stream's Sender. It never waits for an answer (open loop): a slow
//	    system is not spared by a client that holds back.
//	 3. The ledger notes the intended moment, under a tag that comes back with the
//	    reply.
//	 4. Latency is counted from the intended moment to the reply's arrival, so a
//	    request that left late because the system (or this program) stalled is
//	    not counted as quick ("coordinated omission", G. Tene). An ok answer is
//	    compared with the reference, where there is one.
//	 5. At the end outstanding requests have a grace time; what is still without an
//	    answer is unanswered.
//	 6. Every request that was meant to be sent is in the report once.
//
// Subpackages are arrival (when), picture (what), answer (is it right) and status
// (what the manager says). FindMaxRate searches over whole runs.
//
// Locks: a ledger's mu and the watch's mu are leaves; no callback is called with
// one held.
package loadgen

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/loadgen/answer"
	"github.com/penstock/penstock/loadgen/arrival"
	"github.com/penstock/penstock/wire"
)

// Spec is a run, wished for.
type Spec struct {
	// Duration is the measured time. Warmup comes before it: its requests are
	// sent and checked like others, and counted in nothing else.
	Duration, Warmup time.Duration
	// Grace is how long outstanding requests are waited for at the end; 0 means
	// what the longest objective asks for, see the function Grace.
	Grace     time.Duration
	Functions []Function
	// Schedule changes rates. Its times count from the end of the warm-up.
	Schedule arrival.Schedule
	// Seed makes arrivals the same again.
	Seed uint64
}

// Function is one inference function's traffic.
type Function struct {
	Name string
	// Addr is where its UDP port is, as the Dialer wants it.
	Addr string
	// SLO is the latency objective, from the intended moment to the reply.
	SLO time.Duration
	// PerSecond is the rate of all streams together, until the schedule changes
	// it; for a Video process 0 means the cameras' own rate.
	PerSecond float64
	Arrivals  arrival.Process
	// Streams is how many clients send, each from its own socket; 0 means 1, and
	// for a Video process as many as make up PerSecond.
	Streams int
	// Pictures are sent in turn.
	Pictures Pictures
	// Deadline and Priority are told to the manager with each request; the zero
	// values tell nothing.
	Deadline time.Duration
	Priority uint8
	// PaceBytes is how many bytes a second a stream sends at most; 0 is no limit.
	PaceBytes int64
	// Tolerance is how far an answer may lie from the reference; the zero value
	// means answer.Default.
	Tolerance answer.Tolerance
}

// Pictures are requests' payloads. Any goroutine may use them; nobody changes
// the bytes.
type Pictures interface {
	// Len is how many there are, at least 1.
	Len() int
	// Picture returns picture i, 0 <= i < Len, and its class, negative where that
	// is not known.
	Picture(i int) (bytes []byte, label int)
}

// Reference answers as the inference function should: the same model, run in
// process. One goroutine uses it.
type Reference interface {
	// Answer returns the function's answer to a picture, which the caller keeps,
	// or ErrNoReference where it does not know the function.
	Answer(function string, picture []byte) (answer.Answer, error)
}

// ErrNoReference is returned by a Reference for a function that is not checked.
var ErrNoReference = errors.New("no reference for this function")

// Sender sends requests from one socket.
type Sender interface {
	// Send takes a request and returns without waiting for anything. It keeps the
	// picture until the reply is delivered, which may be before Send returns. An
	// error says that the request will not be sent, and nothing is delivered for
	// it. intended is the moment that it was meant to leave, on the run's Clock.
	// Only one goroutine calls it.
	Send(picture []byte, intended int64, tag uint64) error
	// Close ends the socket, and outstanding requests with an error; nothing is
	// delivered after it returned.
	Close() error
}

// Reply is how a request ended.
type Reply struct {
	Tag uint64
	// Result and Payload are what came; the payload is valid until the delivery
	// returns.
	Result  wire.Result
	Payload []byte
	// Arrived is when the reply's last datagram was read, in nanoseconds of the
	// run's Clock.
	Arrived int64
	// Err is set when the sender gave the request up without a reply; Unsent that
	// it did so before a byte had left. Dropped says that the request could not be
	// answered in time any more and was never sent. Nothing else but the tag is set then.
	Err             error
	Unsent, Dropped bool
}

// Dialer opens the socket of one stream. Replies are delivered from any
// goroutine, also several at once, each tag once.
type Dialer func(ctx context.Context, f Function, stream int, deliver func(Reply)) (Sender, error)

// Options are what a run needs of the world.
type Options struct {
	// Dial opens streams.
	Dial Dialer
	// Clock is SystemClock when nil.
	Clock Clock
	// Reference checks the answers; nil checks none.
	Reference Reference
	// Status asks the manager; nil leaves shares, swaps and losses unknown.
	Status func(ctx context.Context) (control.Status, error)
	// Observe is called ObserveEvery from a goroutine of its own, and once at the
	// end; nil for nobody. The snapshot is the callee's.
	Observe func(Snapshot)
	// Tell is told at once, in a line, when a function or the manager's status page stops
	// answering and when it answers again, from the goroutine that calls Observe; nil
	// for nobody.
	Tell func(line string)
}

// ObserveEvery is how often a run is observed: a line that changes four times a
// second can still be read. statusEvery is how often the manager is asked
// meanwhile.
const (
	ObserveEvery = 250 * time.Millisecond
	statusEvery  = 500 * time.Millisecond
)

// replyGrace is what outstanding requests get at the end of a run: two seconds, or
// four times the objective where that is more.
func replyGrace(slo time.Duration) time.Duration { return max(2*time.Second, 4*slo) }

// interruptedGrace is what is left of the grace time when a person interrupts.
const interruptedGrace = time.Second

// complete returns the spec with its defaults filled in, or what is wrong.
func (s Spec) complete() (Spec, error) {
	switch {
	case s.Duration <= 0:
		return s, fmt.Errorf("a run of %v", s.Duration)
	case s.Warmup < 0 || s.Grace < 0:
		return s, fmt.Errorf("a warm-up of %v, a grace time of %v", s.Warmup, s.Grace)
	case len(s.Functions) == 0:
		return s, errors.New("no function to send to")
	}
	s.Functions = append([]Function(nil), s.Functions...)
	names := make(map[string]bool, len(s.Functions))
	var known []string
	for i := range s.Functions {
		f := &s.Functions[i]
		if names[f.Name] {
			return s, fmt.Errorf("function %q is there twice", f.Name)
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
	case f.Deadline < 0 || f.PaceBytes < 0:
		return fmt.Errorf("a deadline of %v, a pace of %d bytes a second", f.Deadline, f.PaceBytes)
	case f.SLO <= 0:
		return fmt.Errorf("an objective of %v", f.SLO)
	case !(f.PerSecond >= 0) || math.IsInf(f.PerSecond, 1):
		return fmt.Errorf("a rate of %v requests a second", f.PerSecond)
	case f.Streams < 0:
		return fmt.Errorf("%d streams", f.Streams)
	case f.Pictures == nil || f.Pictures.Len() == 0:
		return errors.New("no pictures")
	}
	if f.Arrivals.Shape == arrival.Video {
		if !(f.Arrivals.FramesPerSecond > 0) {
			return fmt.Errorf("a camera of %v frames a second", f.Arrivals.FramesPerSecond)
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
