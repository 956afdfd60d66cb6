package serve

import (
	"time"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/libml/conductor"
	"github.com/penstock/penstock/libml/framework"
	"github.com/penstock/penstock/libml/internal/loop"
	"github.com/penstock/penstock/libml/lane"
	"github.com/penstock/penstock/shm"
)

// The member's side of residency: its thread loads and evicts the model when the conductor orders
// it. A framework that is Evictable keeps what is not weights. Any other leaves by Deinit and
// returns as a new Framework, by the callbacks up to ConfigureBatch.

// joinConductor gives the member a place in a lane and in the conductor. Without measurements of an
// earlier process it waits for the order to load the model for the first time. It returns errStopped if
// gone was closed before.
func (p *process) joinConductor(gone <-chan struct{}) (err error) {
	ordering := make(chan struct{}, 1)
	wake := func() {
		select {
		case ordering <- struct{}{}:
		default:
		}
		p.interrupt()
	}
	fileBytes := p.loaded.bytes
	need := p.need(fileBytes, fileBytes, 0)
	loading := time.Duration(float64(fileBytes) / loadRate * float64(time.Second))
	m := p.measured
	if m != nil {
		need, loading = p.need(m.PersistentBytes, m.WeightsBytes, m.EphemeralBytes), time.Duration(m.LoadNanos)
	}
	if p.place, err = p.worker.Join(need, p.interrupt); err != nil {
		return err
	}
	p.residence = p.worker.Conductor.Join(shm.Now(), conductor.Newcomer{
		Name: p.start.IF, WeightsBytes: need.WeightsBytes, Load: loading, Exact: p.onGPU(), Wake: wake,
		// On a GPU the first load makes sessions and graphs, so no request should wait for it.
		LoadOnce: m == nil || p.onGPU(),
	})
	if m != nil {
		return nil
	}
	for {
		if _, ok := p.residence.Observe(shm.Now(), conductor.Work{}); ok {
			return nil
		}
		select {
		case <-ordering:
		case <-gone:
			return errStopped
		}
	}
}

// loadRate is a guess of how many bytes of a model's file per second are loaded, until a load was measured.
const loadRate = 100e6

// settle corrects the memory that the member needs, after a warm-up. From now on only requests keep the
// model in memory.
func (p *process) settle(smallest time.Duration, warm control.Notice) error {
	if p.linked {
		if err := p.worker.Resize(p.place, p.need(warm.PersistentBytes, p.weightsBytes(warm.PersistentBytes), warm.EphemeralBytes)); err != nil {
			return err
		}
	}
	p.residence.Serve(shm.Now(), smallest)
	return nil
}

// need is what the member takes of its worker's memory. On a CPU the limit is for models alone: tensors
// are shared with the manager, and ONNX Runtime's arena is that of all members.
func (p *process) need(persistentBytes, weightsBytes, batchBytes int64) lane.Model {
	m := lane.Model{FixedBytes: max(0, persistentBytes-weightsBytes), WeightsBytes: weightsBytes}
	if p.onGPU() {
		m.FixedBytes += p.tensorBytes
		m.ScratchBytes = batchBytes
	}
	return m
}

// interrupt wakes the loop.
func (p *process) interrupt() {
	if ring := p.exit.ring.Load(); ring != nil {
		ring.Interrupt()
	}
}

// evictable returns the framework if it can evict its weights and keep the rest, else nil.
func (p *process) evictable() framework.Evictable {
	if e, ok := p.framework.(framework.Evictable); ok && p.linked && e.EvictableBytes() > 0 {
		return e
	}
	return nil
}

// weightsBytes returns the part of the model's persistent memory that an eviction frees.
func (p *process) weightsBytes(persistent int64) int64 {
	if e := p.evictable(); e != nil {
		return e.EvictableBytes()
	}
	return persistent
}

// copyRate is a guess of how many bytes per second are copied to a GPU, until a load was measured: those of PCIe 4.0
// with 16 lanes. With a lower one the first loads of large models would look too late for their requests.
const copyRate = 25e9

// loadTime returns how long a load of that many bytes is expected to take. The last one may have linked the
// model as well.
func (p *process) loadTime(weightsBytes int64, last time.Duration) time.Duration {
	if p.evictable() != nil {
		return time.Duration(float64(weightsBytes) / copyRate * float64(time.Second))
	}
	return last
}

// reload brings an evicted model back. If it had to link the model again, it returns the bytes that the
// model holds, else 0.
func (p *process) reload() (persistentBytes int64, err error) {
	if e := p.evictable(); e != nil {
		return 0, e.Load()
	}
	if err := p.checkModelFile(); err != nil {
		return 0, err
	}
	if p.framework == nil {
		if p.framework, err = p.build(p.card); err != nil {
			return 0, err
		}
	}
	if err = p.load(); err != nil {
		return 0, err
	}
	if persistentBytes, err = p.linkModel(); err != nil {
		return 0, err
	}
	for slot := range p.memory.inFlight {
		if _, err := p.configureSlot(slot); err != nil {
			return 0, err
		}
	}
	return persistentBytes, nil
}

// evict takes the model out of memory.
func (p *process) evict() error {
	if e := p.evictable(); e != nil {
		err := e.Evict()
		if err == nil || loop.IsLost(err) {
			return err
		}
		p.log.Warn("cannot evict model; ending its framework instead", "error", err)
	}
	p.drop()
	return nil
}

// drop ends the framework, if there is one, and frees the weights that it used.
func (p *process) drop() {
	if p.framework != nil {
		if err := p.framework.Deinit(); err != nil {
			p.log.Warn("deinit", "error", err)
		}
		p.framework, p.linked = nil, false
	}
	if p.weights != nil {
		if err := p.weights.Close(); err != nil {
			p.log.Warn("unmap weights", "error", err)
		}
		p.weights = nil
	}
}

// LoadModel carries out the order to load, for the loop.
func (p *process) LoadModel() error {
	began := shm.Now()
	persistent, err := p.reload()
	now := shm.Now()
	took := time.Duration(now - began)
	weights := int64(0)
	if err == nil && persistent > 0 {
		weights = p.weightsBytes(persistent)
		took = p.loadTime(weights, took)
		if p.onGPU() { // the weights may be private now, or shared again
			err = p.worker.Resize(p.place, p.need(persistent, weights, p.place.Needs().ScratchBytes))
		}
	}
	switch {
	case loop.IsLost(err):
		return err
	case err != nil:
		p.drop()
		p.residence.Failed(now, err)
		p.log.Error("cannot load model; its requests fail", "error", err)
		p.notices.keepReason(err.Error(), control.Notice{})
		return nil
	}
	p.residence.Loaded(now, weights, took)
	p.notices.clearReason()
	return nil
}

// EvictModel carries out the order to evict, for the loop.
func (p *process) EvictModel() error {
	if err := p.evict(); err != nil {
		return err
	}
	p.residence.Evicted(shm.Now())
	return nil
}

// demotable asks the present framework of a process.
type demotable struct{ p *process }

func (d demotable) Demotable(slot, n int) bool {
	f, ok := d.p.framework.(framework.Demotable)
	return ok && f.Demotable(slot, n)
}
