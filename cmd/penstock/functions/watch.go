package functions

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/penstock/penstock/control"
)

// Terminal is where Watch draws. Size returns its columns and lines.
type Terminal struct {
	io.Writer
	Size func() (width, height int)
}

// Sequences that switch the terminal's screen and draw on it (ECMA-48; the other screen and the cursor
// are DEC's private modes).
const (
	enterScreen = "\x1b[?1049h\x1b[?25l"
	leaveScreen = "\x1b[?25h\x1b[?1049l"
	cursorHome  = "\x1b[H"
	clearLine   = "\x1b[K"
	clearRest   = "\x1b[J"
)

// Watch shows a node on the terminal's other screen until ctx ends: it reads a sample, draws, and waits
// for an interval. The numbers are of a window of time. If the first sample fails, Watch returns the
// error. It shows later errors, and the next sample tries again.
func Watch(ctx context.Context, to Terminal, read func(context.Context) (control.Sample, error), interval, window time.Duration) error {
	samples := Window{Length: window}
	sample, err := read(ctx)
	if err != nil {
		return err
	}
	if _, err := io.WriteString(to, enterScreen); err != nil {
		return err
	}
	defer io.WriteString(to, leaveScreen)

	var live *Live
	for sampled := time.Now(); ; {
		failure := ""
		if err != nil {
			failure = fmt.Sprintf("no answer for %s: %v; these are the last numbers", time.Since(sampled).Round(time.Second), err)
		} else {
			live, sampled = samples.Add(sample), time.Now()
		}
		if err := to.draw(live, failure); err != nil {
			return err
		}

		select {
		case <-time.After(interval):
		case <-ctx.Done():
			return nil
		}
		if sample, err = read(ctx); ctx.Err() != nil {
			return nil
		}
	}
}

// draw draws the lines that fit, with one write. A failure replaces the first line.
func (t Terminal) draw(live *Live, failure string) error {
	width, height := t.Size()
	lines := live.Lines(width)
	if failure != "" {
		lines[0] = cut(failure, width)
	}
	if n := len(lines); height > 0 && n > height {
		more := fmt.Sprintf("%d more lines; enlarge the terminal", n-height+1)
		lines = append(lines[:height-1:height-1], cut(more, width))
	}
	_, err := io.WriteString(t, cursorHome+strings.Join(lines, clearLine+"\r\n")+clearLine+clearRest)
	return err
}
