//go:build cgo

package onnx

import (
	"errors"
	"fmt"
	"runtime"
	"slices"

	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/models"
)

// size is a session that runs batches of one size, with its own thread, stream and weights.
//
// A session keeps only one cuDNN plan per convolution. At another batch size it makes
// another plan, and unloads the kernels that were compiled for the first. A captured graph
// still launches those. Measured: MobileNetV2 then reads illegal addresses, and another
// model's answers are wrong without an error. So each batch size has a session.
//
// The cost: each size has its own copy of the weights, unless they are shared (share.go). The
// gain: sizes are linked in parallel, and the smallest can serve while the others are linked.
//
// Active: on every GPU, for every model. There is no setting. A card with one batch size has
// one session. A size that runs node by node has one session per slot (bynode.go).
type size struct {
	g          *gpu
	n          int
	nhwc       bool
	thread     *thread
	stream     cuda.Stream
	ownsStream bool // close destroys the stream
	weights    *pool
	session    session
	constants  []place               // tensors of Card.Constants, in weights
	states     [lanes][]cuda.Pointer // of hostStates, in weights
	// captured has the last graph of each lane. A lane is two slots that are never in flight
	// together, and therefore share scratch memory (lane.go).
	captured [lanes]*captured
	kept     []*pool // pools that the session keeps memory in
}

// newSize makes a session on a stream, or on a new one if stream is zero.
func (g *gpu) newSize(n int, stream cuda.Stream, nhwc bool) (_ *size, err error) {
	s := &size{g: g, n: n, nhwc: nhwc, stream: stream}
	defer func() {
		// Release nothing on a lost device: that may wait for ever.
		if err != nil && !errors.Is(err, cuda.ErrLost) {
			err = errors.Join(err, s.close())
		}
	}()
	if s.thread, err = newThread(g.context); err != nil {
		return nil, err
	}
	return s, s.thread.do(s.open)
}

// open makes the weights' pool, the stream and the session. It runs on the session's thread.
func (s *size) open() (err error) {
	capturing.RLock()
	defer capturing.RUnlock()
	if s.weights, err = newPool(s.g.context.Device()); err != nil {
		return err
	}
	if s.stream == (cuda.Stream{}) {
		if s.stream, err = s.g.context.NewStream(); err != nil {
			return err
		}
		s.ownsStream = true
	}

	model, with, err := s.g.sessionModel(s.stream, s.nhwc)
	if err != nil {
		return err
	}
	made, err := s.g.backend.session(model, with, s.weights)
	if err == nil {
		s.session = made
	}
	if err = s.g.markOutOfMemory(poolRefusal(s.weights, err)); err != nil {
		return fmt.Errorf("make session for batches of %d: %w", s.n, err)
	}
	if err := s.fillConstants(); err != nil {
		return err
	}
	s.weights.trim(0)
	return nil
}

// fillConstants makes the tensors of the card's constants.
func (s *size) fillConstants() error {
	card := s.g.env.Card
	if len(card.Constants) == 0 {
		return nil
	}
	inputs, err := declaredInputs(card)
	if err != nil {
		return err
	}
	for _, t := range inputs {
		values, constant := card.Constants[t.Name]
		if !constant {
			continue
		}
		shape, data, err := models.Fill(t, values, s.n)
		if err != nil {
			return err
		}
		at := s.weights.allocate(len(data))
		if err = poolRefusal(s.weights, nil); err == nil {
			err = errors.Join(s.stream.Copy(at, cuda.At(data), len(data)), s.stream.Synchronize())
			runtime.KeepAlive(data)
		}
		if err != nil {
			return fmt.Errorf("fill constant %q: %w", t.Name, err)
		}
		s.constants = append(s.constants, place{t.Name, at, len(data), shape, models.DType(t.Type), nil})
	}
	return nil
}

// bind binds the session to a batch's tensors and to the constants.
func (s *size) bind(ins, outs []place) (binding, error) {
	return s.session.bind(slices.Concat(ins, s.constants), outs)
}

// newTriedSize makes a session and runs it once, with a check of its answer (try). If it
// fails, it may return a size too, which the caller closes.
func (g *gpu) newTriedSize(n int, stream cuda.Stream, nhwc bool) (*size, error) {
	s, err := g.newSize(n, stream, nhwc)
	if err == nil {
		err = s.try()
	}
	return s, err
}

// try runs the batch node by node over private memory, and checks the answer. In this first
// run cuDNN makes its plans, and loads or compiles its kernels. ONNX Runtime does its
// one-time work, such as filling a vector of ones for a bias. If the first run were a
// capture, only its graph would contain that work, and later graphs would lack it.
func (s *size) try() error {
	return s.withPrivateTensors(func(memory *pool, ins, outs []place) error {
		b, err := s.bind(ins, outs)
		if err != nil {
			return err
		}
		defer b.close()
		return s.checkAnswer(ins, outs, func() error {
			capturing.RLock()
			defer capturing.RUnlock()
			return s.g.markOutOfMemory(poolRefusal(memory, b.run(memory)))
		})
	})
}

// tryGraph captures the batch and checks the graph's answer. It returns errNoGraph if the
// batch cannot be captured.
func (s *size) tryGraph() error {
	return s.withPrivateTensors(func(memory *pool, ins, outs []place) (err error) {
		c, err := s.capture(memory, ins, outs)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, c.close(s.g.context)) }()
		x, err := c.graph.Instantiate()
		if err != nil {
			return err
		}
		defer x.Destroy()
		return s.checkAnswer(ins, outs, func() error { return x.Launch(s.stream) })
	})
}

// withPrivateTensors calls f on the session's thread, with private tensors and scratch memory: batches
// in flight may be using the lanes' pools.
func (s *size) withPrivateTensors(f func(memory *pool, ins, outs []place) error) error {
	return s.thread.do(func() error {
		memory, err := newPool(s.g.context.Device())
		if err != nil {
			return err
		}
		ins, outs, err := s.tensors(memory)
		if err == nil {
			err = f(memory, ins, outs)
		}
		for _, p := range slices.Concat(ins, outs) {
			release(p.at)
		}
		if err != nil {
			err = fmt.Errorf("batch of %d: %w", s.n, err)
		}
		if memory.readState().used == 0 {
			return errors.Join(err, memory.close())
		}
		memory.trim(0)
		s.kept = append(s.kept, memory) // ONNX Runtime keeps some of it
		return err
	})
}

// tensors allocates the batch's tensors.
func (s *size) tensors(memory *pool) (ins, outs []place, err error) {
	card := s.g.env.Card
	at := func(tensors []models.Tensor) []place {
		var buffers []device.Buffer
		for i := range tensors {
			bytes := s.n * tensors[i].Bytes()
			buffers = append(buffers, device.DeviceBuffer(uintptr(memory.allocate(bytes)), bytes))
		}
		return places(tensors, s.n, buffers)
	}
	return at(card.InputTensors()), at(card.OutputTensors()), poolRefusal(memory, nil)
}

// close releases session, graphs, weights, stream and thread. No executable of its graphs may
// be in flight.
func (s *size) close() error {
	if s.thread == nil {
		return nil
	}
	err := s.thread.do(func() error {
		capturing.RLock()
		defer capturing.RUnlock()
		var errs []error
		for lane := range s.captured {
			errs = append(errs, s.forget(lane))
		}
		if s.session != nil {
			s.session.close()
			s.session = nil
		} else if s.stream != (cuda.Stream{}) {
			errs = append(errs, s.stream.Synchronize()) // a session that failed may have queued work
		}
		for _, p := range append(s.kept, s.weights) {
			errs = append(errs, p.close())
		}
		s.kept = nil
		if s.ownsStream {
			errs = append(errs, s.stream.Destroy())
			s.ownsStream = false
		}
		return errors.Join(errs...)
	})
	s.thread.end()
	s.thread = nil
	return err
}
