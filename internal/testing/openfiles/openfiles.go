// Package openfiles counts the file descriptors of a test's process, to detect those
// that code leaves open.
package openfiles

import (
	"os"
	"runtime"
	"sync"
	"testing"

	"github.com/penstock/penstock/internal/testing/wait"
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

// CheckLeaks fails the test if it ends with more goroutines or descriptors than it has now.
func CheckLeaks(t testing.TB) {
	t.Helper()
	goroutines, descriptors := runtime.NumGoroutine(), Count(t)
	t.Cleanup(func() {
		var g, d int
		if !wait.Until(func() bool {
			g, d = runtime.NumGoroutine(), Count(t)
			return g <= goroutines && d <= descriptors
		}) {
			t.Errorf("goroutines %d -> %d, descriptors %d -> %d", goroutines, g, descriptors, d)
		}
	})
}
