//go:build cgo

package onnx

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/penstock/penstock/cuda"
)

// Lanes let two batches of a model run at once over one set of weights. A captured graph
// keeps its addresses, so two batches in flight need separate scratch memory. Slots 0 and 2
// use the pool of one lane, and slots 1 and 3 that of the other: libml never has both slots
// of a lane in flight. A second lane therefore costs the scratch memory of a batch, and no
// second session.
//
// Active: on every GPU, for every model, as graph and node by node. There is no setting.
//
// If a graph writes to memory outside its lane and its buffers, the lanes are not
// independent. Then each batch of the model waits for the one before it (order).
//
// In a worker, the models of a lane run one batch at a time together (Node.Lane). Their
// graphs use one pool. It has the size of the largest, and all graphs write to the same addresses.
// Batches that run node by node allocate while they run, so these models keep their own pools.

// lanes is how many batches can be in flight together.
const lanes = 2

// laneOf returns the lane of a slot.
func laneOf(slot int) int { return slot % lanes }

// openLanes makes the pools of the lanes. They take no memory yet.
func (g *gpu) openLanes() (err error) {
	if g.order.last, err = g.context.NewEvent(false); err != nil {
		return err
	}
	for i := range g.scratch {
		if g.scratch[i], err = newScratchPool(g.context.Device()); err != nil {
			return err
		}
	}
	if g.node.Lane != nil {
		g.joined, err = joinLane(g, g.node.Lane())
	}
	return err
}

// graphScratch returns the pool for the graphs of a lane.
func (g *gpu) graphScratch(lane int) *pool {
	if g.joined != nil {
		return g.joined.pool
	}
	return g.scratch[lane]
}

func (g *gpu) closeLanes() error {
	errs := []error{g.joined.leave(g)}
	g.joined = nil
	for i := range g.scratch {
		errs = append(errs, g.scratch[i].close())
		g.scratch[i] = nil
	}
	if g.order.last != (cuda.Event{}) {
		errs = append(errs, g.order.last.Destroy())
	}
	return errors.Join(errs...)
}

// lanePool is the scratch memory of a worker's lane.
type lanePool struct {
	lane int
	pool *pool // shrinks, and is used by graphs, only under the lock capturing
	// needs has the models of the lane, and the bytes that the largest graph of each needs.
	needs map[*gpu]int64
}

// lanePools has the pools of this process's lanes that have models. joining guards it and the pools' needs.
// It is taken after capturing, for which a model that joins would have to wait: others make sessions.
var (
	joining   sync.Mutex
	lanePools = make(map[int]*lanePool)
)

// joinLane returns the pool of a worker's lane. It has no memory before the first capture.
func joinLane(g *gpu, lane int) (*lanePool, error) {
	joining.Lock()
	defer joining.Unlock()
	l := lanePools[lane]
	if l == nil {
		p, err := newScratchPool(g.context.Device())
		if err != nil {
			return nil, err
		}
		l = &lanePool{lane, p, make(map[*gpu]int64)}
		lanePools[lane] = l
	}
	l.needs[g] = 0
	return l, nil
}

// leave removes a model whose graphs are closed. It releases the memory that only that model needed.
func (l *lanePool) leave(g *gpu) error {
	if l == nil {
		return nil
	}
	capturing.Lock()
	defer capturing.Unlock()
	joining.Lock()
	defer joining.Unlock()
	delete(l.needs, g)
	if len(l.needs) == 0 {
		delete(lanePools, l.lane)
		return l.pool.close()
	}
	l.pool.trim(slices.Max(slices.Collect(maps.Values(l.needs))))
	return nil
}

// captured records that a graph of the model was captured. It returns an error if ONNX Runtime has
// kept some of the memory: the graphs of other models would write there. The caller holds capturing.
func (l *lanePool) captured(g *gpu, s poolState) error {
	joining.Lock()
	defer joining.Unlock()
	l.needs[g] = max(l.needs[g], s.peak)
	if s.used > 0 {
		return fmt.Errorf("%w: %d bytes", errScratchKept, s.used)
	}
	return nil
}

// errScratchKept is returned by captured.
var errScratchKept = errors.New("ONNX Runtime keeps scratch memory that it took during a capture")

// order makes a model's batches run one after the other, on the device.
//
// Active: once a graph of the model was captured that writes outside its lane.
type order struct {
	exclusive bool
	last      cuda.Event  // records the end of the last batch
	stream    cuda.Stream // of the last batch
}

// launchInOrder queues the batch behind the one before it, of any slot. A batch within the
// function's guarantee may so wait for a demoted one.
func (g *gpu) launchInOrder(x *cuda.Executable, stream cuda.Stream) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.order.stream != stream {
		if err := stream.Wait(g.order.last); err != nil {
			return err
		}
	}
	if err := x.Launch(stream); err != nil {
		return err
	}
	g.order.stream = stream
	return g.order.last.Record(stream)
}

// writesOutside reports whether one of the writes is not within one of the ranges.
func writesOutside(ranges, writes []cuda.Range) bool {
	return slices.ContainsFunc(writes, func(w cuda.Range) bool {
		return !slices.ContainsFunc(ranges, func(r cuda.Range) bool { return r.Holds(w) })
	})
}
