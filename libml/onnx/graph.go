//go:build cgo

package onnx

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/penstock/penstock/cuda"
)

// A batch runs as a CUDA graph:
//
//	1 capture      has ONNX Runtime queue the batch into a graph; nothing runs
//	2 examine      refuses graphs that cannot be launched again, redirects host copies
//	3 instantiate  makes an executable on the slot's multiprocessors
//	4 uploadGraph  uploads it, so that the first launch is as fast as the others
//
// Active: on every GPU, for all batch sizes that can be captured; bynode.go runs the others.
// There is no setting.
//
// A slot's stream may belong to a green context. Then the executable's kernels run in that
// context (cuda.Graph.Retarget). A move to other multiprocessors needs neither a session nor
// a warm-up. cuDNN chose its kernels for the whole device, so the answers are the same bit
// for bit on any number of multiprocessors.

// errNoGraph is returned by capture if a graph cannot do what the model does, or cannot do it
// twice.
var errNoGraph = errors.New("model cannot be captured as a graph")

// capturing is held for writing during a capture. It is held for reading while a session is made,
// run outside of a capture, or closed: ONNX Runtime may then wait for the whole device. CUDA refuses
// that during a capture in the same process (error 900), and the capture fails too. The members of
// a worker link at the same time.
var capturing sync.RWMutex

// captured is the graph of a batch over certain buffers.
type captured struct {
	inputs  []place
	outputs []place
	graph   *cuda.Graph // nil if instantiate used it up
	// ephemeral is the scratch memory that the graph uses, in bytes.
	ephemeral int64
	// exclusive graphs write to memory outside their lane and their buffers.
	exclusive bool
	// hosts is the memory that the graph and its executables copy from.
	hosts *hosts
}

// close releases the graph and its use of pinned memory. The graph must not be in flight.
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

// instantiate makes an executable that runs in the stream's context. It copies the graph. It
// uses up a graph that the driver cannot copy, as one that allocates memory.
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

// capturedFor reports whether the graph was captured over these buffers.
func (c *captured) capturedFor(ins, outs []place) bool {
	same := func(a, b place) bool { return a.span() == b.span() }
	return slices.EqualFunc(c.inputs, ins, same) && slices.EqualFunc(c.outputs, outs, same)
}

// uploadGraph prepares a batch over these buffers to be launched on the slot's stream.
func (g *gpu) uploadGraph(slot int, s *size, ins, outs []place) (*launch, error) {
	stream := cuda.StreamOf(g.env.Stream(slot))
	before, after, err := s.hostStates(laneOf(slot), ins, outs)
	if err != nil {
		return nil, err
	}
	l, exclusive, err := s.prepare(laneOf(slot), stream, ins, outs)
	if err != nil {
		return nil, err
	}
	l.before, l.after = before, after
	if err := l.executable.Upload(stream); err != nil {
		return nil, errors.Join(err, l.close(g.context))
	}
	if exclusive {
		g.mu.Lock()
		g.order.exclusive = true
		g.mu.Unlock()
	}
	return l, nil
}

// prepare makes an executable of a batch over these buffers, and reports whether it is
// exclusive.
func (s *size) prepare(lane int, stream cuda.Stream, ins, outs []place) (l *launch, exclusive bool, err error) {
	err = s.thread.do(func() error {
		c, err := s.captureOver(lane, ins, outs)
		if err != nil {
			return err
		}
		x, err := c.instantiate(stream)
		if err != nil {
			return err
		}
		l, exclusive = &launch{executable: x, hosts: c.hosts.keep(), ephemeral: c.ephemeral}, c.exclusive
		return nil
	})
	return l, exclusive, err
}

// captureOver returns the lane's graph, if it is over these buffers, or captures one in its
// place.
func (s *size) captureOver(lane int, ins, outs []place) (*captured, error) {
	if c := s.captured[lane]; c != nil && c.graph != nil && c.capturedFor(ins, outs) {
		return c, nil
	}
	if err := s.forget(lane); err != nil {
		return nil, err
	}
	c, err := s.capture(s.g.graphScratch(lane), ins, outs)
	if err != nil {
		return nil, err
	}
	s.captured[lane] = c
	return c, nil
}

// forget releases the lane's graph.
func (s *size) forget(lane int) error {
	c := s.captured[lane]
	s.captured[lane] = nil
	if c == nil {
		return nil
	}
	return c.close(s.g.context)
}

// capture has ONNX Runtime queue the batch into a graph. Nothing runs.
func (s *size) capture(scratch *pool, ins, outs []place) (_ *captured, err error) {
	if hasRows(outs) {
		return nil, fmt.Errorf("%w: the number of rows of its outputs depends on the picture", errNoGraph)
	}
	b, err := s.bind(ins, outs)
	if err != nil {
		return nil, err
	}
	defer b.close()
	graph, state, err := s.captureRun(b, scratch)
	defer func() {
		if err != nil && graph != nil {
			err = errors.Join(err, graph.Destroy())
		}
	}()
	if err != nil {
		return nil, err
	}

	c := &captured{inputs: ins, outputs: outs, graph: graph, ephemeral: state.peak, hosts: &hosts{users: 1}}
	if err := s.examine(c, state.all); err != nil {
		return nil, errors.Join(err, c.hosts.release(s.g.context)) // the deferred call destroys the graph
	}
	return c, nil
}

// captureRun captures a run of the batch. The state is that of the scratch memory after it. The graph
// is nil if none was made.
func (s *size) captureRun(b binding, scratch *pool) (graph *cuda.Graph, state poolState, err error) {
	capturing.Lock()
	defer capturing.Unlock()
	scratch.resetPeak()
	if err := s.stream.CaptureRelaxed(); err != nil {
		return nil, state, err
	}
	ran := b.run(scratch)
	graph, ended := s.stream.EndCapture()
	state = scratch.readState()
	if err := poolRefusal(scratch, errors.Join(ran, ended)); err != nil {
		var reported *ortError
		if errors.Is(err, cuda.ErrOutOfMemory) || errors.Is(err, cuda.ErrLost) || errors.As(err, &reported) && reported.outOfMemory() {
			return graph, state, err
		}
		return graph, state, fmt.Errorf("%w: %w", errNoGraph, cmp.Or(ran, ended))
	}
	if l := s.g.joined; l != nil && l.pool == scratch {
		err = l.captured(s.g, state)
	}
	return graph, state, err
}

// examine returns errNoGraph if the graph would do something else at its second launch. It
// redirects the graph's copies from the host, and finds out whether the graph is exclusive.
func (s *size) examine(c *captured, scratch cuda.Range) error {
	holds, err := c.graph.Contents()
	if err != nil {
		return err
	}
	if holds.Others > 0 {
		return fmt.Errorf("%w: %d of its steps call the host, or cannot be repeated", errNoGraph, holds.Others)
	}

	writes := holds.Sets
	for _, copied := range holds.Copies {
		if copied.ToHost {
			return fmt.Errorf("%w: it copies %d bytes to the host", errNoGraph, copied.To.Bytes)
		}
		writes = append(writes, copied.To)
		if !copied.FromHost {
			continue
		}
		if err := c.hosts.redirect(c.graph, copied, s.g.context); err != nil {
			return err
		}
	}

	ranges := []cuda.Range{scratch}
	for _, p := range slices.Concat(c.inputs, c.outputs) {
		ranges = append(ranges, p.span())
	}
	c.exclusive = writesOutside(ranges, writes)
	return nil
}
