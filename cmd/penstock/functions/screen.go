package functions

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/penstock/penstock/control"
)

// Screen shows a node on a terminal and draws it again after each sample:
//
//	1 Run shows the terminal's other screen. Another goroutine samples the node.
//	2 Each sample, each key and each new size of the terminal redraws.
//	3 q, Ctrl-C or the end of ctx restores the terminal.
//
// A terminal in raw mode sends Ctrl-C as a key.
type Screen struct {
	Out io.Writer
	// Size returns the terminal's columns and lines.
	Size func() (width, height int)
	// Keys are what the user types, Resized the changes of the size.
	Keys    <-chan byte
	Resized <-chan os.Signal
	// Read samples the node. Interval is the time between two samples, Window the time that the
	// numbers are of.
	Read             func(context.Context) (control.Sample, error)
	Interval, Window time.Duration
	Colour           bool

	live    *Live
	err     error     // of the newest sample
	sampled time.Time // the newest good sample
}

// Sequences that switch the screen and draw on it (ECMA-48; the other screen and the cursor are
// DEC's private modes).
const (
	enterScreen = "\x1b[?1049h\x1b[?25l"
	leaveScreen = "\x1b[?25h\x1b[?1049l"
	cursorHome  = "\x1b[H"
	clearLine   = "\x1b[K"
	clearRest   = "\x1b[J"
	inverse     = "\x1b[7m"
	red         = "\x1b[31m"
	plain       = "\x1b[0m"
)

const ctrlC = 3

// Run shows the node until the user quits or ctx ends. If the first sample fails, it returns the
// error. Later errors are shown, and the next sample tries again.
func (s *Screen) Run(ctx context.Context) error {
	window := Window{Length: s.Window}
	first, err := s.Read(ctx)
	if err != nil {
		return err
	}
	s.live, s.sampled = window.Add(first), time.Now()

	ctx, stop := context.WithCancel(ctx)
	defer stop()
	samples := make(chan sampleResult)
	go s.sample(ctx, samples)
	if _, err := io.WriteString(s.Out, enterScreen); err != nil {
		return err
	}
	defer io.WriteString(s.Out, leaveScreen)
	for {
		if err := s.draw(); err != nil {
			return err
		}
		select {
		case r := <-samples:
			if s.err = r.err; s.err == nil {
				s.live, s.sampled = window.Add(r.sample), time.Now()
			}
		case key := <-s.Keys:
			if key == 'q' || key == 'Q' || key == ctrlC {
				return nil
			}
		case <-s.Resized:
		case <-ctx.Done():
			return nil
		}
	}
}

type sampleResult struct {
	sample control.Sample
	err    error
}

// sample samples the node until ctx ends.
func (s *Screen) sample(ctx context.Context, to chan<- sampleResult) {
	tick := time.NewTicker(s.Interval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		sample, err := s.Read(ctx)
		select {
		case to <- sampleResult{sample, err}:
		case <-ctx.Done():
			return
		}
	}
}

// draw draws all lines that fit, with one write.
func (s *Screen) draw() error {
	width, height := s.Size()
	if width > 0 {
		width = max(1, width-1) // the last column stays empty: clearLine behind it would clear it
	}
	lines := s.live.Lines(width)
	if s.err != nil {
		silence := fmt.Sprintf("no answer for %s: %v; these are the last numbers", time.Since(s.sampled).Round(time.Second), s.err)
		lines[0] = Line{cut(silence, width), ProblemLine}
	}
	if n := len(lines); height > 0 && n > height {
		more := fmt.Sprintf("%d more lines; enlarge the terminal", n-height+1)
		lines = append(lines[:height-1:height-1], Line{cut(more, width), PlainLine})
	}

	var b strings.Builder
	b.WriteString(cursorHome)
	for i, line := range lines {
		if i > 0 {
			b.WriteString("\r\n")
		}
		b.WriteString(s.coloured(line) + clearLine)
	}
	b.WriteString(clearRest)
	_, err := io.WriteString(s.Out, b.String())
	return err
}

func (s *Screen) coloured(line Line) string {
	switch {
	case line.Kind == TitleLine:
		return inverse + line.Text + plain
	case line.Kind == ProblemLine && s.Colour:
		return red + line.Text + plain
	}
	return line.Text
}
