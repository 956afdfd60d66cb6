package worker

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/libml/gate"
	"github.com/penstock/penstock/shm"
)

// TestEntry has a worker's members join with an entry, leave, and join with another one.
func TestEntry(t *testing.T) {
	turns, err := shm.NewTurns("test-turns", false)
	must.OK(t, err)
	t.Cleanup(func() { turns.Close() })
	var w Worker
	open := func(number int) *gate.Entry {
		t.Helper()
		fd, err := unix.FcntlInt(turns.File().Fd(), unix.F_DUPFD_CLOEXEC, 0)
		must.OK(t, err)
		entry, err := w.Entry(os.NewFile(uintptr(fd), "turns"), number)
		must.OK(t, err)
		return entry
	}
	first := open(3)
	if second := open(3); second != first {
		t.Error("two members of a worker have two turns")
	}
	if third := open(4); third == first || third.Number() != 4 {
		t.Errorf("the worker has entry %d, want 4", third.Number())
	}
}
