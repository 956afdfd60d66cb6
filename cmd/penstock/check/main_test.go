package check

import (
	"fmt"
	"os"
	"syscall"
	"testing"

	"github.com/penstock/penstock/internal/testing/cudafake"
	"github.com/penstock/penstock/orchestrator/sandbox"
)

// The tests run on a fake driver, which has one GPU.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == LoadVerb { // a check starts this program as penstock
		if err := LoadModel(os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, "penstock:", err)
			os.Exit(1)
		}
		return
	}
	syscall.Umask(0o022) // runtime folders of tests are private, also if the group may write by default
	sandbox.MaybeLaunch()
	cudafake.Main(m)
}
