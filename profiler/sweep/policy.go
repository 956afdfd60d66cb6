// Package sweep measures a model over a grid: share of the device × batch size ×
// number of processes. It decides what to measure next, when a point is stable, and
// what need not be measured. A Runner measures.
//
// The steps of a sweep:
//
//  1. continue a partial file, if its header has the same values (file.go)
//  2. next: the first point of the grid that is not measured and can help (policy.go)
//  3. start it, warm it up, watch windows until it is stable (measure.go)
//  4. write the file, go to 2
//  5. compute the knees, and give the file its final name
//
// The next point depends only on the existing points, so a sweep that was stopped
// continues as if it had not been.
package sweep

import (
	"cmp"
	"slices"

	"github.com/penstock/penstock/models/profile"
)

// Cell is a point of the grid, measured or not.
type Cell struct {
	Share, Batch, Processes int
}

// gain is the fraction by which a point must exceed the best previous one to count as
// better.
const gain = 0.02

// stalls is a number of consecutive points without improvement along one of the three
// directions of the grid. After these, the rest of that direction is skipped. One is
// not enough, because throughput may dip and rise again: GSLICE's VGG-19 under
// TensorRT on a V100 reaches 72.8 images/s at batch 1 with 100 %. With 10 %, it
// reaches 13.4, 10.5 and 18.8 at batch 1, 2 and 4.
const stalls = 2

// next returns the first cell of the grid, in the order of Cells, that is not
// measured and may help. ok is false if there is none. left is the number of
// remaining cells, including that one; later points may exclude more of them.
//
// A cell cannot help in three cases:
//
//   - The model answers wrongly at the share of its processes.
//   - A point with no more processes, no larger batch and no smaller share ran out
//     of memory. (A share in percent always has all of the device's memory.)
//   - More processes, a larger batch or a larger share has not increased
//     throughput by gain for the last stalls points, all else being equal. More
//     processes and a larger batch would only take longer and hold more memory. A
//     larger share would only be taken from other functions.
func next(p *profile.Profile, skip map[Cell]bool) (cell Cell, left int, ok bool) {
	for _, c := range Cells(*p.Header.Sweep, p.Header.Unit) {
		_, done := p.Find(c.Share, c.Batch, c.Processes)
		if done || skip[c] || p.Header.AnswersWrongly(c.Share, c.Processes) || !helps(p.Header.Unit, p.Points, c) {
			continue
		}
		if left++; left == 1 {
			cell, ok = c, true
		}
	}
	return cell, left, ok
}

// Cells returns all cells of a grid in the order of measurement. A batch size is
// loaded once per number of processes and then gets one share after the other. Shares
// in GPCs are the outer loop, because an instance must be cut for each.
func Cells(grid profile.Sweep, unit profile.Unit) (cells []Cell) {
	if unit == profile.GPCs && len(grid.Shares) > 1 {
		for _, share := range grid.Shares {
			grid.Shares = []int{share}
			cells = append(cells, Cells(grid, unit)...)
		}
		return cells
	}
	for _, batch := range grid.Batches {
		for _, processes := range grid.Processes {
			for _, share := range grid.Shares {
				cells = append(cells, Cell{share, batch, processes})
			}
		}
	}
	return cells
}

func helps(unit profile.Unit, points []profile.Point, c Cell) bool {
	var ways [3][]profile.Point // to the cell: over processes, batches, shares
	for _, p := range points {
		if p.OOM {
			if p.Processes <= c.Processes && p.Batch <= c.Batch && (unit == profile.Percent || p.Share >= c.Share) {
				return false
			}
			continue
		}
		switch {
		case p.Share == c.Share && p.Batch == c.Batch && p.Processes < c.Processes:
			ways[0] = append(ways[0], p)
		case p.Share == c.Share && p.Batch < c.Batch && p.Processes == c.Processes:
			ways[1] = append(ways[1], p)
		case p.Share < c.Share && p.Batch == c.Batch && p.Processes == c.Processes:
			ways[2] = append(ways[2], p)
		}
	}
	return !slices.ContainsFunc(ways[:], stalled)
}

// stalled reports whether the last points of a direction are no better than the best
// before each.
func stalled(way []profile.Point) bool {
	way = slices.SortedFunc(slices.Values(way), func(a, b profile.Point) int {
		return cmp.Or(cmp.Compare(a.Processes, b.Processes), cmp.Compare(a.Batch, b.Batch), cmp.Compare(a.Share, b.Share))
	})
	best, worse := 0.0, 0
	for _, p := range way {
		if total := p.Total(); total > (1+gain)*best {
			worse = 0
		} else {
			worse++
		}
		best = max(best, p.Total())
	}
	return worse >= stalls
}
