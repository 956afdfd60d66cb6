// Package openfiles counts the file descriptors of a test's process, to detect those
// that code leaves open.
package openfiles

import (
	"os"
	"testing"
)

// Count returns how many descriptors are open, including its own.
func Count(t testing.TB) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatalf("count open files: %v", err)
	}
	return len(entries)
}
