package sweep

import (
	"fmt"
	"io"
	"time"

	"github.com/penstock/penstock/loadgen"
	"github.com/penstock/penstock/models/profile"
)

// Display shows the progress of a sweep. On a terminal it overwrites one line. On
// other outputs it writes one line per point.
type Display struct {
	*loadgen.Progress
	w        io.Writer
	terminal bool
	unit     profile.Unit
	began    time.Time
	first    int // cells done at the beginning
}

// NewDisplay makes a display that writes to w. width returns a terminal's number of columns; it is nil
// if w is not a terminal.
func NewDisplay(w io.Writer, width func() int, unit profile.Unit) *Display {
	return &Display{Progress: loadgen.NewProgress(w, width), w: w, terminal: width != nil, unit: unit, first: -1}
}

// Show shows progress; use it as Options.Progress.
func (d *Display) Show(p Progress) {
	if d.first < 0 {
		d.began, d.first = time.Now(), p.Done
	}
	cell := fmt.Sprintf("%s, batch %d, %d processes", shareText(d.unit, p.Cell.Share), p.Cell.Batch, p.Cell.Processes)
	left := ""
	if done := p.Done - d.first; done > 0 {
		rest := time.Since(d.began) * time.Duration(p.Cells-p.Done) / time.Duration(done)
		left = fmt.Sprintf(", %s left", rest.Round(time.Second))
	}
	if !d.terminal {
		if p.Ended != nil {
			fmt.Fprintf(d.w, "%d of %d%s: %s: %s\n", p.Done, p.Cells, left, cell, endedText(p.Ended))
		}
		return
	}
	if p.Ended != nil && (p.Ended.Left != nil || p.Ended.Point.OOM) {
		d.End()
		fmt.Fprintf(d.w, "%s: %s\n", cell, endedText(p.Ended))
	}
	line := fmt.Sprintf("%d of %d%s", p.Done, p.Cells, left)
	if p.Ended == nil {
		line += ": " + cell
	}
	d.Overwrite(line)
}

func endedText(e *Ended) string {
	switch {
	case e.Left != nil:
		return "left out: " + e.Left.Error()
	case e.Point.OOM:
		return "out of memory"
	}
	text := fmt.Sprintf("%.1f images/s, %s per batch, ±%.1f %%", e.Point.Total(), milliseconds(e.Point.Latency), 100*e.Precision)
	if !e.Stable {
		text += ", not stable"
	}
	if e.LoadBound {
		text += fmt.Sprintf(", bounded by the load (%.0f %% in batches)", 100*e.Busy)
	}
	return text
}
