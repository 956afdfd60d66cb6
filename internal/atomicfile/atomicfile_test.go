package atomicfile

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"syscall"
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
	if err := Replace(path, []byte("new"), Keep, nil); err == nil {
		t.Error("kept the mode of a missing file")
	}
	must.OK(t, Replace(path, []byte("first"), 0o640, nil))
	holds("first", 0o640)
	if err := os.Chown(path, 1, 2); os.Getuid() == 0 && err != nil {
		t.Fatal(err)
	}
	must.OK(t, Replace(path, []byte("second"), Keep, nil))
	holds("second", 0o640)
	if info, _ := os.Stat(path); os.Getuid() == 0 && info.Sys().(*syscall.Stat_t).Uid != 1 {
		t.Errorf("the file has another owner: %+v", info.Sys())
	}
}

func TestReplaceChecked(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	must.OK(t, os.WriteFile(path, []byte("first"), 0o600))
	failed := errors.New("edited meanwhile")
	if err := Replace(path, []byte("second"), Keep, func() error { return failed }); !errors.Is(err, failed) {
		t.Errorf("got %v, want %v", err, failed)
	}
	if text, _ := os.ReadFile(path); string(text) != "first" {
		t.Errorf("file has %q", text)
	}
}

func TestReplaceAtOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	var writers sync.WaitGroup
	for range 8 {
		writers.Go(func() {
			for range 20 {
				if err := Replace(path, []byte("whole"), 0o600, nil); err != nil {
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
