package render

import (
	"bufio"
	"fmt"
	"io"
	"strings"

	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/penstock/penstock/plan"
)

const (
	// slotWidth is the width of one slot with its left edge, if there are few
	// slots. A name of twelve letters fits.
	slotWidth = 13
	// drawingWidth is the width of all slots together if there are many, as under
	// MPS.
	drawingWidth = 104
	// thinWidth is the width of a slot in which no segment can begin: an A100's
	// last.
	thinWidth = 3
	// narrow is the width below which a cell shows only the beginning of the name.
	narrow = 5
	// labelLines is the number of lines of a cell: name, point, load.
	labelLines = 3
)

// Table writes a plan for a terminal: the summary, each GPU as its slots, a table
// of the services, and further sections. Adjacent GPUs that look the same are drawn
// once.
func Table(w io.Writer, p *plan.Plan, more ...Section) error {
	list, err := boards(p)
	if err != nil {
		return err
	}
	out := bufio.NewWriter(w)
	for _, l := range summary(p, list) {
		fmt.Fprintf(out, "%-22s  %s\n", l.Name, printable(l.Value))
	}
	for _, n := range p.Notes {
		fmt.Fprintf(out, "%-22s  %s\n", "note", printable(n))
	}
	fmt.Fprintln(out)
	for rest := list; len(rest) > 0; {
		n := 1
		for n < len(rest) && rest[n].gpu.Name == rest[0].gpu.Name {
			n++
		}
		drawing{edges: edges(rest[0].gpu), margin: margin(rest[:n])}.draw(out, rest[:n])
		rest = rest[n:]
	}
	fmt.Fprint(out, "size, batch × processes; load of throughput, requests/s\n\n")
	for i, section := range append([]Section{services(p, list)}, more...) {
		if i > 0 {
			fmt.Fprintf(out, "\n%s\n", section.Title)
		}
		for _, t := range section.Text {
			fmt.Fprintln(out, printable(t))
		}
		section.write(out)
	}
	if err := out.Flush(); err != nil {
		return fmt.Errorf("write table: %w", err)
	}
	return nil
}

// drawing is the geometry of a text drawing.
type drawing struct {
	edges  []int // the column at which each slot begins and the last one ends
	margin int   // width of the GPUs' names on the left
}

// edges computes the slots' columns. Labels set the distance if there is room for
// them.
func edges(g plan.GPU) []int {
	at := make([]int, g.Slots+1)
	for slot := range g.Slots {
		width := slotWidth
		switch {
		case g.Slots*slotWidth > drawingWidth:
			width = (slot+1)*drawingWidth/g.Slots - slot*drawingWidth/g.Slots
		case !g.Sizes[0].MayStart(slot):
			width = thinWidth
		}
		at[slot+1] = at[slot] + width
	}
	return at
}

func margin(list []board) int {
	most := 0
	for _, b := range list {
		for _, l := range labels(b) {
			most = max(most, len([]rune(l))+1)
		}
	}
	return most
}

// labels are the lines of text to the left of a GPU.
func labels(b board) [labelLines]string {
	return [labelLines]string{"GPU " + b.number(), b.gpu.Name, b.used()}
}

// draw draws GPUs of one model below each other. Two neighbours share the line
// between them, which has the edges of both.
func (d drawing) draw(w io.Writer, list []board) {
	if g := list[0].gpu; !g.Percent {
		head := []rune(strings.Repeat(" ", d.margin+d.edges[g.Slots]+1))
		for slot := range g.Slots {
			copy(head[d.margin+d.edges[slot]+1:], []rune(fmt.Sprint(slot)))
		}
		fmt.Fprintln(w, strings.TrimRight(string(head), " "))
	}
	above := map[int]bool{}
	for _, b := range list {
		below := d.boundaries(b)
		d.rule(w, above, below)
		label := labels(b)
		for i := range labelLines {
			fmt.Fprintf(w, "%-*s", d.margin, label[i])
			for _, c := range b.cells {
				fmt.Fprint(w, "│", d.label(b, c, i, d.edges[c.slot+c.slots]-d.edges[c.slot]-1))
			}
			fmt.Fprintln(w, "│")
		}
		above = below
	}
	d.rule(w, above, nil)
}

// label is one line of a cell, padded to the width room.
func (d drawing) label(b board, c cell, i, room int) string {
	label := ""
	switch {
	case c.lost:
		return strings.Repeat("░", room)
	case c.segment != nil:
		label = [labelLines]string{printable(c.segment.Service), b.point(c), formatDecimal(c.segment.LoadRPS) + " of " + formatDecimal(c.segment.ThroughputRPS)}[i]
	case i == 1 && room >= len("free"):
		label = "free"
	}
	if room < narrow && i > 0 {
		label = ""
	}
	return text.Pad(text.Snip(label, room, "…"), room, ' ')
}

func (d drawing) boundaries(b board) map[int]bool {
	at := map[int]bool{}
	for _, c := range b.cells {
		at[d.edges[c.slot]], at[d.edges[c.slot+c.slots]] = true, true
	}
	return at
}

// rule draws a horizontal line. above and below are the columns of the vertical
// lines that meet it.
func (d drawing) rule(w io.Writer, above, below map[int]bool) {
	end := d.edges[len(d.edges)-1]
	row := []rune(strings.Repeat("─", end+1))
	for x := range row {
		// The key says in which of the four directions a line goes on from here.
		key := [4]bool{above[x], below[x], x > 0, x < end}
		if above[x] || below[x] {
			row[x] = joints[key]
		}
	}
	fmt.Fprintf(w, "%*s%s\n", d.margin, "", string(row))
}

// joints are the box drawing characters by the lines that leave them: up, down,
// left, right.
var joints = map[[4]bool]rune{
	{false, true, false, true}: '┌', {false, true, true, false}: '┐', {false, true, true, true}: '┬',
	{true, false, false, true}: '└', {true, false, true, false}: '┘', {true, false, true, true}: '┴',
	{true, true, false, true}: '├', {true, true, true, false}: '┤', {true, true, true, true}: '┼',
}
