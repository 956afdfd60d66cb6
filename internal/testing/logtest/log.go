// Package logtest has a log that a test reads while it is written.
package logtest

import (
	"bytes"
	"strings"
	"sync"
)

// Log is a text that several goroutines write. The zero value is empty.
type Log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Count returns how often the log has a text.
func (l *Log) Count(text string) int { return strings.Count(l.String(), text) }
