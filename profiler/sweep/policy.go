// Package sweep measures a model over a grid: share of the device × batch size ×
// number of processes. It decides what to measure next, when a point is stable, and
// what need not be measured; a Runner does the measuring.
//
// The way of a sweep:
//
//  1. continue what a partial file has, if its header says the same (file.go)
//  2. next: the first point of the grid that is not measured and can help (policy.go)
//  3. start it, warm it up, watch windows until it is stable (measure.go)
//  4. write the file, go to 2
//  5. knees, and the file takes its name
//
// What comes next follows from the points that there are and from nothing else, so a
// sweep that was stopped goes on as if it had not been.
package sweep

import (
	"cmp"
	"slices"

	"github.com/penstock/penstock/models/profile"
)

// Cell is a point of the grid, to be measured or not.
type Cell struct {
	Share, Batch, Processes int
}

// of is where a point lies in the grid.
func of(p profile.Point) Cell { return Cell{p.Share, p.Batch, p.Processes} }

// gain is the part by which a point must beat the best before it to count as better.
const gain = 0.02

// stalls is after how many points in a row that are no better, along one of the three
// ways through the grid, the rest of that way is left out. One is not enough:
// throughput may dip and rise again (GSLICE's VGG-19 under TensorRT on a V100 does 72.8
// images/s at batch 1 with 100 %, at 10 % of it 13.4, 10.5, 18.8 at batch 1, 2, 4).
const stalls = 2

// next is the first cell of the grid, in the order of Cells, that is not measured and
// may help; ok is false where none is left. left is how many are left, that one
// included: later points may take more of them out.
//
// A cell cannot help
//
//   - where a point with no more processes, no larger batch and no smaller share ran
//     out of memory (shares of percent have all of the device's memory, whatever they
//     are),
//   - where more processes, a larger batch or a larger share has not brought more
//     throughput, by gain, for the last stalls points with all else the same: more
//     processes and a larger batch would only take longer and hold more, and a larger
//     share would only be taken from others.
func next(grid profile.Sweep, unit profile.Unit, points []profile.Point, skip map[Cell]bool) (cell Cell, left int, ok bool) {
	done := make(map[Cell]bool, len(points))
	for _, p := range points {
		done[of(p)] = true
	}
	for _, c := range Cells(grid) {
		if done[c] || skip[c] || !helps(unit, points, c) {
			continue
		}
		if left++; left == 1 {
			cell, ok = c, true
		}
	}
	return cell, left, ok
}

// Cells are all of a grid's, in the order that they are measured in: a batch size with
// so many processes is loaded once and then given one share after the other.
func Cells(grid profile.Sweep) (cells []Cell) {
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

// stalled reports whether the last points of a way are no better than the best before
// each.
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
