package parvagpu

import (
	"maps"
	"slices"

	"github.com/penstock/penstock/plan"
)

// deployment maps segments to GPUs (Table III). It also holds the segments that
// still wait. Allocation adds GPUs when it needs them. A GPU keeps its number
// when it becomes empty.
type deployment struct {
	gpu    plan.GPU
	starts map[int][]int // the slots that a size is put in, in order of preference
	gpus   []board
	// waiting are the queues of line 2, by size; each is first in, first out.
	waiting map[int][]want
	// open is, by size, the first GPU that may have room for it: the GPUs before
	// it have none.
	open map[int]int
}

// want is a segment that waits for a place.
type want struct {
	service *service
	point   plan.Point
}

// placed is a segment with its slot.
type placed struct {
	want
	slot int
}

// board is one GPU: its segments, a bit mask of their slots and the sum of their
// sizes. Without MIG, slots mean nothing until segments assigns them at the end.
type board struct {
	taken  uint64
	gpcs   int
	memory float64
	placed []placed
}

// Allocation optimisation splits a GPU that uses fewer than threshold of its GPCs
// (section III-E2), scaled from the seven GPCs of the paper's GPUs. The published
// code also splits GPUs with exactly four. That saves no GPU on the six scenarios
// at 1 to 10 times their rates or services, and takes up to one GPC more.
const (
	threshold       = 4
	thresholdOfGPCs = 7
)

// preferred returns the slots for each size in order of preference (section
// III-E1). On GPUs of eight slots:
//
//   - Size 3 uses only slot 4, because slot 0 would cost slot 3.
//   - Size 2 uses slots 0, 2 and 4. The paper also names slot 5, which is no
//     placement of NVML.
//
// Other GPUs use the order of their placement tables.
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

// allocate empties the queues, the largest size first. Each segment goes to the
// first GPU that has room for its size; there, preferred slots come first.
func (d *deployment) allocate() {
	for _, size := range slices.Backward(d.gpu.Sizes) {
		queue := d.waiting[size.GPCs]
		delete(d.waiting, size.GPCs)
		for _, w := range queue {
			d.place(w, size)
		}
	}
}

// place puts a segment into the first GPU that has room, or into a new one.
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

// room finds a slot for a size, in order of preference. Without MIG any GPU with
// enough left will do, and slot is 0.
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

// fits reports whether the memory suffices for one more segment. Without MIG all
// segments of a GPU share its memory.
func (d *deployment) fits(b *board, pt plan.Point) bool {
	return !d.gpu.Percent || d.gpu.MemoryMiB == 0 || b.memory+pt.MemoryMiB <= float64(d.gpu.MemoryMiB)
}

func (b *board) put(p placed, size plan.Size) {
	b.taken |= cover(size, p.slot)
	b.gpcs += size.GPCs
	b.memory += p.point.MemoryMiB
	b.placed = append(b.placed, p)
}

// cover returns the slots of a size from slot on, as bits. MIG tables have at
// most eight slots. Without MIG a size may have more, and then the result means
// nothing.
func cover(size plan.Size, slot int) uint64 { return (1<<size.Slots - 1) << slot }

// optimise is allocation optimisation. From the last GPU on, it replaces the
// segments of each GPU with few used GPCs by small ones, which go to the first
// gaps. Small segments may carry more than the segments that they replace. The
// surplus reduces what the next freed segments of the same service need.
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

// inUse is the number of GPUs that have segments.
func (d *deployment) inUse() int {
	n := 0
	for i := range d.gpus {
		if d.gpus[i].gpcs > 0 {
			n++
		}
	}
	return n
}

// segments returns the deployment in the form of a plan. Without MIG the segments
// of a GPU lie side by side in the order of their placement.
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
