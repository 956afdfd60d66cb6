// Package suites runs what other people wrote to test and measure inference servers, unmodified, against a node.
//
// A suite is a Python program, NAME.py, and what it needs, NAME.txt. Each has its own environment, because their versions of numpy
// and protobuf exclude each other.
package suites

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/penstock/penstock/internal/freeport"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/nodetest"
	"github.com/penstock/penstock/internal/testing/venv"
	"github.com/penstock/penstock/internal/testing/wait"
	"github.com/penstock/penstock/node"
)

// binaryVariable names the program under test.
const binaryVariable = "PENSTOCK_SUITES_BINARY"

func TestMain(m *testing.M) {
	syscall.Umask(0o022) // the functions' user reads the models
	nodetest.Binary = os.Getenv(binaryVariable)
	os.Exit(m.Run())
}

// start starts a node with the built-in models. Its objectives are longer than any test: a machine that is busy must not make
// answers late.
func start(t *testing.T) (nd *node.Node, gateway string) {
	t.Helper()
	if nodetest.Binary == "" {
		t.Skip(binaryVariable + " is not set: make test-suites sets it")
	}
	address, err := freeport.Find()
	must.OK(t, err)
	config := "functions:\n  - {name: face, port: 0, slo: 20s}\n  - {name: detect, port: 0, slo: 20s}\n  - {name: fashion, port: 0, slo: 20s}\n"
	nd = nodetest.Start(t, node.Options{Config: config, Gateway: address})
	wait.For(t, "the gateway to be ready", func() bool {
		response, err := http.Get("http://" + address.String() + "/v2/health/ready")
		if err != nil {
			return false
		}
		response.Body.Close()
		return response.StatusCode == http.StatusOK
	})
	return nd, address.String()
}

// suite runs a suite's program in its environment.
func suite(t *testing.T, name string, arguments ...string) {
	t.Helper()
	dir, _ := venv.Make(t, name+".txt")
	command := exec.CommandContext(t.Context(), filepath.Join(dir, "bin/python"), append([]string{name + ".py"}, arguments...)...)
	command.Env = append(os.Environ(), "PYTHONPATH=../../python", "PYTHONDONTWRITEBYTECODE=1")
	out, err := command.CombinedOutput()
	t.Logf("%s", out)
	must.OK(t, err)
}

// MLPerf's LoadGen finds no errors in three scenarios. Each takes ten minutes by MLPerf's rules.
func TestLoadGen(t *testing.T) {
	nd, _ := start(t)
	seconds := "10"
	if os.Getenv("NIGHTLY") != "" {
		seconds = "600"
	}
	suite(t, "loadgen", seconds, nodetest.Address(t, nd, "detect"), nodetest.Address(t, nd, "fashion"))
}
