package parvagpu

import (
	"maps"
	"slices"

	"github.com/penstock/penstock/plan"
)

// deployment is the map of segments to GPUs (Table III): which lie where, and
// which still wait. GPUs are taken as they are needed and keep their numbers
// when they empty.
type deployment struct {
	gpu    plan.GPU
	starts map[int][]int // the slots that a size is put in, in order of preference
	gpus   []board
	// waiting are the queues of line 2, by size; each is first in, first out.
	waiting map[int][]want
	// open is, by size, the first GPU that may have room for it: those in front
	// have none.
	open map[int]int
}

// want is a segment without a place.
type want struct {
	service *service
	point   plan.Point
}

// placed is a segment with one.
type placed struct {
	want
	slot int
}

// board is one GPU: its segments, the slots that they cover and the sum of their
// sizes. Slots mean nothing on a GPU without MIG: they are given out in the end.
type board struct {
	taken  uint64
	gpcs   int
	memory float64
	placed []placed
}

// A GPU is split whose GPCs fall below threshold (section III-E2), of the seven
// of the paper's GPUs. The published code splits those of exactly four too, which
// saves no GPU on the six scenarios at 1 to 10 times their rates or services, and
// takes up to one GPC more.
const (
	threshold       = 4
	thresholdOfGPCs = 7
)

// preferred are the slots that each size is put in, in order (section III-E1).
// On GPUs of eight slots size 3 goes to slot 4 only, as slot 0 would cost slot
// 3; the paper's slot 5 for size 2 is no placement of NVML's, which leaves 0, 2
// and 4; other GPUs have their tables' order.
func preferred(g plan.GPU) map[int][]int {
	starts := map[int][]int{}
	for _, s := range g.Sizes {
		starts[s.GPCs] = s.Starts
	}
	if s, ok := g.Size(3); ok && s.MayStart(4) && !g.Percent {
		starts[3] = []int{4}
	}
	return starts
}

func newMap(g plan.GPU) *deployment {
	return &deployment{gpu: g, starts: preferred(g), waiting: map[int][]want{}, open: map[int]int{}}
}

func (d *deployment) clone() *deployment {
	c := *d
	c.gpus = slices.Clone(d.gpus)
	for i := range c.gpus {
		c.gpus[i].placed = slices.Clone(c.gpus[i].placed)
	}
	c.waiting = map[int][]want{}
	c.open = maps.Clone(d.open)
	return &c
}

// enqueue puts n segments into the queue of their size.
func (d *deployment) enqueue(s *service, pt plan.Point, n int) {
	for range n {
		d.waiting[pt.GPCs] = append(d.waiting[pt.GPCs], want{s, pt})
	}
}

// allocate empties the queues, the largest size first: each segment goes to the
// first GPU that has room where the size is preferred.
func (d *deployment) allocate() {
	for _, size := range slices.Backward(d.gpu.Sizes) {
		queue := d.waiting[size.GPCs]
		delete(d.waiting, size.GPCs)
		for _, w := range queue {
			d.place(w, size)
		}
	}
}

// place puts a segment into the first GPU that has room, a new one at the last.
func (d *deployment) place(w want, size plan.Size) {
	for i := d.open[size.GPCs]; ; i++ {
		if i == len(d.gpus) {
			d.gpus = append(d.gpus, board{})
		}
		slot, ok := d.room(&d.gpus[i], size)
		if !ok && d.open[size.GPCs] == i {
			d.open[size.GPCs]++
		}
		if ok && d.fits(&d.gpus[i], w.point) {
			d.gpus[i].put(placed{w, slot}, size)
			return
		}
	}
}

// room finds a slot for a size, the preferred first. Without MIG any will do,
// and it gives 0.
func (d *deployment) room(b *board, size plan.Size) (slot int, ok bool) {
	if b.gpcs+size.GPCs > d.gpu.GPCs {
		return 0, false
	}
	if d.gpu.Percent {
		return 0, true
	}
	for _, slot := range d.starts[size.GPCs] {
		if b.taken&cover(size, slot) == 0 {
			return slot, true
		}
	}
	return 0, false
}

// fits says whether memory that all segments share, which they do without MIG,
// suffices for one more.
func (d *deployment) fits(b *board, pt plan.Point) bool {
	return !d.gpu.Percent || d.gpu.MemoryMiB == 0 || b.memory+pt.MemoryMiB <= float64(d.gpu.MemoryMiB)
}

func (b *board) put(p placed, size plan.Size) {
	b.taken |= cover(size, p.slot)
	b.gpcs += size.GPCs
	b.memory += p.point.MemoryMiB
	b.placed = append(b.placed, p)
}

// cover are the slots of a size from a slot on, as bits. Tables of MIG have at
// most eight; a size of a GPU without MIG may have more and then means nothing.
func cover(size plan.Size, slot int) uint64 { return (1<<size.Slots - 1) << slot }

// optimise is allocation optimisation: the segments of each GPU of few GPCs,
// from the last on, become small ones that go to the first gaps there are. What
// small segments carry beyond what was freed is reckoned with when the next of
// the same service are freed.
func (d *deployment) optimise() {
	owed := map[*service]float64{}
	for i := len(d.gpus) - 1; i >= 0; i-- {
		b := &d.gpus[i]
		if b.gpcs == 0 || b.gpcs*thresholdOfGPCs >= threshold*d.gpu.GPCs {
			continue
		}
		old := b.placed
		*b = board{}
		for _, p := range old {
			size, _ := d.gpu.Size(p.point.GPCs)
			segments, ok := p.service.small(d.gpu, owed[p.service]+p.point.ThroughputRPS)
			if !ok {
				b.put(p, size)
				continue
			}
			owed[p.service] += p.point.ThroughputRPS
			for _, pt := range segments {
				owed[p.service] -= pt.ThroughputRPS
				d.enqueue(p.service, pt, 1)
			}
		}
		for gpcs := range d.open {
			d.open[gpcs] = min(d.open[gpcs], i)
		}
		d.allocate()
	}
}

// inUse is the number of GPUs that have a segment.
func (d *deployment) inUse() int {
	n := 0
	for i := range d.gpus {
		if d.gpus[i].gpcs > 0 {
			n++
		}
	}
	return n
}

// segments are the map as a plan has it. Without MIG the segments of a GPU lie
// side by side in the order in which they were placed.
func (d *deployment) segments() []plan.Segment {
	var segments []plan.Segment
	for i, b := range d.gpus {
		next := 0
		for _, p := range b.placed {
			slot := p.slot
			if d.gpu.Percent {
				slot = next
				next += p.point.GPCs
			}
			segments = append(segments, plan.SegmentOf(i, d.gpu, slot, p.service.Service, p.point))
		}
	}
	return segments
}
