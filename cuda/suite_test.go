//go:build cgo

package cuda_test

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/testing/cudafake"
	"github.com/penstock/penstock/internal/testing/cudatest"
)

// childEnv names the role of this process. Some tests need a separate process, as a
// process loads the library only once.
const childEnv = "PENSTOCK_CUDA_CHILD"

// children maps a role to its function, which returns an error for a failure. The test
// files that need one register it.
var children = map[string]func() error{}

func TestMain(m *testing.M) {
	if name := os.Getenv(childEnv); name != "" {
		fmt.Print(children[name]())
		os.Exit(0)
	}
	cudatest.Child()
	cudafake.Main(m, cudafake.Kernels(cudatest.Kernels))
}

// inChild runs a child process and returns its result: the text of its error, "<nil>"
// if there was none.
func inChild(t *testing.T, name string, env ...string) string {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(append(os.Environ(), childEnv+"="+name), env...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("the other process (%s): %v\n%s", name, err, out)
	}
	return strings.TrimSpace(string(out))
}

func TestSuite(t *testing.T) {
	cudafake.Check(t)
	cudatest.Run(t)
}
