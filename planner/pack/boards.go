package pack

import (
	"cmp"
	"math"
	"slices"

	"github.com/penstock/penstock/plan"
)

// pack lays a choice out on GPUs. lack is how many more GPUs of each kind it needs than there are.
func (t *task) pack(r *relaxation, c choice) (segments []plan.Segment, gpus int, lack []int) {
	lack = make([]int, len(t.kinds))
	for m := range t.kinds {
		k := &t.kinds[m]
		var list []parcel
		for s, at := range c.options {
			for i, n := range r.options[s][at].mix {
				if o := &t.services[s].offers[i]; o.kind == m {
					for range n {
						list = append(list, parcel{&t.problem.Services[s], o})
					}
				}
			}
		}
		lay := k.partition
		if k.GPU.Percent {
			lay = k.share
		}
		boards := lay(list, ceil(k.use(c.loads)))
		if k.Count >= 0 {
			lack[m] = max(0, len(boards)-k.Count)
		}
		for _, b := range boards {
			for _, p := range b.holds {
				segments = append(segments, plan.SegmentOf(gpus, k.GPU, p.slot, *p.service, p.offer.point))
			}
			gpus++
		}
	}
	return segments, gpus, lack
}

// parcel is a segment without a place.
type parcel struct {
	service *plan.Service
	offer   *offer
}

// placed is a segment on a board.
type placed struct {
	parcel
	slot int
}

// board is one GPU. Without MIG, only sums count.
type board struct {
	holds          []placed
	taken          uint64 // slots
	steps, clients int
	memory         float64
}

// partition lays segments out on GPUs with MIG: so many, and more if that is not enough. The largest
// come first, and each takes the last place that a GPU has for its size. In slot 0, size 3 wastes a
// GPC; it therefore lies there only if slot 4 is taken on all GPUs.
func (k *kind) partition(list []parcel, gpus int) []board {
	boards := make([]board, gpus)
	for _, size := range slices.Backward(k.GPU.Sizes) {
		var left []parcel
		for _, p := range list {
			if p.offer.point.GPCs == size.GPCs {
				left = append(left, p)
			}
		}
		from := 0
		for len(left) > 0 {
			for _, start := range slices.Backward(size.Starts) {
				mask := (uint64(1)<<size.Slots - 1) << start
				for i := from; i < len(boards) && len(left) > 0; i++ {
					if b := &boards[i]; b.taken&mask == 0 {
						b.taken |= mask
						last := len(left) - 1
						b.holds = append(b.holds, placed{left[last], start})
						left = left[:last]
					}
				}
			}
			if len(left) > 0 {
				from = len(boards)
				boards = append(boards, board{})
			}
		}
	}
	return slices.DeleteFunc(boards, func(b board) bool { return len(b.holds) == 0 })
}

// share lays segments out on GPUs without MIG: the one that takes most in any respect first, each on
// the GPU that it leaves least of (best fit decreasing).
func (k *kind) share(list []parcel, _ int) (boards []board) {
	slices.SortStableFunc(list, func(a, b parcel) int {
		am, as := k.parts(a.offer.point)
		bm, bs := k.parts(b.offer.point)
		return cmp.Or(cmp.Compare(bm, am), cmp.Compare(bs, as))
	})
	for _, p := range list {
		pt := p.offer.point
		at, least := -1, math.Inf(1)
		for i := range boards {
			b := &boards[i]
			steps, clients := k.GPU.GPCs-b.steps-pt.GPCs, k.GPU.Clients-b.clients-pt.Processes
			memory := float64(k.GPU.MemoryMiB) - b.memory - pt.MemoryMiB
			if steps < 0 || k.GPU.Clients > 0 && clients < 0 || k.GPU.MemoryMiB > 0 && memory < 0 {
				continue
			}
			left := float64(steps) / float64(k.GPU.GPCs)
			if k.GPU.MemoryMiB > 0 {
				left += memory / float64(k.GPU.MemoryMiB)
			}
			if left < least {
				at, least = i, left
			}
		}
		if at < 0 {
			at = len(boards)
			boards = append(boards, board{})
		}
		b := &boards[at]
		b.holds = append(b.holds, placed{p, b.steps})
		b.steps, b.memory, b.clients = b.steps+pt.GPCs, b.memory+pt.MemoryMiB, b.clients+pt.Processes
	}
	return boards
}

// parts returns the largest part of a GPU's steps, memory and clients that a point takes, and the sum
// of the three.
func (k *kind) parts(pt plan.Point) (most, sum float64) {
	steps, clients := part(pt.GPCs, k.GPU.GPCs), part(pt.Processes, k.GPU.Clients)
	memory := part(pt.MemoryMiB, float64(k.GPU.MemoryMiB))
	return max(steps, memory, clients), steps + memory + clients
}

// part is the part that n is of all; 0 if there is no limit.
func part[N int | float64](n, all N) float64 {
	if all == 0 {
		return 0
	}
	return float64(n) / float64(all)
}
