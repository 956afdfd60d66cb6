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

// openLog makes a process's log, on standard error, which never makes the process wait.
// end writes what was logged before it, and may be left out where nothing was.
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

// missingFrom says in a log that lines of it are missing, also where it has errors only.
func missingFrom(log zerolog.Logger) func(lines uint64) {
	log = log.Level(zerolog.WarnLevel)
	return func(lines uint64) {
		log.Warn().Uint64("lines", lines).Msg("log lines dropped: the log was not read in time")
	}
}

// logsJSON reports whether a log of that format is JSON here.
func logsJSON(format string) bool {
	return format == "json" || format != "console" && !isTerminal(os.Stderr)
}

// waitingWriter writes lines that somebody may not read for a while (a terminal that is
// stopped, a full pipe) without ever making the caller wait. (zerolog's diode, which is for
// this, can miss that it is woken, and keeps a line until the next comes.)
type waitingWriter struct {
	lines   chan logLine
	missing atomic.Uint64 // lines for which there was no room, since one was taken
	written chan struct{} // closed when all is written, after end
}

// logLine is a line, and how many before it are missing. Without text it is the end.
type logLine struct {
	text    []byte
	missing uint64
}

// keptLines is how many lines wait to be read; what comes then is dropped and counted.
const keptLines = 4096

// lastWords is how long a process that ends waits for its last lines to be read.
const lastWords = time.Second

// newWaitingWriter writes lines to out, and calls missed where some are missing. Both from
// one goroutine.
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
			_, _ = out.Write(l.text) // who reads it may be gone
		}
	}()
	return w
}

// Write takes a line, which stays the caller's.
func (w *waitingWriter) Write(line []byte) (int, error) {
	missing := w.missing.Swap(0)
	select {
	case w.lines <- logLine{append([]byte(nil), line...), missing}:
	default:
		w.missing.Add(missing + 1)
	}
	return len(line), nil
}

// end writes what waits, for lastWords at most. Lines that come later are not written.
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
