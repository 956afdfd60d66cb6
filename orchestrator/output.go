package orchestrator

import (
	"bufio"
	"encoding/json"
	"io"
	"regexp"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/rs/zerolog"
)

// maxLine is the longest line of a process's output that is taken whole; more of
// it comes as further lines.
const maxLine = 8 << 10

// readLines calls take with each line, without its end, until r ends or fails.
func readLines(r io.Reader, take func(string)) {
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

// relay logs one line of a process's output and returns what of it may tell why
// the process ended. A line that is itself a record of zerolog keeps its level,
// message and fields, and tells something from a warning up.
func relay(log zerolog.Logger, stream, text string) string {
	var record map[string]any
	if !strings.HasPrefix(text, "{") || json.Unmarshal([]byte(text), &record) != nil {
		log.Info().Str("stream", stream).Msg(text)
		return text
	}
	level := zerolog.InfoLevel
	if s, ok := record[zerolog.LevelFieldName].(string); ok {
		// Not above error: a child's fatal is not ours.
		if l, err := zerolog.ParseLevel(s); err == nil && l != zerolog.NoLevel {
			level = min(l, zerolog.ErrorLevel)
		}
	}
	message, _ := record[zerolog.MessageFieldName].(string)
	said := ""
	if level >= zerolog.WarnLevel {
		said = message
	}
	if e, ok := record[zerolog.ErrorFieldName].(string); ok {
		said = strings.TrimPrefix(message+": "+e, ": ")
	}
	for _, k := range []string{
		zerolog.LevelFieldName, zerolog.MessageFieldName, zerolog.TimestampFieldName,
		"process", "if", "instance", "generation", // the logger has them: a key must not come twice
	} {
		delete(record, k)
	}
	log.WithLevel(level).Fields(record).Msg(message)
	return said
}

// A tail keeps the last lines that a process said, for the diagnosis of its end. Of
// a Go program's panic it keeps the first line: what follows are stacks.
const (
	tailLines     = 8
	tailLineBytes = 200
)

// crash is how the Go runtime begins when it ends a process: by itself, or for a
// signal.
var crash = regexp.MustCompile(`^(panic|fatal error|SIG[A-Z]+): `)

type tail struct {
	mu       sync.Mutex
	kept     []string
	panicked bool
}

func (t *tail) add(l string) {
	if l == "" {
		return
	}
	if len(l) > tailLineBytes {
		cut := tailLineBytes
		for !utf8.RuneStart(l[cut]) {
			cut--
		}
		l = l[:cut] + "…"
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.panicked {
		return
	}
	t.panicked = crash.MatchString(l)
	if len(t.kept) == tailLines {
		t.kept = t.kept[1:]
	}
	t.kept = append(t.kept, l)
}

func (t *tail) lines() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]string(nil), t.kept...)
}
