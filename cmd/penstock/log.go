package main

import (
	"bytes"
	"io"
	stdlog "log"
	"os"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/configs"
)

// openLog opens a process's log on standard error. A log call never blocks the process. end
// writes the pending lines; a caller that logged nothing need not call it.
func openLog(c configs.Log, name string) (log zerolog.Logger, end func()) {
	zerolog.TimeFieldFormat = "2006-01-02T15:04:05.000000Z07:00" // RFC 3339
	zerolog.DurationFieldUnit = time.Millisecond
	level, err := zerolog.ParseLevel(c.Level)
	if err != nil {
		level = zerolog.InfoLevel
	}
	var out io.Writer = os.Stderr
	if !logsJSON(c.Format) {
		out = zerolog.ConsoleWriter{Out: os.Stderr, TimeFormat: "15:04:05.000", NoColor: !isTerminal(os.Stderr)}
	}
	newLogger := func(w io.Writer) zerolog.Logger {
		return zerolog.New(w).Level(level).With().Timestamp().Str("process", name).Logger()
	}
	w := newWaitingWriter(out, missingFrom(newLogger(out)))
	log = newLogger(w)
	stdlog.SetFlags(0)
	stdlog.SetOutput(libraryLines{log})
	return log, w.end
}

// libraryLines turns the lines of libraries that use the standard logger into records.
type libraryLines struct{ log zerolog.Logger }

func (l libraryLines) Write(line []byte) (int, error) {
	l.log.Warn().Bytes("text", bytes.TrimSpace(line)).Msg("library")
	return len(line), nil
}

// missingFrom returns a function that logs the number of dropped lines, even if the log's
// level is error.
func missingFrom(log zerolog.Logger) func(lines uint64) {
	log = log.Level(zerolog.WarnLevel)
	return func(lines uint64) {
		log.Warn().Uint64("lines", lines).Msg("log lines dropped: the log was not read in time")
	}
}

// logsJSON reports whether a log of that format is JSON on this process's standard error.
func logsJSON(format string) bool {
	return format == "json" || format != "console" && !isTerminal(os.Stderr)
}

// waitingWriter writes lines without ever blocking its caller, even if the reader stops
// reading for a while (a stopped terminal, a full pipe). zerolog's diode has the same
// purpose, but it can miss a wakeup and then holds a line until the next one.
type waitingWriter struct {
	lines   chan logLine
	missing atomic.Uint64 // lines dropped since the last accepted line, because the queue was full
	written chan struct{} // closed when all lines are written, after end
}

// logLine is a line and the number of lines dropped before it. A nil text marks the end.
type logLine struct {
	text    []byte
	missing uint64
}

// keptLines is the queue's length in lines. If it is full, the writer drops and counts
// further lines.
const keptLines = 4096

// lastWords is how long an exiting process waits for its last lines to be written.
const lastWords = time.Second

// newWaitingWriter writes lines to out, and calls missed with the number of dropped lines.
// One goroutine makes both calls.
func newWaitingWriter(out io.Writer, missed func(lines uint64)) *waitingWriter {
	w := &waitingWriter{lines: make(chan logLine, keptLines), written: make(chan struct{})}
	go func() {
		defer close(w.written)
		for l := range w.lines {
			if l.missing > 0 {
				missed(l.missing)
			}
			if l.text == nil {
				return
			}
			_, _ = out.Write(l.text) // the reader may be gone
		}
	}()
	return w
}

// Write queues a copy of a line; the caller keeps the slice.
func (w *waitingWriter) Write(line []byte) (int, error) {
	missing := w.missing.Swap(0)
	select {
	case w.lines <- logLine{append([]byte(nil), line...), missing}:
	default:
		w.missing.Add(missing + 1)
	}
	return len(line), nil
}

// end writes the queued lines and returns after at most lastWords. Later lines are dropped.
func (w *waitingWriter) end() {
	late := time.After(lastWords)
	select {
	case w.lines <- logLine{nil, w.missing.Swap(0)}:
	case <-late:
		return
	}
	select {
	case <-w.written:
	case <-late:
	}
}
