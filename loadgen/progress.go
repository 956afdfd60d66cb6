package loadgen

import (
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"
)

// Progress shows a run in one line. On a terminal it overwrites the line each
// time. On other outputs it adds a line every progressEvery.
type Progress struct {
	w io.Writer
	// width returns the terminal's current width; nil if the output is not a
	// terminal.
	width func() int
	// shown is when the last line was added; -1 if none was.
	shown time.Duration
}

// progressEvery keeps the log of a run of half a minute within one screen.
const progressEvery = 5 * time.Second

// NewProgress returns a progress line on w. width returns the terminal's number
// of columns; it is nil if w is not a terminal.
func NewProgress(w io.Writer, width func() int) *Progress {
	return &Progress{w: w, width: width, shown: -1}
}

// Show shows a snapshot. Use it as Options.Observe.
func (p *Progress) Show(s Snapshot) {
	if p.width != nil {
		p.Overwrite(s.String())
		return
	}
	if p.shown < 0 || s.Elapsed-p.shown >= progressEvery {
		p.shown = s.Elapsed
		fmt.Fprintln(p.w, s)
	}
}

// Overwrite replaces the terminal's line.
func (p *Progress) Overwrite(line string) {
	// Return to the start of the line, write it, and clear the rest of the
	// previous one.
	fmt.Fprintf(p.w, "\r%s\x1b[K", cut(line, p.width()-1))
}

// End clears the terminal's line.
func (p *Progress) End() {
	if p.width != nil {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
}

// String formats the snapshot as one line.
func (s Snapshot) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%3.0f s left", s.Left.Seconds())
	if s.WarmingUp {
		b.WriteString(", warming up")
	}
	for _, f := range s.Functions {
		fmt.Fprintf(&b, " │ %s %.0f/s ", f.Name, f.PerSecond)
		if f.P99 == 0 {
			fmt.Fprintf(&b, "p99 %s", unknown)
		} else {
			fmt.Fprintf(&b, "%.1f %% in time, p99 %.1f", f.WithinSLO, millis(f.P99))
		}
		fmt.Fprintf(&b, " of %s ms, %d open", number(millis(f.SLO)), f.Outstanding)
		if f.ShareKnown {
			fmt.Fprintf(&b, ", %.0f %%", f.SharePercent)
		}
	}
	return b.String()
}

// cut returns the first columns of a line. It assumes that each rune is one
// column wide.
func cut(line string, columns int) string {
	if columns <= 0 || utf8.RuneCountInString(line) <= columns {
		return line
	}
	return string([]rune(line)[:columns-1]) + "…"
}
