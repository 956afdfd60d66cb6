package stream

import (
	"context"
	"errors"
	"fmt"
	"image"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/gateway/functions"
)

// Inferrer sends photos to the functions of a node. Any goroutine may call it.
type Inferrer interface {
	// Infer waits for a function's answer. The items are in the photo's pixels. The errors are
	// those of functions.Set.Function and functions.Function.InferPhoto.
	Infer(ctx context.Context, function string, photo image.Image) (functions.Answer, []functions.Item, error)
	// LargestPicture is functions.Function.LargestPicture; 0 for an unknown function.
	LargestPicture(function string) int
}

// Node is the Inferrer of a node. A function that is replaced is found again for each photo.
type Node struct{ Functions *functions.Set }

// Infer implements Inferrer.
func (n Node) Infer(ctx context.Context, function string, photo image.Image) (functions.Answer, []functions.Item, error) {
	f, err := n.Functions.Function(function)
	if err != nil {
		return functions.Answer{}, nil, err
	}
	a, found, err := f.InferPhoto(ctx, photo, functions.Wanted{})
	return a, f.Items(a, found), err
}

// LargestPicture implements Inferrer.
func (n Node) LargestPicture(function string) int {
	if f, err := n.Functions.Function(function); err == nil {
		return f.LargestPicture
	}
	return 0
}

// Options say what Run does with a source.
type Options struct {
	// Name is the stream's, in each Result.
	Name  string
	Input Input
	// To are the names of the functions, each once.
	To   []string
	Node Inferrer
	// Monitor counts; it may be nil.
	Monitor *Monitor
	// Observe gets each answer. Shown gets a frame when its answers were observed: once per
	// answer if the source is live, else once per frame. Both may be nil. They are called one at
	// a time, and may keep nothing of a frame. An error ends Run.
	Observe func(Result) error
	Shown   func(Frame, *Decoder) error
}

// The statuses of results that are not those of package wire.
const (
	StatusLost    = "lost"    // no answer came
	StatusUnknown = "unknown" // the node has no such function
	StatusError   = "error"
)

// Result is the answer of a function to a frame.
type Result struct {
	Stream, Function string
	Frame            Frame
	// Age is the time from the frame's end of decoding until the answer.
	Age time.Duration
	// Status is a client.Status as text, or one of this package's. Err is why it is not ok.
	Status string
	Err    error
	Answer functions.Answer
	// Items are in the frame's pixels.
	Items []functions.Item
	// Skipped is the number of frames that were not sent to the function since its last answer.
	Skipped uint64
}

// StatusOf returns the status of an answer with that error.
func StatusOf(err error) string {
	var answered client.StatusError
	switch {
	case err == nil:
		return client.StatusOK.String()
	case errors.As(err, &answered):
		return client.Status(answered).String()
	case errors.Is(err, client.ErrLate):
		return client.StatusLate.String()
	case errors.Is(err, client.ErrUnsent), errors.Is(err, client.ErrQueueFull):
		return client.StatusBusy.String()
	case errors.Is(err, client.ErrUnanswered), errors.Is(err, client.ErrUnreachable), errors.Is(err, client.ErrClosed):
		return StatusLost
	case errors.Is(err, functions.ErrUnknown):
		return StatusUnknown
	}
	return StatusError
}

// flight is a frame that lanes use. The last one to release it gives its picture back.
type flight struct {
	Frame
	users    atomic.Int32
	answered sync.WaitGroup // done when each lane has its answer
}

// run is one call of Run.
type run struct {
	Options
	decoder *Decoder
	lanes   []*lane

	observing sync.Mutex // one observer at a time
	fail      context.CancelCauseFunc
}

// lane is the way to one function.
type lane struct {
	function string
	frames   chan *flight // to its goroutine, at most one

	mu      sync.Mutex // guards below
	policy  Newest[*flight]
	skipped uint64
}

// Run sends the frames of a source to the functions until the source or parent ends. The error is
// nil then; it is of the source, or of Observe and Shown.
func Run(parent context.Context, o Options) error {
	for _, function := range o.To {
		o.Input.Largest = max(o.Input.Largest, o.Node.LargestPicture(function))
	}
	decoder, err := Open(o.Input)
	if err != nil {
		return err
	}
	defer decoder.Close()
	ctx, fail := context.WithCancelCause(parent)
	defer fail(nil)
	defer context.AfterFunc(ctx, decoder.Close)()
	if o.Monitor == nil {
		o.Monitor = NewMonitor(o.To)
	}

	r := &run{Options: o, decoder: decoder, fail: fail}
	var lanes sync.WaitGroup
	for _, function := range o.To {
		l := &lane{function: function, frames: make(chan *flight, 1)}
		r.lanes = append(r.lanes, l)
		lanes.Go(func() { r.serve(ctx, l) })
	}
	err = r.pump(ctx)
	for _, l := range r.lanes {
		close(l.frames)
	}
	lanes.Wait()
	switch {
	case parent.Err() != nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return err
}

// pump offers each frame to all lanes, until the source ends.
func (r *run) pump(ctx context.Context) error {
	for ctx.Err() == nil {
		frame, err := r.decoder.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read %s: %w", r.Input.Address, err)
		}
		f := &flight{Frame: frame}
		f.users.Store(int32(len(r.lanes)) + 1)
		f.answered.Add(len(r.lanes))
		for _, l := range r.lanes {
			if dropped := l.offer(f); dropped != nil {
				r.release(dropped)
			}
		}
		r.Monitor.frame()
		if !r.Input.Live {
			f.answered.Wait()
			r.show(f)
		}
		r.release(f)
	}
	return nil
}

func (r *run) release(f *flight) {
	if f.users.Add(-1) == 0 {
		r.decoder.Recycle(f.Image)
	}
}

// offer gives a frame to a lane. It returns the frame that the lane skips for it, if it does.
func (l *lane) offer(f *flight) (dropped *flight) {
	l.mu.Lock()
	defer l.mu.Unlock()
	send, dropped, drop := l.policy.Offer(f)
	if send {
		l.frames <- f // has room: no other frame is in flight
	}
	if drop {
		l.skipped++
	}
	return dropped
}

// done ends a flight. It returns the next one, if a frame waits.
func (l *lane) done() *flight {
	l.mu.Lock()
	defer l.mu.Unlock()
	next, _ := l.policy.Done()
	return next
}

func (l *lane) takeSkipped() (n uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n, l.skipped = l.skipped, 0
	return n
}

// serve sends the frames of a lane.
func (r *run) serve(ctx context.Context, l *lane) {
	for f := range l.frames {
		for f != nil {
			r.infer(ctx, l, f)
			next := l.done()
			f.answered.Done()
			r.release(f)
			f = next
		}
	}
}

// infer sends a frame and reports the answer.
func (r *run) infer(ctx context.Context, l *lane, f *flight) {
	if ctx.Err() != nil {
		return
	}
	answer, items, err := r.Node.Infer(ctx, l.function, f.Image)
	if ctx.Err() != nil {
		return
	}
	result := Result{
		Stream: r.Name, Function: l.function, Frame: f.Frame, Age: time.Since(f.Read),
		Status: StatusOf(err), Err: err, Answer: answer, Items: items, Skipped: l.takeSkipped(),
	}
	r.Monitor.answer(result)
	if r.Observe != nil {
		r.observing.Lock()
		err := r.Observe(result)
		r.observing.Unlock()
		if err != nil {
			r.fail(err)
			return
		}
	}
	if r.Input.Live {
		r.show(f)
	}
}

func (r *run) show(f *flight) {
	if r.Shown == nil {
		return
	}
	r.observing.Lock()
	defer r.observing.Unlock()
	if err := r.Shown(f.Frame, r.decoder); err != nil {
		r.fail(err)
	}
}
