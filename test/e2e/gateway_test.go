package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/nodetest"
	"github.com/penstock/penstock/internal/testing/tinymodel"
	"github.com/penstock/penstock/internal/testing/wait"
	pictures "github.com/penstock/penstock/models/picture"
	"github.com/penstock/penstock/models/zoo"
	"github.com/penstock/penstock/node"
)

// startWithGateway starts a node with the function face, more of a configuration, and a gateway that
// listens.
func startWithGateway(t testing.TB, more ...string) (nd *node.Node, url string) {
	t.Helper()
	address := freePort(t)
	nd = startWith(t, node.Options{
		Config:  "functions:\n  - {name: face, port: 0, slo: 5s}\n  - {name: fashion, port: 0, slo: 5s}\n" + strings.Join(more, ""),
		Gateway: address, GatewayOptions: []string{"load: true", "shared_memory: true"},
	})
	url = "http://" + address.String()
	wait.For(t, "the gateway to be ready", func() bool { return gatewayReady(url, "face") })
	return nd, url
}

func gatewayReady(url, function string) bool {
	response, err := http.Get(url + "/v2/models/" + function + "/ready")
	if err != nil {
		return false
	}
	response.Body.Close()
	return response.StatusCode == http.StatusOK
}

// photoOf is a bundled picture with a face.
func photoOf(t *testing.T) []byte {
	t.Helper()
	content, err := fs.ReadFile(zoo.PictureFS(), "astronaut.jpg")
	must.OK(t, err)
	return content
}

// found is the JSON of `penstock infer` with one picture.
type found struct {
	Found []struct {
		Label string
		Box   []int
	}
}

// A photo has the same box over HTTP and by penstock infer, before and after the gateway was
// killed.
func TestGateway(t *testing.T) {
	nd, url := startWithGateway(t)
	photo := photoOf(t)
	file := filepath.Join(t.TempDir(), "astronaut.jpg")
	must.OK(t, os.WriteFile(file, photo, 0o600))
	text, err := exec.Command(penstock, "infer", "--runtime-dir", nd.Dir, "-o", "json", "face", file).Output()
	must.OK(t, err)
	var direct found
	if err := json.Unmarshal(text, &direct); err != nil || len(direct.Found) != 1 || direct.Found[0].Label != "face" {
		t.Fatalf("penstock infer: %s, %v", text, err)
	}

	infer := func() {
		t.Helper()
		response, err := http.Post(url+"/v2/models/face/infer", "image/jpeg", bytes.NewReader(photo))
		must.OK(t, err)
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		must.OK(t, err)
		box := direct.Found[0].Box
		if want := fmt.Sprintf(`"data":[%d,%d,%d,%d]`, box[0], box[1], box[2], box[3]); !strings.Contains(string(text), want) {
			t.Errorf("%s %s, want the box of penstock infer, %s", response.Status, text, want)
		}
	}
	infer()

	nodetest.Kill(t, nodetest.Child(t, nd, "gateway"))
	wait.For(t, "the gateway to be away", func() bool { return !gatewayReady(url, "face") })
	wait.For(t, "the gateway to be back", func() bool { return gatewayReady(url, "face") })
	infer()
}

// All threads of the gateway have a lower priority than other processes, and its session has it too:
// pictures over HTTP do not take the CPUs from requests over UDP.
func TestGatewayPriority(t *testing.T) {
	nd, url := startWithGateway(t)
	response, err := http.Post(url+"/v2/models/face/infer", "image/jpeg", bytes.NewReader(photoOf(t))) // more threads
	must.OK(t, err)
	response.Body.Close()
	checked := 0
	for _, p := range nodetest.Processes(nd.Dir) {
		threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", p.PID))
		must.OK(t, err)
		for _, thread := range threads {
			id, _ := strconv.Atoi(thread.Name())
			raw, err := unix.Getpriority(unix.PRIO_PROCESS, id)
			if errors.Is(err, unix.ESRCH) {
				continue
			}
			nice := 20 - raw
			if p.Command == "gateway" && nice != 10 || p.Command == "manager" && nice > 0 || err != nil {
				t.Errorf("thread %d of %s has nice %d, %v", id, p.Command, nice, err)
			}
			checked++
		}
		group, err := os.ReadFile(fmt.Sprintf("/proc/%d/autogroup", p.PID))
		if err == nil && strings.HasSuffix(strings.TrimSpace(string(group)), "nice 10") != (p.Command == "gateway") {
			t.Errorf("the session of %s: %s", p.Command, group)
		}
	}
	if checked < 10 {
		t.Errorf("found %d threads", checked)
	}
}

// triton runs a script of testdata with Triton's own client library, and returns what it prints.
func triton(t *testing.T, script, url string, arguments ...string) string {
	t.Helper()
	python := os.Getenv("PENSTOCK_TRITON_PYTHON")
	if python == "" {
		t.Skip("not on this machine: PENSTOCK_TRITON_PYTHON names no python3 with tritonclient[grpc,http] (.ci/run installs it)")
	}
	command := exec.Command(python, append([]string{"testdata/" + script, strings.TrimPrefix(url, "http://")}, arguments...)...)
	var stderr bytes.Buffer
	command.Stderr = &stderr
	text, err := command.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, stderr.Bytes())
	}
	return string(text)
}

// Triton's own client library gets the same boxes in all ways to ask, and they are those of the
// model on the wire.
func TestTritonClient(t *testing.T) {
	_, url := startWithGateway(t)
	photo, err := pictures.Decode(t.Context(), photoOf(t))
	must.OK(t, err)
	pixels, _ := pictures.Resize(photo, faceInput)
	file := filepath.Join(t.TempDir(), "picture")
	must.OK(t, os.WriteFile(file, pixels, 0o600))
	text := triton(t, "triton.py", url, "face", file)
	lines := strings.Split(strings.TrimSpace(text), "\n")
	if len(lines) != 5 {
		t.Fatalf("%d answers: %s", len(lines), text)
	}
	var first struct {
		Boxes  [][4]float64
		Labels []string
	}
	if err := json.Unmarshal([]byte(lines[0]), &first); err != nil || len(first.Boxes) != 1 || first.Labels[0] != "face" {
		t.Fatalf("%s, %v", lines[0], err)
	}
	for i, want := range []float64{0.350, 0.160, 0.535, 0.346} { // of a photo of 512 × 512 pixels
		if math.Abs(first.Boxes[0][i]-want) > 0.01 {
			t.Errorf("box %v, want about %v at %d", first.Boxes[0], want, i)
		}
	}
	for _, line := range lines[1:] {
		if line != lines[0] {
			t.Errorf("%s, want %s", line, lines[0])
		}
	}
}

// Triton's client of gRPC gets the answers that its client of HTTP gets.
func TestTritonGRPC(t *testing.T) {
	_, url := startWithGateway(t)
	photo, err := pictures.Decode(t.Context(), photoOf(t))
	must.OK(t, err)
	pixels, _ := pictures.Resize(photo, faceInput)
	file := filepath.Join(t.TempDir(), "picture")
	must.OK(t, os.WriteFile(file, pixels, 0o600))
	triton(t, "grpcclient.py", url, "face", file)
}

// Triton's clients of HTTP and gRPC use the extensions of the protocol: pictures as BYTES, classification, compression, shared memory
// and the repository.
func TestTritonExtensions(t *testing.T) {
	_, url := startWithGateway(t)
	file := filepath.Join(t.TempDir(), "astronaut.jpg")
	must.OK(t, os.WriteFile(file, photoOf(t), 0o600))
	triton(t, "extensions.py", url, file)
}

// Triton's client names the inputs of a model, in any order: y = x * k * sr, with sr a constant.
func TestTritonInputs(t *testing.T) {
	nd, url := startWithGateway(t)
	dir, err := openFolder("", "models")
	must.OK(t, err)
	t.Cleanup(func() { must.OK(t, os.RemoveAll(dir)) })
	x := []int64{tinymodel.Dynamic, 3}
	model := tinymodel.Model{
		Inputs:  []tinymodel.Value{{Name: "x", Type: tinymodel.F32, Dims: x}, {Name: "k", Type: tinymodel.I64, Dims: []int64{tinymodel.Dynamic, 1}}, {Name: "sr", Type: tinymodel.F32}},
		Outputs: []tinymodel.Value{{Name: "y", Type: tinymodel.F32, Dims: x}},
		Nodes: []tinymodel.Node{
			{Op: "Cast", Inputs: []string{"k"}, Outputs: []string{"factor"}, Attribute: "to", Int: int64(tinymodel.F32)},
			{Op: "Mul", Inputs: []string{"x", "factor"}, Outputs: []string{"xk"}},
			{Op: "Mul", Inputs: []string{"xk", "sr"}, Outputs: []string{"y"}},
		},
	}
	file := filepath.Join(dir, "product.onnx")
	must.OK(t, os.WriteFile(file, model.Encode(), 0o644))
	if out, err := run(t, nd.Dir, "if", "add", "product", "--model", file, "--slo", "5s"); err != nil {
		t.Fatalf("add: %v\n%s", err, out)
	}
	wait.For(t, "the gateway to know the function", func() bool { return gatewayReady(url, "product") })
	triton(t, "inputs.py", url, "product")
}
