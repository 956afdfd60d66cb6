// Package program starts programs of this node in the sandbox, and passes on what processes print to the log.
package program

import (
	"bufio"
	"encoding/json"
	"io"
	"log/slog"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"
)

// maxLine is the max length of a line of a process's output. The rest of a longer line
// follows as further lines.
const maxLine = 8 << 10

// ReadLines calls take with each line, without the line's end, until r ends or fails.
func ReadLines(r io.Reader, take func(string)) {
	b := bufio.NewReaderSize(r, maxLine)
	for {
		l, err := b.ReadSlice('\n')
		text := strings.ToValidUTF8(strings.TrimRight(string(l), "\r\n"), "�")
		if text != "" {
			take(text)
		}
		if err != nil && err != bufio.ErrBufferFull {
			return
		}
	}
}

// The output of a process may fill a disk: logRate bytes per second go to the log, after a first burst. The rest is
// dropped and counted. A process that writes more than readRate waits, because reading has a cost, too.
const (
	logRate     = 64 << 10
	logBurst    = 1 << 20
	recordBytes = 128 // of a line's record, without its text
	readRate    = 8 << 20
	readChunk   = 64 << 10
)

// Output relays the lines of a process to the log.
type Output struct {
	log zerolog.Logger

	mu      sync.Mutex
	left    float64 // bytes that may be logged now
	at      time.Time
	dropped uint64 // lines since the last one that was logged
	skipped int    // bytes since the last rest
}

// NewOutput returns an Output that has admitted nothing.
func NewOutput(log zerolog.Logger) *Output { return &Output{log: log, left: logBurst, at: time.Now()} }

// Relay logs a line unless the process writes too much. It returns what the function Relay returns.
func (o *Output) Relay(stream, text string) string {
	logged, dropped, rest := o.admit(len(text)+recordBytes, time.Now())
	o.report(dropped)
	time.Sleep(rest)
	if !logged {
		return Relay(zerolog.Nop(), stream, text)
	}
	return Relay(o.log, stream, text)
}

// admit reports whether a record is logged, how many lines were dropped before it, and how long to wait. After
// a drop it admits nothing until half a burst is left: one message then counts many lines.
func (o *Output) admit(bytes int, now time.Time) (logged bool, dropped uint64, rest time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.left = min(o.left+logRate*now.Sub(o.at).Seconds(), logBurst)
	o.at = now
	if o.left < float64(bytes) || o.dropped > 0 && o.left < logBurst/2 {
		o.dropped++
		if o.skipped += bytes; o.skipped >= readChunk {
			rest = time.Second * time.Duration(o.skipped) / readRate
			o.skipped = 0
		}
		return false, 0, rest
	}
	o.left -= float64(bytes)
	dropped, o.dropped = o.dropped, 0
	return true, dropped, 0
}

// report logs how many lines were dropped.
func (o *Output) report(dropped uint64) {
	if dropped > 0 {
		o.log.Warn().Uint64("lines", dropped).Int("max_bytes_per_second", logRate).Msg("process wrote too much output; dropped lines")
	}
}

// End reports the lines that were dropped last.
func (o *Output) End() {
	o.mu.Lock()
	dropped := o.dropped
	o.mu.Unlock()
	o.report(dropped)
}

// noise matches cuDNN's lines about its compiler, which processes hide from it
// (libml/onnx/nvrtc.go). There are twelve lines per session of some models, and they explain nothing.
var noise = regexp.MustCompile(`^Could not load symbol (__)?nvrtc`)

// Relay logs one line of a process's output. It returns the part of the line that may
// explain the process's end. A line that is itself a record of zerolog or slog.JSONHandler keeps its level,
// message and fields. Such a record explains something only from level warning up.
func Relay(log zerolog.Logger, stream, text string) string {
	if noise.MatchString(text) {
		log.Debug().Str("stream", stream).Msg(text)
		return ""
	}
	var record map[string]any
	if !strings.HasPrefix(text, "{") || json.Unmarshal([]byte(text), &record) != nil {
		log.Info().Str("stream", stream).Msg(text)
		return text
	}
	level := zerolog.InfoLevel
	if s, ok := record[zerolog.LevelFieldName].(string); ok {
		// Not above error: a child's fatal record must not end this process.
		if l, err := zerolog.ParseLevel(s); err == nil && l != zerolog.NoLevel {
			level = min(l, zerolog.ErrorLevel)
		}
	}
	message, ok := record[zerolog.MessageFieldName].(string)
	if !ok {
		message, _ = record[slog.MessageKey].(string)
	}
	said := ""
	if level >= zerolog.WarnLevel {
		said = message
	}
	if e, ok := record[zerolog.ErrorFieldName].(string); ok {
		said = strings.TrimPrefix(message+": "+e, ": ")
	}
	for _, k := range []string{
		zerolog.LevelFieldName, zerolog.MessageFieldName, slog.MessageKey, zerolog.TimestampFieldName,
		"process", "if", "instance", "generation", "worker", "pid", // the logger has these keys, which must not appear twice
	} {
		delete(record, k)
	}
	log.WithLevel(level).Fields(record).Msg(message)
	return said
}

// maxLineBytes bounds the text from a process that the node repeats.
const maxLineBytes = 1000

// Line turns text into one line of bounded length.
func Line(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	if len(text) > maxLineBytes {
		text = strings.ToValidUTF8(text[:maxLineBytes], "") + "…"
	}
	return text
}

// tailLines is the number of lines that a Tail keeps.
const tailLines = 8

// crash matches the first line that the Go runtime prints when it ends a process,
// either by itself or for a signal.
var crash = regexp.MustCompile(`^(panic|fatal error|SIG[A-Z]+): `)

// Tail keeps the last lines of a process's output, to diagnose its end. If a Go
// program panics, it keeps only the first line of the panic, because stacks follow.
type Tail struct {
	mu       sync.Mutex
	kept     []string
	panicked bool
}

// Add adds a line. An empty one says nothing.
func (t *Tail) Add(l string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if l == "" || t.panicked {
		return
	}
	t.panicked = crash.MatchString(l)
	if len(t.kept) == tailLines {
		t.kept = t.kept[1:]
	}
	t.kept = append(t.kept, Line(l))
}

// Lines returns the lines.
func (t *Tail) Lines() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]string(nil), t.kept...)
}
