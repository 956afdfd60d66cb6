package control

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/testing/logtest"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/wait"
	"github.com/rs/zerolog"
)

// patience bounds every wait of these tests. Only a hang takes that long.
const patience = 20 * time.Second

// invariants fails the test if it leaves a goroutine, a descriptor, or a socket behind.
func invariants(t *testing.T) {
	t.Helper()
	before := descriptors(t)
	t.Cleanup(func() {
		eventually(t, "no goroutine of this package is left", func() bool { return goroutines() == "" })
		eventually(t, "no descriptor is left", func() bool { return descriptors(t) <= before })
	})
}

func descriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	must.OK(t, err)
	n := 0
	for _, e := range entries {
		// Ignore the poller's descriptors, which it makes on first use.
		if target, err := os.Readlink(filepath.Join("/proc/self/fd", e.Name())); err == nil && strings.HasPrefix(target, "socket:") {
			n++
		}
	}
	return n
}

// goroutines returns the stacks of goroutines that this package started, without those
// of its tests.
func goroutines() string {
	buf := make([]byte, 1<<20)
	buf = buf[:runtime.Stack(buf, true)]
	var left []string
	for _, stack := range strings.Split(string(buf), "\n\n") {
		_, creator, ok := strings.Cut(stack, "created by ")
		if ok && strings.Contains(creator, "penstock/control.") && !strings.Contains(creator, "control.Test") &&
			!strings.Contains(creator, "_test.go") {
			left = append(left, stack)
		}
	}
	return strings.Join(left, "\n\n")
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	if !wait.Until(is) {
		t.Fatalf("not in time: %s\n%s", what, goroutines())
	}
}

// socketDir makes a folder whose path is short enough for a socket.
func socketDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "ps")
	must.OK(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// logged collects log lines.
type logged struct{ logtest.Log }

func (l *logged) logger() zerolog.Logger { return zerolog.New(l) }
