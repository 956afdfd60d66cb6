package traffic

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/loadgen"
)

func TestRates(t *testing.T) {
	for _, text := range []string{"NaN", "-1", "Inf", "1e8", "ten"} {
		_, err := New(control.Status{Functions: []control.FunctionStatus{{Name: "face"}}}, Options{Arrivals: "poisson", Rates: map[string]string{"face": text}})
		if want := "--rate face=" + text + ": want 0 to 10000000 requests per second"; err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// A function that replays a capture does not listen: its node would seem not to
// answer.
func TestReplayedFunction(t *testing.T) {
	node := control.Status{Functions: []control.FunctionStatus{
		{Name: "played", Replay: "a.pcap", SLOMillis: 25, Input: control.InputStatus{Bytes: 4}},
		{Name: "fn", SLOMillis: 25, Port: 1, Input: control.InputStatus{Bytes: 4}},
	}}
	p, err := New(node, Options{Arrivals: "poisson", Streams: 1, Spec: loadgen.Spec{Duration: 1}})
	if err != nil || len(p.Spec.Functions) != 1 || p.Spec.Functions[0].Name != "fn" {
		t.Errorf("%v: %+v", err, p)
	}
	want := "played plays the capture a.pcap and receives nothing from the network; choose another function"
	for _, o := range []Options{{Arrivals: "poisson", Rates: map[string]string{"played": "1"}}, {Arrivals: "poisson", Search: "played"}} {
		if _, err := New(node, o); err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
	if _, err := New(control.Status{Functions: node.Functions[:1]}, Options{Arrivals: "poisson"}); err == nil {
		t.Error("nothing to send to is no error")
	}
}

func TestReadPhotos(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "notes.txt")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
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
