package sweep

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/penstock/penstock/models/profile"
)

func TestEveryPublishedProfileCanBeDrawn(t *testing.T) {
	profiles, err := profile.ReadDir(os.DirFS("../../plan/testdata/parvagpu/prof_data"))
	if err != nil {
		t.Fatal(err)
	}
	for model, p := range profiles {
		var b bytes.Buffer
		if err := Plot(&b, p); err != nil {
			t.Fatalf("%s: %v", model, err)
		}
		text := b.String()
		for d := xml.NewDecoder(&b); ; {
			if _, err := d.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%s: no XML: %v", model, err)
			}
		}
		if !strings.Contains(text, "batch 128") || !strings.Contains(text, "share: GPCs") {
			t.Errorf("%s: the drawing names no batch 128, or no share", model)
		}
	}
}

func TestAProfileOfNothingIsAnEmptyDrawing(t *testing.T) {
	for _, points := range [][]profile.Point{nil, {{Share: 1, Batch: 1, Processes: 1, OOM: true}}, {{Share: 1, Batch: 1, Processes: 1, Throughput: 1, Latency: 1}}} {
		if err := Plot(io.Discard, profile.Profile{Points: points}); err != nil {
			t.Errorf("%v: %v", points, err)
		}
	}
}
