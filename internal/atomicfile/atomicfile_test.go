package atomicfile

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/penstock/penstock/internal/testing/must"
)

func TestReplace(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	holds := func(want string, mode os.FileMode) {
		t.Helper()
		text, err := os.ReadFile(path)
		info, statErr := os.Stat(path)
		if err := errors.Join(err, statErr); err != nil || string(text) != want || info.Mode().Perm() != mode {
			t.Fatalf("file has %q, %v; want %q with mode %v", text, err, want, mode)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
			t.Errorf("left %v, %v", left, err)
		}
	}
	must.OK(t, Replace(path, []byte("first"), 0o640))
	holds("first", 0o640)
	must.OK(t, Replace(path, []byte("second"), 0o600))
	holds("second", 0o600)
}

func TestReplaceAtOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	var writers sync.WaitGroup
	for range 8 {
		writers.Go(func() {
			for range 20 {
				if err := Replace(path, []byte("whole"), 0o600); err != nil {
					t.Error(err)
				}
				if text, err := os.ReadFile(path); string(text) != "whole" {
					t.Errorf("read %q, %v", text, err)
				}
			}
		})
	}
	writers.Wait()
}
