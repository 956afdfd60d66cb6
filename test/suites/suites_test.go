// Package suites runs what other people wrote to test and measure inference servers, unmodified, against a node.
//
// A suite is a Python program, NAME.py, and what it needs, NAME.txt. Each has its own environment, because their versions of numpy
// and protobuf exclude each other.
package suites

import (
	"encoding/csv"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/penstock/penstock/internal/freeport"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/nodetest"
	"github.com/penstock/penstock/internal/testing/tinymodel"
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
// answers late. More is appended to its configuration.
func start(t *testing.T, more ...string) (nd *node.Node, gateway string) {
	t.Helper()
	if nodetest.Binary == "" {
		t.Skip(binaryVariable + " is not set: make test-suites sets it")
	}
	address, err := freeport.Find()
	must.OK(t, err)
	config := "functions:\n  - {name: face, port: 0, slo: 20s}\n  - {name: detect, port: 0, slo: 20s}\n  - {name: fashion, port: 0, slo: 20s}\n"
	nd = nodetest.Start(t, node.Options{Config: config + strings.Join(more, ""), Gateway: address, GatewayOptions: []string{"shared_memory: true"}})
	ready(t, address.String(), "/v2/health/ready")
	return nd, address.String()
}

// ready waits until the gateway answers 200 for a path.
func ready(t *testing.T, gateway, path string) {
	t.Helper()
	wait.For(t, "the gateway to answer "+path, func() bool {
		response, err := http.Get("http://" + gateway + path)
		if err != nil {
			return false
		}
		response.Body.Close()
		return response.StatusCode == http.StatusOK
	})
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

// Triton's perf_analyzer measures over HTTP and gRPC, and reads the server's times. It reports nothing unless three windows agree
// within 10 %, which they do not on a busy machine. Here a window has a number of requests, and any three agree.
func TestPerfAnalyzer(t *testing.T) {
	_, gateway := start(t)
	dir, packages := venv.Make(t, "perf_analyzer.txt")
	for name, arguments := range map[string]string{
		"HTTP":           "-i http --concurrency-range 1:4:3",
		"HTTP Poisson":   "-i http --request-rate-range 20 --request-distribution poisson",
		"HTTP JSON":      "-i http --input-tensor-format json",
		"HTTP memory":    "-i http --shared-memory system",
		"gRPC":           "-i grpc --concurrency-range 1:4:3",
		"gRPC Poisson":   "-i grpc --request-rate-range 20 --request-distribution poisson",
		"gRPC batches":   "-i grpc -b 3",
		"gRPC memory":    "-i grpc --shared-memory system",
		"gRPC streaming": "-i grpc --streaming --async --concurrency-range 1:4:3",
	} {
		t.Run(name, func(t *testing.T) {
			report := filepath.Join(t.TempDir(), "report.csv")
			words := strings.Fields("-m face --measurement-mode count_windows --measurement-request-count 20 -s 999 " + arguments)
			command := exec.CommandContext(t.Context(), filepath.Join(dir, "bin/perf_analyzer"), append(words, "-u", gateway, "-f", report)...)
			command.Env = append(os.Environ(), "LD_LIBRARY_PATH="+filepath.Join(packages, "nvidia/cuda_runtime/lib"))
			out, err := command.CombinedOutput()
			t.Logf("%s", out)
			if strings.Contains(string(out), "libb64.so") {
				t.Skip("needs libb64 (apt-get install libb64-0d)")
			}
			must.OK(t, err)

			file, err := os.Open(report)
			must.OK(t, err)
			defer file.Close()
			rows, err := csv.NewReader(file).ReadAll()
			must.OK(t, err)
			levels := 1
			if strings.Contains(arguments, "1:4:3") {
				levels = 2
			}
			if len(rows) != 1+levels {
				t.Fatalf("the report has %d rows, want a header and %d", len(rows), levels)
			}
			for _, column := range []string{"Inferences/Second", "Server Compute Infer", "p99 latency"} {
				i := slices.Index(rows[0], column)
				if i < 0 {
					t.Fatalf("the report has no column %q: %q", column, rows[0])
				}
				for _, row := range rows[1:] {
					if v, err := strconv.ParseFloat(row[i], 64); err != nil || v <= 0 {
						t.Errorf("%s is %q, want more than 0", column, row[i])
					}
				}
			}
		})
	}
}

// add adds a function that serves a model, from a folder that all users may read. Without a card it is drafted.
func add(t *testing.T, nd *node.Node, gateway, dir, name, card string, model []byte) {
	t.Helper()
	file := filepath.Join(dir, name+".onnx")
	must.OK(t, os.WriteFile(file, model, 0o644))
	if card != "" {
		file = filepath.Join(dir, name+".yaml")
		must.OK(t, os.WriteFile(file, fmt.Appendf(nil, "name: %s\nversion: 1\nframework: onnx\nmodel: %[1]s.onnx\n%s", name, card), 0o644))
	}
	command := exec.CommandContext(t.Context(), nodetest.Binary, "if", "add", name, "--model", file, "--slo", "20s", "--runtime-dir", nd.Dir)
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("add: %v\n%s", err, out)
	}
	ready(t, gateway, "/v2/models/"+name+"/ready")
}

func TestKServe(t *testing.T) {
	t.Parallel()
	_, gateway := start(t)
	suite(t, "kserve_client", gateway)
}

// Frigate's detectors deepstack and zmq get the answers of Penstock's client.
func TestFrigate(t *testing.T) {
	t.Parallel()
	endpoint := "ipc://" + filepath.Join(t.TempDir(), "s")
	nd, gateway := start(t, fmt.Sprintf("zeromq:\n  - {address: %q, frigate: detect}\n", endpoint))
	suite(t, "frigate", gateway, endpoint, nodetest.Address(t, nd, "detect"), nd.Dir, nodetest.Binary, photo)
}

// A client of litserve gets its answer by the form that it sends to litserve's server.
func TestLitServe(t *testing.T) {
	t.Parallel()
	_, gateway := start(t)
	suite(t, "litserve_client", gateway, photo)
}

// photo is a picture of a person.
const photo = "../../models/zoo/pictures/astronaut.jpg"

// A client that generates requests from the definition of the protocol, valid and invalid ones, gets the answers of the
// definition.
func TestDefinition(t *testing.T) {
	t.Parallel()
	nd, gateway := start(t)
	dir, _ := venv.Make(t, "openinference.txt")
	x := []int64{tinymodel.Dynamic, 4}
	model := tinymodel.Model{
		Inputs:  []tinymodel.Value{{Name: "x", Type: tinymodel.I64, Dims: x}},
		Outputs: []tinymodel.Value{{Name: "y", Type: tinymodel.I64, Dims: x}},
		Nodes:   []tinymodel.Node{{Op: "Neg", Inputs: []string{"x"}, Outputs: []string{"y"}}},
	}
	add(t, nd, gateway, dir, "tensor", "", model.Encode())

	definition, err := filepath.Abs("openinference.yaml")
	must.OK(t, err)
	command := exec.CommandContext(t.Context(), filepath.Join(dir, "bin/st"), "run", definition, "--url", "http://"+gateway,
		"--phases", "coverage,fuzzing", "--max-examples", "50", "--seed", "1", "--generation-database", "none")
	command.Dir = dir // it writes there
	out, err := command.CombinedOutput()
	t.Logf("%s", out)
	must.OK(t, err)
}
