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

// childEnv names what this process plays for a test that needs a process of its
// own: the library is loaded once.
const childEnv = "PENSTOCK_CUDA_CHILD"

// children say what they found; registered by the files that have them.
var children = map[string]func() error{}

func TestMain(m *testing.M) {
	if name := os.Getenv(childEnv); name != "" {
		fmt.Print(children[name]())
		os.Exit(0)
	}
	cudatest.Child()
	cudafake.Main(m, cudafake.Kernels(cudatest.Kernels))
}

// inChild runs a child and returns what it said: the text of its error, "<nil>"
// where it found none.
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

func TestTheSuiteOnTheFake(t *testing.T) {
	cudafake.Check(t)
	cudatest.Run(t)
}
