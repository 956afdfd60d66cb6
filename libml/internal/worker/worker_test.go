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
	file := func(perLevel bool) *os.File {
		turns, err := shm.NewTurns("test-turns", perLevel)
		must.OK(t, err)
		t.Cleanup(func() { turns.Close() })
		return turns.File()
	}
	forAll, perLevel := file(false), file(true)
	var w Worker
	open := func(turns *os.File, number int) *gate.Entry {
		t.Helper()
		fd, err := unix.FcntlInt(turns.Fd(), unix.F_DUPFD_CLOEXEC, 0)
		must.OK(t, err)
		entry, err := w.Entry(os.NewFile(uintptr(fd), "turns"), number)
		must.OK(t, err)
		return entry
	}
	first := open(forAll, 3)
	if second := open(forAll, 3); second != first {
		t.Error("two members of a worker have two turns")
	}
	if third := open(forAll, 4); third == first || third.Number() != 4 {
		t.Errorf("the worker has entry %d, want 4", third.Number())
	}
	if fourth := open(perLevel, 4); !fourth.PerLevel() {
		t.Error("the worker keeps its entry in a file that the manager no longer names")
	}
}
