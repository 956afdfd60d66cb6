package profile

import (
	"cmp"
	"slices"
	"time"
)

// kneeFraction is the part of a batch's best throughput that the knee must reach.
//
// GSLICE 2.1.3 calls the share a knee "after" which "performance improvement reaches a
// point of diminishing returns": beyond it, more is "only a marginal improvement". It
// gives no formula. It gives three knees at batch 1 (30 % AlexNet, about 60 %
// ResNet-50, 70 % VGG-19, read off curves), and says that knees increase with the
// batch. The rule here is
//
//	knee(batch) = the min share that has at least kneeFraction of the best
//	              throughput at that batch, one process
//
// so that all the rest of the device gains less than 1/0.85 - 1 = 18 %. The fraction
// follows from the measurements that the paper's authors published (V100, CNTK and
// TensorRT). Of the steps of 0.05, 0.80 and 0.85 come nearest to the three knees on
// these, and 0.85 gives up less throughput. Under CNTK it gives 40, 40 and 70 %, and
// the knees of larger batches are higher.
//
// We tried two known rules on the same data; the test next to this file has the
// figures. Kneedle (Satopää et al. 2011) takes the point where the curve is furthest
// above its chord. It gives 40 % for every model at batch 1. It gives 50 % for VGG-19
// at batch 32, whose curve is nearly straight: the other half gains 56 % more there,
// which is not little. The largest throughput²/share (1 % more share gains less than
// 0.5 % more throughput) gives 30, 20 and 80 %.
const kneeFraction = 0.85

// Knees returns the knee of each batch, ascending by batch, from its points with
// the fewest processes. It omits batches that were measured at only one share, and
// batches that never ran.
func Knees(points []Point) []Knee {
	best := make(map[int][]Point) // by batch: the curve over the shares
	for _, p := range points {
		if p.OOM {
			continue
		}
		curve := best[p.Batch]
		if len(curve) > 0 && p.Processes > curve[0].Processes {
			continue
		}
		if len(curve) > 0 && p.Processes < curve[0].Processes {
			curve = nil
		}
		best[p.Batch] = append(curve, p)
	}
	var knees []Knee
	for batch, curve := range best {
		if len(curve) > 1 {
			knees = append(knees, Knee{Batch: batch, Share: kneeOf(curve)})
		}
	}
	slices.SortFunc(knees, func(a, b Knee) int { return cmp.Compare(a.Batch, b.Batch) })
	return knees
}

// kneeOf returns the knee of a curve, which is not empty.
func kneeOf(curve []Point) int {
	curve = slices.SortedFunc(slices.Values(curve), Point.Compare)
	top := slices.MaxFunc(curve, func(a, b Point) int { return cmp.Compare(a.Total(), b.Total()) }).Total()
	i := slices.IndexFunc(curve, func(p Point) bool { return p.Total() >= kneeFraction*top })
	return curve[i].Share
}

// LatencyBound returns the time that a batch must stay below if its requests have an
// objective, in the objective's unit. Half of the objective is for waiting (ParvaGPU
// IV-A). The paper's published code uses 90 % of the other half. Plans use this bound,
// too.
func LatencyBound(objective float64) float64 { return objective / 2 * 0.9 }

// KneeFor selects the knee that a function starts with. It is that of the largest
// batch whose time at its knee is below the objective's LatencyBound, or of the
// smallest batch if none is. ok is false if there are no knees.
func (p *Profile) KneeFor(objective time.Duration) (knee Knee, ok bool) {
	knees := Knees(p.Points)
	for i, k := range knees {
		if i == 0 || float64(p.timeAt(k)) < LatencyBound(float64(objective)) {
			knee = k
		}
	}
	return knee, len(knees) > 0
}

// timeAt returns a batch's time at its knee, with the fewest processes.
func (p *Profile) timeAt(k Knee) time.Duration {
	for _, q := range p.Points { // ascending: the fewest processes come first
		if q.Share == k.Share && q.Batch == k.Batch {
			return q.Latency
		}
	}
	return 0
}

// Percent returns a share in percent of the whole device.
func (h *Header) Percent(share int) float64 {
	if h.Unit == Percent || h.Total == 0 {
		return float64(share)
	}
	return 100 * float64(share) / float64(h.Total)
}
