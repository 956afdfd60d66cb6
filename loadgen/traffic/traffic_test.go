package traffic

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/loadgen"
	"github.com/penstock/penstock/loadgen/answer"
	"github.com/penstock/penstock/models"
)

func TestRates(t *testing.T) {
	for _, text := range []string{"NaN", "-1", "Inf", "1e8", "ten"} {
		_, err := New(control.Status{Functions: []control.FunctionStatus{{Name: "face"}}}, Options{Arrivals: "poisson", Rates: map[string]string{"face": text}})
		if want := "--rate face=" + text + ": want 0 to 10000000 requests per second"; err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// A function for cameras does not take requests: its node would seem not to answer.
func TestCameraFunction(t *testing.T) {
	node := control.Status{Functions: []control.FunctionStatus{
		{Name: "seen", Camera: &control.CameraStatus{Format: "gvsp"}, SLOMillis: 25, Input: control.InputStatus{Bytes: 4}},
		{Name: "fn", SLOMillis: 25, Port: 1, Input: control.InputStatus{Bytes: 4}},
	}}
	p, err := New(node, Options{Arrivals: "poisson", Streams: 1, Spec: loadgen.Spec{Duration: 1}})
	if err != nil || len(p.Spec.Functions) != 1 || p.Spec.Functions[0].Name != "fn" {
		t.Errorf("%v: %+v", err, p)
	}
	want := "seen takes pictures of cameras only (format: gvsp); choose another function"
	if _, err := New(node, Options{Arrivals: "poisson", Rates: map[string]string{"seen": "1"}}); err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
	if _, err := New(control.Status{Functions: node.Functions[:1]}, Options{Arrivals: "poisson"}); err == nil {
		t.Error("nothing to send to is no error")
	}
}

func TestReadPhotos(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "notes.txt")
	must.OK(t, os.WriteFile(file, nil, 0o600))
	missing := filepath.Join(dir, "missing")
	for dir, want := range map[string]string{
		missing: "--pictures " + missing + ": no such file or directory",
		file:    "--pictures " + file + ": is a file, want a folder",
		dir:     "--pictures " + dir + ": no PNG or JPEG file in this folder",
	} {
		if _, err := readPhotos(dir); err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// fixed is a reference that gives no answers.
type fixed struct{ Model }

func (fixed) Close() error { return nil }

// TestTolerance checks answers of half precision less exactly than others.
func TestTolerance(t *testing.T) {
	dir := t.TempDir()
	for name, element := range map[string]string{"single": "f32", "half": "f16"} {
		card := fmt.Sprintf(`name: %s
version: 1
framework: "null"
input:
  size: [2, 2, 1]
  wire: {type: u8, layout: hwc}
  tensor: {type: %s, layout: hwc}
outputs: [{name: y, shape: [2]}]
slo: 10ms
`, name, element)
		must.OK(t, os.WriteFile(filepath.Join(dir, name+".yaml"), []byte(card), 0o600))
	}
	for name, want := range map[string]answer.Tolerance{"single": answer.Default, "half": answer.Half} {
		node := control.Status{Functions: []control.FunctionStatus{
			{Name: "fn", Model: filepath.Join(dir, name+".yaml"), SLOMillis: 25, Port: 1, Input: control.InputStatus{Bytes: 4}},
		}}
		made, err := New(node, Options{
			Arrivals: "poisson", Streams: 1, Spec: loadgen.Spec{Duration: 1},
			Reference: func(*models.Card) (Model, error) { return fixed{}, nil },
		})
		must.OK(t, err)
		if got := made.Spec.Functions[0].Tolerance; got != want {
			t.Errorf("%s: tolerance %+v, want %+v", name, got, want)
		}
	}
}
