package serve

import (
	"slices"
	"time"

	"github.com/penstock/penstock/control"
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
func (p *process) remember(n *control.Notice, weightsBytes int64, loading time.Duration, warm []warmUp) {
	p.measured = &control.Measurements{
		PersistentBytes: n.PersistentBytes, EphemeralBytes: n.EphemeralBytes, WeightsBytes: weightsBytes,
		LoadNanos: int64(loading), ModelFile: p.loaded.stamp,
	}
	for _, w := range warm {
		p.measured.Batches = append(p.measured.Batches, control.BatchTime{Size: w.size, Nanos: int64(w.elapsed), AloneNanos: int64(w.alone)})
	}
}

// recall takes the measurements of an earlier process, if they are of this model and have what the process
// needs to serve. It returns the times of the batch sizes, or nil. A process with an account needs the
// time of a batch alone.
func (p *process) recall(found *control.Measurements, sizes []int, account bool) (warm []warmUp) {
	if found == nil || p.worker == nil || found.ModelFile != p.loaded.stamp || found.PersistentBytes < 0 || found.EphemeralBytes < 0 || found.WeightsBytes < 0 || found.LoadNanos < 0 {
		return nil
	}
	for _, n := range sizes {
		i := slices.IndexFunc(found.Batches, func(b control.BatchTime) bool { return b.Size == n })
		if i < 0 && p.card.AutoBatches && len(warm) > 0 && !p.warmsUpPartly() {
			p.card.Batches = sizes[:len(warm)] // as that process (cutSizes)
			break
		}
		if i < 0 || found.Batches[i].Nanos <= 0 || account && found.Batches[i].AloneNanos <= 0 {
			return nil
		}
		warm = append(warm, warmUp{n, time.Duration(found.Batches[i].Nanos), time.Duration(found.Batches[i].AloneNanos)})
	}
	p.measured = found
	return warm
}
