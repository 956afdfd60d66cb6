//go:build slim

package zoo

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// Each process looks for the folder once, so the test starts another process that
// looks in a given place.
func TestSlimBinary(t *testing.T) {
	if os.Getenv(folderVariable) != "" {
		_, err := (Registry{Cache: t.TempDir()}).Find("face")
		if !errors.Is(err, errNoFolder) {
			t.Fatalf("got %v, want ErrNoFolder", err)
		}
		t.Log(err)
		return
	}
	empty := t.TempDir()
	c := exec.Command(os.Args[0], "-test.run", t.Name()+"$", "-test.v")
	c.Env = append(os.Environ(), folderVariable+"="+empty)
	if out, err := c.CombinedOutput(); err != nil || !strings.Contains(string(out), empty) {
		t.Errorf("%v: %s; want a line that names %s", err, out, empty)
	}
}
