// Package models adds models of public packages to a node, each with its file alone or with one line of flags. It compares
// the answers with those of the packages' own code.
//
// A suite is a Python program, NAME.py, and what it needs, NAME.txt. It compares; suite.py says how.
package models

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/penstock/penstock/internal/freeport"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/nodetest"
	"github.com/penstock/penstock/internal/testing/venv"
	"github.com/penstock/penstock/internal/testing/wait"
	"github.com/penstock/penstock/node"
)

const (
	// binaryVariable names the program under test.
	binaryVariable = "PENSTOCK_MODELS_BINARY"
	// centred are the values of pictures as many readers of text take them: -1 to 1, in BGR.
	centred = " --scale 1/255 --mean 0.5 --std 0.5 --colour bgr"
)

// function is what a suite asks for: a model's file in the folder of packages, and flags.
type function struct{ name, model, flags string }

var suites = map[string][]function{
	"detector": {{"detector", "nudenet/320n.onnx", ""}},
	"ocr1": {
		{"find", "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx", "--size 736x736 --decoder polygons" + centred},
		{"turned", "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx", "--size 48x192 --decoder classes" + centred},
		{"text", "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx", ""},
	},
	"ocr3": {
		{"find", "rapidocr/models/PP-OCRv6_det_small.onnx", "--size 736x736 --decoder polygons" + centred},
		{"turned", "rapidocr/models/ch_ppocr_mobile_v2.0_cls_mobile.onnx", "--size 48x192 --decoder classes" + centred},
		{"text", "rapidocr/models/PP-OCRv6_rec_small.onnx", ""},
	},
	"files":  {{"files", "magika/models/standard_v3_3/model.onnx", ""}},
	"speech": {{"speech", "silero_vad/data/silero_vad.onnx", "--size 576"}},
}

func TestMain(m *testing.M) {
	syscall.Umask(0o022) // the functions' user reads the models
	nodetest.Binary = os.Getenv(binaryVariable)
	os.Exit(m.Run())
}

func TestModels(t *testing.T) {
	if nodetest.Binary == "" {
		t.Skip(binaryVariable + " is not set: make test-models sets it")
	}
	for name, functions := range suites {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, packages := venv.Make(t, name+".txt", "--system-site-packages") // numpy and torch are Debian's

			gateway, err := freeport.Find()
			must.OK(t, err)
			nd := nodetest.Start(t, node.Options{Config: "functions: []\n", Gateway: gateway})
			arguments := []string{name + ".py", "http://" + gateway.String()}
			for _, f := range functions {
				add(t, nd, f, filepath.Join(packages, f.model))
				arguments = append(arguments, f.name+"="+nodetest.Address(t, nd, f.name))
			}
			wait.For(t, "the gateway to be ready", func() bool {
				response, err := http.Get("http://" + gateway.String() + "/v2/health/ready")
				if err != nil {
					return false
				}
				response.Body.Close()
				return response.StatusCode == http.StatusOK
			})

			suite := exec.CommandContext(t.Context(), filepath.Join(dir, "bin/python"), arguments...)
			suite.Env = append(os.Environ(), "PYTHONPATH=../../python", "PYTHONDONTWRITEBYTECODE=1")
			out, err := suite.CombinedOutput()
			t.Logf("%s", out)
			must.OK(t, err)
		})
	}
}

// add adds a function. Its objective is longer than any test: a machine that is busy must not make answers late.
func add(t *testing.T, nd *node.Node, f function, model string) {
	t.Helper()
	arguments := append([]string{"if", "add", f.name, "--model", model, "--slo", "20s", "--runtime-dir", nd.Dir}, strings.Fields(f.flags)...)
	out, err := exec.CommandContext(nodetest.Context(t), nodetest.Binary, arguments...).CombinedOutput()
	t.Logf("penstock if add %s --model %s %s\n%s", f.name, filepath.Base(model), f.flags, out)
	if err != nil {
		t.Fatal(err)
	}
}
