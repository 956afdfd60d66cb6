package fleet

import (
	"os"
	"syscall"
	"testing"
)

// TestMain makes the tests' folders private to this user, even if the shell's umask lets
// the group write.
func TestMain(m *testing.M) {
	syscall.Umask(0o022)
	os.Exit(m.Run())
}
