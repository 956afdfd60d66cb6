//go:build cgo

package onnx

import (
	"errors"

	"github.com/penstock/penstock/cuda"
)

// fallback runs batches node by node: ONNX Runtime queues each node of the model, as without
// graphs. It is slower: a ResNet-50 takes 0.82 ms instead of 0.51 at batch 1.
//
// Active: on every GPU, for batch sizes that cannot be captured (errNoGraph). In these a node
// runs on the CPU, waits for the device, or copies to the host or from unpinned memory. If
// the smallest size cannot be captured, no other is tried. If only a larger one cannot, it
// alone runs node by node. The log has a warning. There is no setting.
//
// A session runs on one stream, so each slot needs its own. If a slot's stream changes, its
// sessions are made again.
type fallback struct {
	sizes    map[int]bool // that run node by node
	sessions map[key]*size
}

func newFallback() fallback {
	return fallback{sizes: make(map[int]bool), sessions: make(map[key]*size)}
}

func (f *fallback) close() error {
	var errs []error
	for _, s := range f.sessions {
		errs = append(errs, s.close())
	}
	clear(f.sessions)
	clear(f.sizes)
	return errors.Join(errs...)
}

// linkByNode makes a size run node by node. It makes slot 0's session: those of the other
// slots are made when they are configured.
func (g *gpu) linkByNode(n int, why error) error {
	g.env.Log.Warn("cannot capture model as a graph; it runs node by node, which is slower", "error", why, "batch", n)
	g.byNode.sizes[n] = true
	_, err := g.byNodeSession(0, n)
	return err
}

// byNodeSession returns the session for batches of n on the slot's stream.
func (g *gpu) byNodeSession(slot, n int) (*size, error) {
	k := key{slot, n}
	if s := g.byNode.sessions[k]; s != nil {
		return s, nil
	}
	s, err := g.newTriedSize(n, cuda.StreamOf(g.env.Stream(slot)), prefersNHWC(g.env.Card))
	if err != nil {
		if s != nil {
			err = errors.Join(err, s.close())
		}
		return nil, err
	}
	g.byNode.sessions[k] = s
	return s, nil
}

// leaveStream closes the slot's sessions on an earlier stream. It closes those of all sizes
// at once: that stream still exists now, but not after the slot's next move.
func (g *gpu) leaveStream(slot int) error {
	stream := cuda.StreamOf(g.env.Stream(slot))
	for k, s := range g.byNode.sessions {
		if k.slot != slot || s.stream == stream {
			continue
		}
		delete(g.byNode.sessions, k)
		if err := errors.Join(g.releaseBatch(k), s.close()); err != nil {
			return err
		}
	}
	return nil
}

// bindByNode prepares a batch over these buffers.
func (g *gpu) bindByNode(slot, n int, ins, outs []place) (*launch, error) {
	s, err := g.byNodeSession(slot, n)
	if err != nil {
		return nil, err
	}
	before, after, err := s.hostStates(laneOf(slot), ins, outs)
	if err != nil {
		return nil, err
	}
	var b binding
	if err := s.thread.do(func() (err error) {
		b, err = s.bind(ins, outs)
		return err
	}); err != nil {
		return nil, err
	}
	return &launch{binding: b, scratch: g.scratch[laneOf(slot)], before: before, after: after}, nil
}

// runByNode queues the model's nodes on the session's stream.
func (l *launch) runByNode() error {
	if l.scratch.readState().refused != nil {
		// An earlier batch found no memory. Otherwise the peak stays: a capture may be
		// measuring it now.
		l.scratch.resetPeak()
	}
	capturing.RLock()
	defer capturing.RUnlock()
	return poolRefusal(l.scratch, l.binding.run(l.scratch))
}
