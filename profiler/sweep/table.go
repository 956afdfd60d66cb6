package sweep

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/penstock/penstock/models/profile"
)

// WriteTable writes the knee and the best point of each batch size, and a summary of the
// sweep.
func (r *Report) WriteTable(w io.Writer) {
	h := &r.Profile.Header
	t := table.NewWriter()
	t.SetStyle(table.StyleLight)
	t.SetOutputMirror(w)
	t.AppendHeader(table.Row{"batch", "knee", "images/s there", "per batch", "best", "with"})
	for _, batch := range h.Sweep.Batches {
		if row := batchRow(&r.Profile, batch); row != nil {
			t.AppendRow(row)
		}
	}
	t.Render()

	fmt.Fprintf(w, "%d points: %d from before, %d measured now; %d left out because they cannot help\n", len(r.Profile.Points), r.Before, r.New, r.Saved)
	if h.PersistentMiB > 0 {
		fmt.Fprintf(w, "a process holds %.1f MiB, and its largest batch %.1f MiB more\n", h.PersistentMiB, h.EphemeralMiB)
	}
	if n := len(h.Unsteady); n > 0 {
		fmt.Fprintf(w, "%d points did not become stable within %v %%; the header lists them\n", n, h.Sweep.PrecisionPercent)
	}
	if n := len(h.LoadBound); n > 0 {
		fmt.Fprintf(w, "%d points are bounded by the load: the model waits for pictures, so they show the throughput of the node\n", n)
	}
	if r.Wrong > 0 {
		var shares []string
		for _, wrong := range h.Wrong {
			shares = append(shares, fmt.Sprintf("%s with %d processes", shareText(h.Unit, wrong.Share), wrong.Processes))
		}
		fmt.Fprintf(w, "%d points left out because the model answers wrongly there: %s\n", r.Wrong, strings.Join(shares, ", "))
	}
	if n := len(r.Late); n > 0 {
		fmt.Fprintf(w, "%d points left out: --quick had no time for them\n", n)
	}
	for _, c := range r.Left {
		fmt.Fprintf(w, "left out: share %d, batch %d, %d processes: %v\n", c.Share, c.Batch, c.Processes, errNotFilled)
	}
}

// batchRow returns the row of a batch size, nil if the profile has no point of it.
func batchRow(p *profile.Profile, batch int) table.Row {
	unit, kneeShare := p.Header.Unit, 0
	for _, k := range p.Header.Knees {
		if k.Batch == batch {
			kneeShare = k.Share
		}
	}
	var best, knee profile.Point
	measured := false
	for _, point := range p.Points {
		if point.Batch != batch {
			continue
		}
		measured = true
		if point.Total() > best.Total() {
			best = point
		}
		if point.Share == kneeShare && !point.OOM && knee.Batch == 0 { // the fewest processes come first
			knee = point
		}
	}
	if !measured {
		return nil
	}

	row := table.Row{batch, "-", "-", "-", "out of memory", "-"}
	if knee.Batch != 0 {
		row[1], row[2], row[3] = shareText(unit, knee.Share), fmt.Sprintf("%.1f", knee.Total()), milliseconds(knee.Latency)
	}
	if best.Batch != 0 {
		row[4] = fmt.Sprintf("%.1f", best.Total())
		row[5] = fmt.Sprintf("%s, %d processes", shareText(unit, best.Share), best.Processes)
	}
	return row
}

func shareText(unit profile.Unit, share int) string {
	if unit == profile.GPCs {
		return fmt.Sprintf("%d GPCs", share)
	}
	return fmt.Sprintf("%d %%", share)
}

func milliseconds(d time.Duration) string {
	return fmt.Sprintf("%.2f ms", float64(d)/float64(time.Millisecond))
}
