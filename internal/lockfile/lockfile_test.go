package lockfile

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/penstock/penstock/internal/testing/must"
)

func open(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	must.OK(t, err)
	t.Cleanup(func() { f.Close() })
	return f
}

func TestTry(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	first, second := open(t, path), open(t, path)
	must.OK(t, Try(first))
	if err := Try(second); !errors.Is(err, ErrLocked) {
		t.Errorf("while another file holds it: %v", err)
	}
	first.Close()
	if err := Try(second); err != nil {
		t.Errorf("after Close of the other file: %v", err)
	}
	if Try(first) == nil {
		t.Error("a closed file was locked")
	}
}

// A child that inherited the lock keeps it for a moment after its parent has ended.
func TestTryInherited(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	parents := open(t, path)
	must.OK(t, Try(parents))
	child := exec.Command("sleep", "0.3")
	child.ExtraFiles = []*os.File{parents}
	must.OK(t, child.Start())
	parents.Close()
	if err := Try(open(t, path)); err != nil {
		t.Errorf("while a child that ends soon holds it: %v", err)
	}
	if err := child.Wait(); err != nil {
		t.Error(err)
	}
}
