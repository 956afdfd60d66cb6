package e2e

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/nodetest"
)

// TestFolderOfAnotherUser starts a node as root after another user has made the default
// runtime folder. The node must report that in one line, and leave the folder
// unchanged.
func TestFolderOfAnotherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to make a folder of another user")
	}
	t.Parallel()
	const nobody = 65534
	for _, row := range []struct {
		name string
		make func(folder, other string) error
		want string
	}{
		{"folder", func(folder, _ string) error {
			if err := os.Mkdir(folder, 0o777); err != nil {
				return err
			}
			if err := os.Chmod(folder, 0o777); err != nil { // whatever the umask is
				return err
			}
			return os.Chown(folder, nobody, nobody)
		}, "is owned by user 65534"},
		{"link", func(folder, other string) error {
			if err := os.Symlink(other, folder); err != nil {
				return err
			}
			return os.Lchown(folder, nobody, nobody)
		}, "is a symbolic link"},
	} {
		t.Run(row.name, func(t *testing.T) {
			temporary, other := t.TempDir(), t.TempDir()
			folder := filepath.Join(temporary, "penstock-0")
			must.OK(t, row.make(folder, other))

			up := exec.CommandContext(nodetest.Context(t), penstock, "up")
			up.Env = append(os.Environ(), "TMPDIR="+temporary, "XDG_RUNTIME_DIR=")
			out, err := up.CombinedOutput()
			if err == nil || bytes.Count(out, []byte("\n")) != 1 || !strings.Contains(string(out), folder) || !strings.Contains(string(out), row.want) {
				t.Errorf("penstock up: %v, want one line that names %s and says %q:\n%s", err, folder, row.want, out)
			}
			for _, dir := range []string{folder, other} {
				if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
					t.Errorf("%s holds %v, %v; want nothing", dir, entries, err)
				}
			}
		})
	}
}
