package private

import (
	"os"
	"syscall"
	"testing"
)

// TestMain makes folders of tests private to this user, also if the shell's umask lets the
// group write.
func TestMain(m *testing.M) {
	syscall.Umask(0o022)
	os.Exit(m.Run())
}
