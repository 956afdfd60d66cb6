package configfile

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/penstock/penstock/internal/testing/must"
)

func TestReplace(t *testing.T) {
	dir := t.TempDir()
	file, link := filepath.Join(dir, "node.yaml"), filepath.Join(dir, "link.yaml")
	writes(t, file, "before")
	must.OK(t, os.Chmod(file, 0o640))
	must.OK(t, os.Symlink("node.yaml", link))
	holds := func(want string) {
		t.Helper()
		if text, err := os.ReadFile(file); err != nil || string(text) != want {
			t.Errorf("file has %q, %v; want %q", text, err, want)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) != 2 {
			t.Errorf("folder has %v, %v; want the file and the link", left, err)
		}
	}
	if err := Replace(link, []byte("edited by another"), []byte("after")); err == nil {
		t.Error("a text that was edited meanwhile was replaced")
	}
	holds("before")
	must.OK(t, Replace(link, []byte("before"), []byte("after")))
	holds("after")
	if info, err := os.Lstat(link); err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Errorf("link is %v, %v; want a symbolic link still", info.Mode(), err)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("mode %v, %v; want 640", info.Mode(), err)
	}
}
