package loadgen

import (
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"
)

// Progress shows a run in one line: a terminal's line is written over each time,
// elsewhere a line is added every progressEvery.
type Progress struct {
	w io.Writer
	// width is the terminal's, asked each time; nil elsewhere.
	width func() int
	// shown is when the last line was added, -1 for never.
	shown time.Duration
}

// progressEvery keeps a log of half a minute to a screen.
const progressEvery = 5 * time.Second

// NewProgress returns a progress line on w. width tells how many columns the
// terminal has, and is nil when w is none.
func NewProgress(w io.Writer, width func() int) *Progress {
	return &Progress{w: w, width: width, shown: -1}
}

// Show shows a snapshot; it is an Options.Observe.
func (p *Progress) Show(s Snapshot) {
	line := s.String()
	if p.width != nil {
		// To the line's beginning; the line; clear what is left of the one before.
		fmt.Fprintf(p.w, "\r%s\x1b[K", cut(line, p.width()-1))
		return
	}
	if p.shown < 0 || s.Elapsed-p.shown >= progressEvery {
		p.shown = s.Elapsed
		fmt.Fprintln(p.w, line)
	}
}

// Say adds a line for good.
func (p *Progress) Say(line string) {
	p.End()
	fmt.Fprintln(p.w, line)
}

// End leaves the terminal's line for what comes next.
func (p *Progress) End() {
	if p.width != nil {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
}

// String is the snapshot in one line.
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
		fmt.Fprintf(&b, " of %s ms", number(millis(f.SLO)))
		if f.ShareKnown {
			fmt.Fprintf(&b, ", %.0f %%", f.SharePercent)
		}
	}
	return b.String()
}

// cut keeps the first columns of a line, each rune of ours being one wide.
func cut(line string, columns int) string {
	if columns <= 0 || utf8.RuneCountInString(line) <= columns {
		return line
	}
	return string([]rune(line)[:columns-1]) + "…"
}
