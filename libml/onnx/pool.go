//go:build cgo

package onnx

import (
	"errors"
	"slices"
	"sync"

	"github.com/penstock/penstock/cuda"
)

// pool is a range of the GPU's addresses, and some of them have memory. An allocation gets the
// lowest free addresses. Several threads may use a pool, each bound to the context.
//
// Captured graphs write to a scratch pool's free addresses. So nothing stays allocated in one, and
// ONNX Runtime allocates in one only while it runs a batch.
type pool struct {
	device  cuda.Device
	scratch bool
	blocks  []cuda.Range  // allocations, in ascending order
	chunks  []*cuda.Arena // memory, in ascending order
	poolState
}

// poolState is the state of a pool.
type poolState struct {
	all          cuda.Range // its addresses
	mapped, used int64      // bytes that have memory, and that are allocated
	peak         int64      // bytes up to the highest address in use since resetPeak
	refused      error      // the driver's error since resetPeak, if it had no more memory
}

const (
	grainBytes = 2 << 20   // unit of the driver's memory
	alignment  = 512       // of allocations, in bytes
	spanBytes  = 256 << 30 // addresses of a pool: more than a GPU has memory
)

// pools are all pools, the newest first.
var pools struct {
	mu   sync.Mutex // guards the pools' fields too
	list []*pool
}

func newPool(d cuda.Device) (*pool, error) { return makePool(d, false) }

// newScratchPool makes a pool whose free addresses graphs write to.
func newScratchPool(d cuda.Device) (*pool, error) { return makePool(d, true) }

func makePool(d cuda.Device, scratch bool) (*pool, error) {
	all, err := cuda.Reserve(spanBytes)
	if err != nil {
		return nil, err
	}
	p := &pool{device: d, scratch: scratch, poolState: poolState{all: all}}
	pools.mu.Lock()
	defer pools.mu.Unlock()
	pools.list = slices.Insert(pools.list, 0, p)
	return p, nil
}

// address is the pool's first address, 0 without a pool.
func (p *pool) address() cuda.Pointer {
	if p == nil {
		return 0
	}
	return p.all.At
}

// close releases the pool. No work that uses it may be in flight.
func (p *pool) close() error {
	if p == nil || p.all.At == 0 {
		return nil
	}
	pools.mu.Lock()
	defer pools.mu.Unlock()
	pools.list = slices.DeleteFunc(pools.list, func(other *pool) bool { return other == p })
	var errs []error
	for _, c := range p.chunks {
		errs = append(errs, c.Evict())
	}
	errs = append(errs, p.all.Unreserve())
	p.all = cuda.Range{}
	return errors.Join(errs...)
}

// trim releases memory without allocations in it, from an offset on.
func (p *pool) trim(from int64) {
	pools.mu.Lock()
	defer pools.mu.Unlock()
	p.chunks = slices.DeleteFunc(p.chunks, func(c *cuda.Arena) bool {
		all := cuda.Range{At: c.Pointer(), Bytes: c.Bytes()}
		if all.At < p.all.At+cuda.Pointer(from) || slices.ContainsFunc(p.blocks, all.Overlaps) {
			return false
		}
		p.mapped -= int64(all.Bytes)
		_ = c.Evict() // it fails on a lost device
		return true
	})
}

// resetPeak resets peak and refused.
func (p *pool) resetPeak() {
	pools.mu.Lock()
	defer pools.mu.Unlock()
	p.refused, p.peak = nil, 0
	if n := len(p.blocks); n > 0 {
		p.peak = int64(p.blocks[n-1].End() - p.all.At)
	}
}

func (p *pool) readState() poolState {
	pools.mu.Lock()
	defer pools.mu.Unlock()
	return p.poolState
}

// allocateFor allocates memory for ONNX Runtime, in the pool at an address. Work without a pool gets memory that no
// graph writes to.
func allocateFor(address cuda.Pointer, bytes int) cuda.Pointer {
	pools.mu.Lock()
	defer pools.mu.Unlock()
	i := slices.IndexFunc(pools.list, func(p *pool) bool { return p.all.At == address || address == 0 && !p.scratch })
	if i < 0 {
		return 0
	}
	return pools.list[i].allocateLocked(bytes)
}

// allocate returns memory, 512-byte aligned. It returns 0 if the pool has no addresses or no
// memory for it; the pool's state then has refused.
func (p *pool) allocate(bytes int) cuda.Pointer {
	pools.mu.Lock()
	defer pools.mu.Unlock()
	return p.allocateLocked(bytes)
}

func (p *pool) allocateLocked(bytes int) cuda.Pointer {
	if bytes <= 0 || bytes > spanBytes {
		return 0
	}
	block := cuda.Range{At: p.all.At, Bytes: (bytes + alignment - 1) / alignment * alignment}
	i := 0
	for i < len(p.blocks) && p.blocks[i].At < block.End() {
		block.At = p.blocks[i].End()
		i++
	}
	// After a refusal the caller discards its work. Take no more memory for it.
	if p.refused == nil {
		p.refused = p.fill(block)
	}
	if p.refused != nil {
		return 0
	}

	p.blocks = slices.Insert(p.blocks, i, block)
	p.used += int64(block.Bytes)
	p.peak = max(p.peak, int64(block.End()-p.all.At))
	return block.At
}

// fill takes memory from the driver for the parts of r that have none.
func (p *pool) fill(r cuda.Range) error {
	if !p.all.Holds(r) {
		return &cuda.Error{Op: "cuMemCreate", Code: cuda.OutOfMemory}
	}
	at := r.At - (r.At-p.all.At)%grainBytes
	end := r.End() + (p.all.At-r.End())%grainBytes
	for i := 0; at < end; i++ {
		next := end
		if i < len(p.chunks) {
			next = min(end, p.chunks[i].Pointer())
		}
		if at < next {
			c, err := p.device.ArenaAt(cuda.Range{At: at, Bytes: int(next - at)})
			if err != nil {
				return err
			}
			p.chunks = slices.Insert(p.chunks, i, c)
			p.mapped += int64(c.Bytes())
		}
		at = max(at, p.chunks[i].Pointer()+cuda.Pointer(p.chunks[i].Bytes()))
	}
	return nil
}

// release releases memory that any pool allocated.
func release(at cuda.Pointer) {
	pools.mu.Lock()
	defer pools.mu.Unlock()
	for _, p := range pools.list {
		if i := slices.IndexFunc(p.blocks, func(b cuda.Range) bool { return b.At == at }); i >= 0 {
			p.used -= int64(p.blocks[i].Bytes)
			p.blocks = slices.Delete(p.blocks, i, i+1)
			return
		}
	}
}
