package libml

import (
	"slices"
	"time"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/control/budget"
)

// A warm-up measures a model: the times of its batches, and its memory. If a worker dies, all its
// members start again at once, and each would measure what the one before has measured:
//
//	member                        manager                    next member
//	1 warm-up
//	2 report measurements ──────> 3 keep them
//	                              4 attach ────────────────> 5 link without a warm-up
//
// A worker with limited memory needs the measurements only to plan. So its next member serves at once,
// and the conductor loads its model.

// remember keeps what the warm-up of a member has measured. loading is how long its load is expected to
// take.
func (p *process) remember(n *control.Notice, loading time.Duration) {
	m := &control.Measurements{
		PersistentBytes: n.PersistentBytes, EphemeralBytes: n.EphemeralBytes, WeightsBytes: p.weightsBytes(n.PersistentBytes),
		LoadNanos: int64(loading), ModelFile: p.loaded.stamp,
	}
	for _, w := range p.sizes.warm {
		m.Batches = append(m.Batches, control.BatchTime{Size: w.size, Nanos: int64(w.elapsed), AloneNanos: int64(w.alone)})
	}
	p.measured, p.checked = m, true
}

// isSameModel reports whether the measurements are of the file that this process loads.
func (p *process) isSameModel(m *control.Measurements) bool {
	return m != nil && p.worker != nil && m.ModelFile == p.loaded.stamp
}

// recall takes the measurements of an earlier process, if they are of this model and have what the process
// needs to serve.
func (p *process) recall(m *control.Measurements, wake control.Order) {
	if !p.isSameModel(m) || m.PersistentBytes < 0 || m.EphemeralBytes < 0 || m.WeightsBytes < 0 || m.LoadNanos < 0 {
		return
	}
	accounts := p.onGPU() && wake.Level != budget.Demoted
	var warm []warmUp
	for _, n := range p.firstSizes(wake) {
		i := slices.IndexFunc(m.Batches, func(b control.BatchTime) bool { return b.Size == n })
		if i < 0 || m.Batches[i].Nanos <= 0 || accounts && m.Batches[i].AloneNanos <= 0 {
			return
		}
		warm = append(warm, warmUp{n, time.Duration(m.Batches[i].Nanos), time.Duration(m.Batches[i].AloneNanos)})
	}
	p.measured, p.sizes.warm = m, warm
}
