// Package openfiles counts the file descriptors of a test's process, to detect those
// that code leaves open.
package openfiles

import (
	"os"
	"sync"
	"testing"
)

// startPoller has the runtime open the descriptors of its poller, which it keeps.
var startPoller = sync.OnceValue(func() error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	r.Close()
	w.Close()
	return nil
})

// Count returns how many descriptors are open, including its own.
func Count(t testing.TB) int {
	t.Helper()
	if err := startPoller(); err != nil {
		t.Fatalf("count open files: %v", err)
	}
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatalf("count open files: %v", err)
	}
	return len(entries)
}
