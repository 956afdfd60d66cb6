//go:build cgo

package onnx

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/penstock/penstock/cuda"
)

// Linking makes the sessions of batch sizes:
//
//	1 linkModel links the smallest size alone: clients may be waiting for it
//	2 the first configureBatch of another size links all others, in parallel
//	3 each size runs once, and its answer is checked
//	4 each size is captured, one after the other, and its answer is checked again
//	5 a size that cannot be captured in NHWC is linked in NCHW, then node by node
//
// It uses private memory, so batches of the smallest size can run meanwhile.

// attempt is a batch size that is being linked.
type attempt struct {
	n    int
	size *size // nil if it runs node by node
	err  error
	took time.Duration
}

// step runs one step of linking, and adds its time.
func (a *attempt) step(f func() (*size, error)) {
	began := time.Now()
	a.size, a.err = f()
	a.took += time.Since(began)
}

func (a *attempt) close() error {
	if a.size == nil {
		return nil
	}
	return a.size.close()
}

// linkSmallest links the card's smallest batch size. If that fails over shared weights, it
// tries private ones. The layout of the smallest size becomes that of all.
func (g *gpu) linkSmallest() error {
	n := g.env.Card.Batches[0]
	err := g.link([]int{n})
	if err != nil && len(g.shared.initializers) > 0 && !errors.Is(err, cuda.ErrLost) && !errors.Is(err, cuda.ErrOutOfMemory) {
		err = g.linkPrivately(n, err)
	}
	if s := g.sizes[n]; err == nil && s != nil {
		g.nhwc = s.nhwc
	}
	return err
}

// heldBytes returns the memory that the model holds until deinit: the weights of all sizes, and the
// libraries' memory. The other sizes are linked later. The device's free memory shows what the libraries
// took, but other processes change it too. So they count with at most maxLibraries.
//
// A worker that evicts compares the result with its limit. Its other members load, evict and capture
// meanwhile, so the free memory says nothing there. The libraries then count with sessionLibraries per size.
func (g *gpu) heldBytes(freeBefore int64) (int64, error) {
	free, _, err := g.context.Memory()
	if err != nil {
		return 0, err
	}

	batches := g.env.Card.Batches
	var weights int64
	if s := cmp.Or(g.sizes[batches[0]], g.byNode.sessions[key{0, batches[0]}]); s != nil {
		weights = s.weights.readState().mapped
	}
	// Handles of cuBLAS and cuDNN, and code: measured, 80 MB for a first session and some
	// 10 MB for another.
	const maxLibraries, sessionLibraries = 100 << 20, 10 << 20
	sessions := int64(len(batches))
	held := sessions * weights
	if g.node.Evict {
		held += sessions * sessionLibraries
	} else {
		held += min(max(0, freeBefore-free-weights), maxLibraries)
	}
	if g.shared.own != nil {
		held += g.shared.own.readState().mapped // one copy for all sizes
	}
	held += g.evictableBytes()
	return held, nil
}

// linkRest links the sizes that are not linked yet. n is one of them. linkRest returns an
// error only if n is not linked: the other sizes return theirs when they are configured.
func (g *gpu) linkRest(n int) error {
	card := g.env.Card
	if !slices.Contains(card.Batches, n) {
		return fmt.Errorf("the card has batches %v", card.Batches)
	}
	var rest []int
	for _, other := range card.Batches {
		if g.sizes[other] == nil && !g.byNode.sizes[other] {
			rest = append(rest, other)
		}
	}

	if g.byNode.sizes[card.Batches[0]] {
		for _, other := range rest {
			g.byNode.sizes[other] = true // configureBatch makes each session
		}
		return nil
	}

	err := g.link(rest)
	if g.sizes[n] != nil || g.byNode.sizes[n] {
		return nil
	}
	return err
}

// link links these sizes, in ascending order. It returns the error of the first size that
// fails. The sizes below are linked then, and those above are released.
func (g *gpu) link(batches []int) error {
	attempts := g.tryAll(batches)
	if i := slices.IndexFunc(attempts, func(a *attempt) bool { return errors.Is(a.err, cuda.ErrLost) }); i >= 0 {
		return attempts[i].err // release nothing: that may wait for ever
	}
	g.captureAll(attempts)

	var failed error
	for _, a := range attempts {
		if failed == nil && errors.Is(a.err, errNoGraph) {
			a.step(func() (*size, error) { return g.linkAnotherWay(a.size, a.n, a.err) })
		}
		switch {
		case errors.Is(a.err, cuda.ErrLost):
			return a.err
		case failed != nil:
			failed = errors.Join(failed, a.close())
		case a.err != nil:
			failed = errors.Join(g.explain(a.err), a.close())
		default:
			g.addSize(a)
		}
	}
	return failed
}

// tryAll makes a session per size and runs it once, in parallel on the framework's threads.
func (g *gpu) tryAll(batches []int) []*attempt {
	attempts := make([]*attempt, len(batches))
	free := make(chan struct{}, max(1, g.env.Threads))
	var wg sync.WaitGroup
	for i, n := range batches {
		a := &attempt{n: n}
		attempts[i] = a
		wg.Go(func() {
			free <- struct{}{}
			defer func() { <-free }()
			a.step(func() (*size, error) { return g.newTriedSize(n, cuda.Stream{}, g.nhwc) })
		})
	}
	wg.Wait()
	return attempts
}

// captureAll captures the sizes that were tried, one after the other. It starts after all
// tries, because a capture waits for them (capturing).
func (g *gpu) captureAll(attempts []*attempt) {
	for _, a := range attempts {
		if a.err == nil {
			a.step(func() (*size, error) { return a.size, a.size.tryGraph() })
		}
	}
}

// addSize makes a linked size ready to be configured.
func (g *gpu) addSize(a *attempt) {
	if a.size != nil {
		g.sizes[a.n] = a.size
	}
	g.env.Log.Debug("batch size linked", "batch", a.n, "graph", a.size != nil, "nhwc", a.size != nil && a.size.nhwc, "took", a.took)
}

// linkAnotherWay links a size that cannot be captured as s is: in NCHW if s is in NHWC, else
// node by node. It closes s. It returns no size if the size runs node by node. Meanwhile, no
// other size may be linked or captured.
func (g *gpu) linkAnotherWay(s *size, n int, why error) (*size, error) {
	nhwc := s.nhwc
	if err := s.close(); err != nil {
		return nil, err
	}
	if nhwc {
		s, why = g.linkInNCHW(n, why)
		if !errors.Is(why, errNoGraph) {
			return s, why
		}
		if err := s.close(); err != nil {
			return nil, err
		}
	}
	return nil, g.linkByNode(n, why)
}
