//go:build cgo

package onnx

import (
	"errors"
	"fmt"
	"slices"

	"github.com/penstock/penstock/cuda"
)

// errNoGraph is what capture returns where the model does something that a graph
// cannot do, or not twice.
var errNoGraph = errors.New("model cannot be captured as a graph")

// size is a session that runs batches of one size, on a thread and with a stream and
// weights of its own.
type size struct {
	g       *gpu
	n       int
	nhwc    bool
	thread  *thread
	stream  cuda.Stream
	ours    bool // the stream is
	weights *pool
	session session
	// captured by lane.
	captured [lanes]*captured
	kept     []*pool // that the session keeps something in
}

// captured is a batch over certain buffers as a graph.
type captured struct {
	input   place
	outputs []place
	graph   *cuda.Graph // nil where it cannot be copied
	// ephemeral is how many bytes of the lane's pool it uses.
	ephemeral int64
	// apart: it writes to memory that is neither its lane's nor its outputs.
	apart bool
	// hosts is what the graph, and every executable of it, copies from.
	hosts *hosts
}

// close gives the graph back, and its part in the pinned memory; nothing of it is in flight.
func (c *captured) close(in *cuda.Context) error {
	var errs []error
	if c.graph != nil {
		errs = append(errs, c.graph.Destroy())
		c.graph = nil
	}
	errs = append(errs, c.hosts.release(in))
	c.hosts = nil
	return errors.Join(errs...)
}

// instantiate makes an executable that runs where stream does. A graph that cannot be
// copied becomes the executable, and is one no more.
func (c *captured) instantiate(stream cuda.Stream) (*cuda.Executable, error) {
	x, err := c.graph.Retarget(stream)
	if !errors.Is(err, cuda.ErrNotSupported) {
		return x, err
	}
	graph := c.graph
	c.graph = nil
	if err := graph.Move(stream); err != nil {
		return nil, errors.Join(err, graph.Destroy())
	}
	if x, err = graph.Instantiate(); err != nil {
		return nil, errors.Join(err, graph.Destroy())
	}
	if err := graph.Destroy(); err != nil {
		return nil, errors.Join(err, x.Destroy())
	}
	return x, nil
}

// hosts is pinned memory that a graph copies from when it is launched. A graph that is
// given back leaves it to the executables that it was instantiated into: the last of
// them all frees it. One batch is configured at a time.
type hosts struct {
	pieces [][]byte
	users  int
}

// keep is h with another user.
func (h *hosts) keep() *hosts {
	h.users++
	return h
}

// release frees the memory with its last user. It does nothing to none.
func (h *hosts) release(in *cuda.Context) error {
	if h == nil {
		return nil
	}
	if h.users--; h.users != 0 {
		return nil
	}
	var errs []error
	for _, piece := range h.pieces {
		errs = append(errs, in.FreeHost(piece))
	}
	return errors.Join(errs...)
}

func (c *captured) over(in place, outs []place) bool {
	return c.input.span() == in.span() && slices.EqualFunc(c.outputs, outs, func(a, b place) bool { return a.span() == b.span() })
}

// newSize makes a session on a stream, or with none on a new one.
func (g *gpu) newSize(n int, stream cuda.Stream, nhwc bool) (_ *size, err error) {
	s := &size{g: g, n: n, nhwc: nhwc, stream: stream}
	defer func() {
		// On a device that is lost nothing is given back: that may wait for ever.
		if err != nil && !errors.Is(err, cuda.ErrLost) {
			err = errors.Join(err, s.close())
		}
	}()
	if s.thread, err = newThread(g.context); err != nil {
		return nil, err
	}
	return s, s.thread.do(func() (err error) {
		if s.weights, err = newPool(g.context.Device()); err != nil {
			return err
		}
		if stream == (cuda.Stream{}) {
			if s.stream, err = g.context.NewStream(); err != nil {
				return err
			}
			s.ours = true
		}
		model, with, err := g.modelFor(s.stream, nhwc)
		if err != nil {
			return err
		}
		made, err := g.backend.session(model, with, s.weights)
		if err == nil {
			s.session = made
		}
		if err = g.scarce(short(s.weights, err)); err != nil {
			return fmt.Errorf("make session for batches of %d: %w", n, err)
		}
		s.weights.trim()
		return nil
	})
}

// short is err, or that the pool had no memory: what ONNX Runtime says then, if
// anything, is of what came of it.
func short(p *pool, err error) error {
	if refused := p.look().refused; refused != nil {
		return refused
	}
	return err
}

// scarce is err, and that there is next to no memory, where that is so: cuDNN calls
// its own want of memory an internal error.
func (g *gpu) scarce(err error) error {
	var said *ortError
	if !errors.As(err, &said) || errors.Is(err, cuda.ErrOutOfMemory) {
		return err
	}
	// Handles of cuBLAS and cuDNN, their workspaces and code: what a session asks of
	// the driver beside our pools.
	const little = 256 << 20
	if free, _, asked := g.context.Memory(); asked == nil && free < little {
		return fmt.Errorf("%w, %d MiB are free: %w", cuda.ErrOutOfMemory, free>>20, err)
	}
	return err
}

// try runs the batch node by node over memory that is given back, and checks what it
// answers. It has cuDNN make its plans and load or compile its kernels, and ONNX
// Runtime do what it does once (a vector of ones that a bias is added with): queued
// into a capture that nobody launches, that would never be done.
func (s *size) try() error {
	return s.privately(func(memory *pool, in place, outs []place) error {
		b, err := s.session.bind(in, outs)
		if err != nil {
			return err
		}
		defer b.close()
		return s.g.reference.check(s.g.context, s.stream, in, outs, func() error { return s.g.scarce(short(memory, b.run(memory))) })
	})
}

// tryGraph captures the batch and checks what the graph answers. errNoGraph where it
// cannot be captured. Nothing of the process may wait for the whole device meanwhile.
func (s *size) tryGraph() error {
	return s.privately(func(memory *pool, in place, outs []place) (err error) {
		c, err := s.capture(memory, in, outs)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, c.close(s.g.context)) }()
		x, err := c.graph.Instantiate()
		if err != nil {
			return err
		}
		defer x.Destroy()
		return s.g.reference.check(s.g.context, s.stream, in, outs, func() error { return x.Launch(s.stream) })
	})
}

// privately does f, on the session's thread, over tensors and with memory of its own:
// the lanes' may be in use by batches in flight. The memory is given back.
func (s *size) privately(f func(memory *pool, in place, outs []place) error) error {
	return s.thread.do(func() (err error) {
		memory, err := newPool(s.g.context.Device())
		if err != nil {
			return err
		}
		err = s.over(memory, func(in place, outs []place) error { return f(memory, in, outs) })
		if memory.look().used == 0 {
			return errors.Join(err, memory.close())
		}
		memory.trim()
		s.kept = append(s.kept, memory) // ONNX Runtime keeps something there
		return err
	})
}

// over does f over tensors that are taken from memory, and given back.
func (s *size) over(memory *pool, f func(in place, outs []place) error) error {
	memory.mark()
	in, outs, err := s.tensors(memory)
	if err == nil {
		err = f(in, outs)
	}
	release(in.at)
	for _, o := range outs {
		release(o.at)
	}
	if err != nil {
		return fmt.Errorf("batch of %d: %w", s.n, err)
	}
	return nil
}

// tensors allocates the batch's.
func (s *size) tensors(memory *pool) (in place, outs []place, err error) {
	card := s.g.env.Card
	at := func(bytes int) []byte { return cuda.Bytes(memory.allocate(bytes), bytes) }
	input := at(s.n * card.Input.TensorBytes())
	var outputs [][]byte
	for i := range card.Outputs {
		outputs = append(outputs, at(s.n*card.Outputs[i].Bytes()))
	}
	// First why there is none: what is wrong with the tensors comes of it.
	if err := short(memory, nil); err != nil {
		return in, outs, err
	}
	return s.g.places(s.n, input, outputs)
}

// prepare makes a batch over these buffers ready to be launched on stream; apart as
// captured says.
func (s *size) prepare(lane int, stream cuda.Stream, in place, outs []place) (l *launch, apart bool, err error) {
	err = s.thread.do(func() error {
		c, err := s.capturedOver(lane, in, outs)
		if err != nil {
			return err
		}
		x, err := c.instantiate(stream)
		if err != nil {
			return err
		}
		l, apart = &launch{executable: x, hosts: c.hosts.keep(), ephemeral: c.ephemeral}, c.apart
		return nil
	})
	return l, apart, err
}

// capturedOver is the batch over these buffers as a graph: what the lane has, or a new
// one in its place.
func (s *size) capturedOver(lane int, in place, outs []place) (*captured, error) {
	if c := s.captured[lane]; c != nil && c.graph != nil && c.over(in, outs) {
		return c, nil
	}
	if err := s.forget(lane); err != nil {
		return nil, err
	}
	c, err := s.capture(s.g.scratch[lane], in, outs)
	if err != nil {
		return nil, err
	}
	s.captured[lane] = c
	return c, nil
}

// forget gives back what was captured for a lane.
func (s *size) forget(lane int) error {
	c := s.captured[lane]
	s.captured[lane] = nil
	if c == nil {
		return nil
	}
	return c.close(s.g.context)
}

// capture has ONNX Runtime queue the batch into a graph: nothing of it runs.
func (s *size) capture(scratch *pool, in place, outs []place) (_ *captured, err error) {
	b, err := s.session.bind(in, outs)
	if err != nil {
		return nil, err
	}
	defer b.close()
	scratch.mark()
	if err := s.stream.CaptureRelaxed(); err != nil {
		return nil, err
	}
	ran := b.run(scratch)
	graph, ended := s.stream.EndCapture()
	state := scratch.look()
	defer func() {
		if err != nil && graph != nil {
			err = errors.Join(err, graph.Destroy())
		}
	}()
	if err := short(scratch, errors.Join(ran, ended)); err != nil {
		var said *ortError
		if errors.Is(err, cuda.ErrOutOfMemory) || errors.Is(err, cuda.ErrLost) || errors.As(err, &said) && said.outOfMemory() {
			return nil, err
		}
		return nil, fmt.Errorf("%w: %w", errNoGraph, firstOf(ran, ended))
	}
	c := &captured{input: in, outputs: outs, graph: graph, ephemeral: state.peak, hosts: &hosts{users: 1}}
	if err := s.examine(c, state.all); err != nil {
		return nil, errors.Join(err, c.hosts.release(s.g.context)) // the graph goes above
	}
	return c, nil
}

func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// examine looks for what would make the graph do something else the second time, or
// beside another.
func (s *size) examine(c *captured, scratch cuda.Range) error {
	holds, err := c.graph.Contents()
	if err != nil {
		return err
	}
	if holds.Others > 0 {
		return fmt.Errorf("%w: %d of its steps call the host, or are none that can be repeated", errNoGraph, holds.Others)
	}
	writes := holds.Sets
	for _, copied := range holds.Copies {
		if copied.ToHost {
			return fmt.Errorf("%w: it copies %d bytes to the host on its way", errNoGraph, copied.To.Bytes)
		}
		writes = append(writes, copied.To)
		if !copied.FromHost {
			continue
		}
		// The host's side is ONNX Runtime's, and holds now what it will have to hold at
		// each launch.
		if !pinned(copied.From.At) {
			return fmt.Errorf("%w: it copies %d bytes from memory of the host that is not pinned", errNoGraph, copied.From.Bytes)
		}
		host, err := s.g.context.AllocateHost(copied.From.Bytes)
		if err != nil {
			return err
		}
		c.hosts.pieces = append(c.hosts.pieces, host)
		copyHost(cuda.At(host), copied.From.At, len(host))
		if err := c.graph.ReadFrom(copied, cuda.At(host)); err != nil {
			return err
		}
	}
	own := []cuda.Range{scratch, c.input.span()}
	for _, o := range c.outputs {
		own = append(own, o.span())
	}
	c.apart = slices.ContainsFunc(writes, func(w cuda.Range) bool {
		return !slices.ContainsFunc(own, func(r cuda.Range) bool { return r.Holds(w) })
	})
	return nil
}

// close gives session, weights, stream and thread back, and what was captured; what
// was instantiated of it is not in flight.
func (s *size) close() error {
	if s.thread == nil {
		return nil
	}
	err := s.thread.do(func() error {
		var errs []error
		for lane := range s.captured {
			errs = append(errs, s.forget(lane))
		}
		if s.session != nil {
			s.session.close()
			s.session = nil
		} else if s.stream != (cuda.Stream{}) {
			errs = append(errs, s.stream.Synchronize()) // what one that could not be made has queued
		}
		for _, p := range append(s.kept, s.weights) {
			errs = append(errs, p.close())
		}
		s.kept = nil
		if s.ours {
			errs = append(errs, s.stream.Destroy())
			s.ours = false
		}
		return errors.Join(errs...)
	})
	s.thread.end()
	s.thread = nil
	return err
}
