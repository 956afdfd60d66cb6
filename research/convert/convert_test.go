// Package convert has the scripts that make models. Its tests run them if there is a python3
// with numpy and onnx.
package convert

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/models"
)

// python returns a python3 that has numpy and onnx: PENSTOCK_PYTHON, the one in PATH, or the
// distribution's, for which its package manager installs them.
func python(t *testing.T) string {
	t.Helper()
	for _, name := range []string{os.Getenv("PENSTOCK_PYTHON"), "python3", "/usr/bin/python3"} {
		if name != "" && exec.Command(name, "-c", "import numpy, onnx").Run() == nil {
			return name
		}
	}
	t.Skip("no python3 has numpy and onnx (apt-get install python3-onnx, pip install onnx, or PENSTOCK_PYTHON=...): the export of models is not tested here")
	return ""
}

func export(t *testing.T, args ...string) (string, error) {
	t.Helper()
	const script = "export_torchvision.py"
	if _, err := os.ReadFile(script); err != nil { // the test cache must notice a changed script
		t.Fatal(err)
	}
	out, err := exec.Command(python(t), append([]string{script, "--jobs", "1"}, args...)...).CombinedOutput()
	return string(out), err
}

// The same model gives the same bytes, and its card is valid. The file that is written last
// shows that the export is complete.
func TestExportReproducible(t *testing.T) {
	var files [2][]byte
	for i := range files {
		dir := t.TempDir()
		if out, err := export(t, dir, "mobilenetv2"); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		card, err := models.ReadCard(filepath.Join(dir, "mobilenetv2", "card.yaml"))
		must.OK(t, err)
		if card.Input.TensorType != models.F16 || card.MaxBatch() != 32 || card.Input.WireBytes() != 224*224*3 {
			t.Errorf("the card says %+v", card)
		}
		if files[i], err = os.ReadFile(card.Model); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(filepath.Join(dir, "exported.json"))
		must.OK(t, err)
		var output struct {
			Models map[string]struct{ Parameters, Bytes int }
		}
		must.OK(t, json.Unmarshal(text, &output))
		// torchvision's 3,504,872 parameters include 2 × 17,056 of batch normalisation. The
		// export has one bias per channel instead.
		if m := output.Models["mobilenetv2"]; m.Parameters != 3504872-2*17056+17056 || m.Bytes != len(files[i]) {
			t.Errorf("exported.json says %+v, the file has %d bytes", m, len(files[i]))
		}
	}
	if !bytes.Equal(files[0], files[1]) {
		t.Error("two exports differ")
	}
}

// Variants have other weights, and their cards other names.
func TestExportVariants(t *testing.T) {
	dir := t.TempDir()
	if out, err := export(t, dir, "--variants", "2", "mobilenetv2"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var files [2][]byte
	for i, name := range []string{"mobilenetv2", "mobilenetv2-2"} {
		card, err := models.ReadCard(filepath.Join(dir, name, "card.yaml"))
		must.OK(t, err)
		if card.Name != name {
			t.Errorf("card of %s has the name %s", name, card.Name)
		}
		if files[i], err = os.ReadFile(card.Model); err != nil {
			t.Fatal(err)
		}
	}
	if len(files[0]) != len(files[1]) || bytes.Equal(files[0], files[1]) {
		t.Errorf("files of %d and %d bytes are equal: %v; want the same size and other weights", len(files[0]), len(files[1]), bytes.Equal(files[0], files[1]))
	}
}

// The detector's card has the shape that its decoder reads.
func TestExportDetector(t *testing.T) {
	dir := t.TempDir()
	if out, err := export(t, dir, "yolov8n"); err != nil || !strings.Contains(out, "'parameters': 3151888") {
		t.Fatalf("%v: %s", err, out)
	}
	card, err := models.ReadCard(filepath.Join(dir, "yolov8n", "card.yaml"))
	must.OK(t, err)
	if f, err := card.Family(); err != nil || f.(*models.YOLO).Style != models.YOLOv8 || f.(*models.YOLO).NumClasses != 80 {
		t.Errorf("the decoder is %+v, %v", f, err)
	}
}

// An export keeps finished files; remains of an interrupted export do not count.
func TestExportResumes(t *testing.T) {
	dir := t.TempDir()
	if out, err := export(t, dir, "mobilenetv2"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	model := filepath.Join(dir, "mobilenetv2", "model.onnx")
	must.OK(t, os.WriteFile(model, []byte("changed by hand"), 0o600))
	if out, err := export(t, dir, "mobilenetv2"); err != nil || out != "" {
		t.Fatalf("once more: %v, %q, want nothing done", err, out)
	}
	must.OK(t, os.Remove(filepath.Join(dir, "exported.json")))
	if out, err := export(t, dir, "mobilenetv2"); err != nil || !strings.Contains(out, "sha256") {
		t.Fatalf("without exported.json: %v, %q, want it made again", err, out)
	}
	if info, err := os.Stat(model); err != nil || info.Size() < 1<<20 {
		t.Errorf("the model was not made again: %v, %v", info, err)
	}
}

func TestExportUnknownModel(t *testing.T) {
	out, err := export(t, t.TempDir(), "resnet51")
	if err == nil || !strings.Contains(out, "no model resnet51; there are: alexnet, mobilenetv2") {
		t.Errorf("resnet51: %v, %q", err, out)
	}
}
