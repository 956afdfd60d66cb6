// Package render draws a plan for a terminal: its figures, the slots of each GPU, and
// tables.
//
// The package draws the plan itself, not the intention of its policy. These segments
// are errors: on a GPU without a placement table, of an unknown size, outside the
// slots, or overlapping another one.
package render

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/penstock/penstock/plan"
)

// board is one GPU of a plan, or several adjacent ones that look the same.
type board struct {
	first, last int // numbers of the GPUs
	gpu         plan.GPU
	cells       []cell
	gpcs        int
}

// cell is a range of slots: a segment, or a gap.
type cell struct {
	slot, slots int
	segment     *plan.Segment
	size        plan.Size
	// lost slots are free but unusable: the last memory slice of an A100 next to a
	// segment of one GPC.
	lost bool
}

// boards lays out all GPUs of a plan, in their order.
func boards(p *plan.Plan) ([]board, error) {
	segments := slices.Clone(p.Segments)
	slices.SortStableFunc(segments, func(a, b plan.Segment) int { return cmp.Or(a.GPU-b.GPU, a.Slot-b.Slot) })
	var list []board
	for len(segments) > 0 {
		n := slices.IndexFunc(segments, func(s plan.Segment) bool { return s.GPU != segments[0].GPU })
		if n < 0 {
			n = len(segments)
		}
		b, err := layOut(segments[:n])
		if err != nil {
			return nil, err
		}
		if last := len(list) - 1; last >= 0 && list[last].equal(b) && list[last].last+1 == b.first {
			list[last].last = b.first
		} else {
			list = append(list, b)
		}
		segments = segments[n:]
	}
	return list, nil
}

// layOut converts the segments of one GPU, ascending by slot, to cells and fills the
// gaps.
func layOut(segments []plan.Segment) (board, error) {
	b := board{first: segments[0].GPU, last: segments[0].GPU}
	var err error
	if b.gpu, err = plan.Lookup(segments[0].GPUModel); err != nil {
		return b, fmt.Errorf("draw GPU %d: %w", b.first, err)
	}
	taken := make([]bool, b.gpu.Slots)
	for i := range segments {
		s := &segments[i]
		size, ok := b.gpu.Size(s.GPCs)
		if !ok || s.GPUModel != b.gpu.Name || s.Slot < 0 || s.Slot+size.Slots > b.gpu.Slots || slices.Contains(taken[s.Slot:s.Slot+size.Slots], true) {
			return b, fmt.Errorf("draw GPU %d: size %d of %s does not fit in slot %d of %s", b.first, s.GPCs, s.Service, s.Slot, s.GPUModel)
		}
		for slot := range size.Slots {
			taken[s.Slot+slot] = true
		}
		b.cells = append(b.cells, cell{slot: s.Slot, slots: size.Slots, segment: s, size: size})
		b.gpcs += s.GPCs
	}
	for slot := 0; slot < b.gpu.Slots; slot++ {
		if taken[slot] {
			continue
		}
		c := cell{slot: slot, slots: 1, lost: !usable(b.gpu, taken, slot)}
		if b.gpu.Percent { // percentages have no slot boundaries
			for slot+1 < b.gpu.Slots && !taken[slot+1] {
				slot, c.slots = slot+1, c.slots+1
			}
		}
		b.cells = append(b.cells, c)
	}
	slices.SortFunc(b.cells, func(a, b cell) int { return a.slot - b.slot })
	return b, nil
}

// usable reports whether another segment could still cover a slot.
func usable(g plan.GPU, taken []bool, slot int) bool {
	for _, size := range g.Sizes {
		for _, start := range size.Starts {
			if start <= slot && slot < start+size.Slots && !slices.Contains(taken[start:start+size.Slots], true) {
				return true
			}
		}
	}
	return false
}

func (b board) equal(c board) bool {
	return b.gpu.Name == c.gpu.Name && slices.EqualFunc(b.cells, c.cells, func(x, y cell) bool {
		if x.segment == nil || y.segment == nil {
			return x.segment == y.segment && x.slot == y.slot && x.slots == y.slots
		}
		s, t := *x.segment, *y.segment
		s.GPU = t.GPU
		return s == t
	})
}

// number is "3", or "3–17".
func (b board) number() string {
	if b.last == b.first {
		return strconv.Itoa(b.first)
	}
	return fmt.Sprintf("%d–%d", b.first, b.last)
}

// cpu is the placement table of a CPU. Its unit is a hundredth of a machine's CPU
// time.
const cpu = "cpu"

// used is how much of the GPU has segments: "6 of 7 GPCs", "62 of 80 SMs", "40 of
// 100 % of the CPU".
func (b board) used() string {
	switch {
	case b.gpu.Name == cpu:
		return fmt.Sprintf("%d of 100 %% of the CPU", b.gpcs)
	case b.gpu.Percent:
		return fmt.Sprintf("%d of %d SMs", b.gpcs*b.gpu.Sizes[0].SMs, b.gpu.UsableSMs())
	}
	return fmt.Sprintf("%d of %d GPCs", b.gpcs, b.gpu.GPCs)
}

// sizeName is a segment's size: "3g" under MIG, "24 SMs" without MIG, "24 %" of a
// CPU.
func sizeName(g plan.GPU, s plan.Size) string {
	switch {
	case g.Name == cpu:
		return fmt.Sprintf("%d %%", s.GPCs)
	case g.Percent:
		return fmt.Sprintf("%d SMs", s.SMs)
	}
	return fmt.Sprintf("%dg", s.GPCs)
}

// point is "3g 32 × 2": size, batch × processes.
func (b board) point(c cell) string {
	return fmt.Sprintf("%s %d × %d", sizeName(b.gpu, c.size), c.segment.Batch, c.segment.Processes)
}

// formatDecimal writes a number with as many digits as are useful to a reader.
func formatDecimal(v float64) string {
	switch {
	case math.Abs(v) >= 100:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case math.Abs(v) >= 10:
		v = math.Round(v*10) / 10
	default:
		v = math.Round(v*100) / 100
	}
	return strconv.FormatFloat(v, 'f', -1, 64)
}

// formatExact writes a number of the input as the input has it.
func formatExact(v float64) string { return strconv.FormatFloat(v, 'g', 8, 64) }

// formatPercent writes a fraction as a percentage.
func formatPercent(part float64) string {
	v := math.Round(part*1000) / 10
	return strconv.FormatFloat(v+0, 'f', 1, 64) + " %" // +0: no minus before a nought
}
