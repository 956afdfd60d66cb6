package decode

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/wire"
)

// referenceCase is a file of testdata/reference.py: the outputs for one picture, and the answer of another package for
// them.
type referenceCase struct {
	Card    json.RawMessage
	Outputs []string
	Want    struct {
		Boxes, Polygons []referenceBox
		Classes         [][2]float64
		Values, Cells   []float64
		Points          [][3]float64
		Text            *string
		Score           float64
		Tolerance       float64
	}
}

type referenceBox struct {
	Class   int
	Score   float64
	Box     [4]float64
	Points  [][3]float64
	Mask    []string
	Corners [][2]float64
}

func readReference(t testing.TB, path string) (referenceCase, *models.Card, [][]byte) {
	t.Helper()
	var c referenceCase
	text, err := os.ReadFile(path)
	must.OK(t, err)
	must.OK(t, json.Unmarshal(text, &c))
	file := filepath.Join(t.TempDir(), "card.yaml")
	must.OK(t, os.WriteFile(file, c.Card, 0o600))
	card, err := models.ReadCard(file)
	must.OK(t, err)
	var outputs [][]byte
	for _, o := range c.Outputs {
		data, err := base64.StdEncoding.DecodeString(o)
		must.OK(t, err)
		outputs = append(outputs, data)
	}
	return c, card, outputs
}

// TestReference compares with the answers in testdata.
func TestReference(t *testing.T) { compareReferences(t, "testdata") }

// TestNewReference has reference.py run the code of the other packages, and compares with its answers.
func TestNewReference(t *testing.T) {
	python := os.Getenv("PENSTOCK_REFERENCE_PYTHON")
	if python == "" {
		t.Skip("not on this machine: PENSTOCK_REFERENCE_PYTHON names no python3 with testdata/requirements.txt (.ci/run installs it)")
	}
	dir := t.TempDir()
	out, err := exec.Command(python, "testdata/reference.py", dir).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	compareReferences(t, dir)
}

func compareReferences(t *testing.T, dir string) {
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	must.OK(t, err)
	if len(files) == 0 {
		t.Fatal("no references")
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".json"), func(t *testing.T) {
			c, card, outputs := readReference(t, file)
			d := newDecoder(t, card)
			payload, kind, err := d.Append(nil, outputs)
			must.OK(t, err)
			if len(payload) > d.ResultBytes() || d.ResultBytes() != card.ResultBytes() {
				t.Errorf("%d bytes, at most %d; the card says %d", len(payload), d.ResultBytes(), card.ResultBytes())
			}
			if err := wire.Check(wire.Kind(kind), payload); err != nil {
				t.Fatal(err)
			}
			c.compare(t, wire.Kind(kind), payload)
			if n := testing.AllocsPerRun(5, func() { payload, _, _ = d.Append(payload[:0], outputs) }); n != 0 {
				t.Errorf("%v allocations per image", n)
			}
		})
	}
}

// compare compares an answer with the reference's.
func (c *referenceCase) compare(t *testing.T, kind wire.Kind, payload []byte) {
	t.Helper()
	w := &c.Want
	var got wire.Content
	must.OK(t, got.Decode(kind, payload))
	switch kind {
	case wire.KindTopK:
		equal(t, "classes", len(got.Classes), len(w.Classes))
		for i, got := range got.Classes {
			if int(w.Classes[i][0]) != int(got.Class) || !about(got.P, w.Classes[i][1]) {
				t.Errorf("class %d is %v, want %v", i, got, w.Classes[i])
			}
		}
	case wire.KindEmbedding:
		equal(t, "values", len(got.Values), len(w.Values))
		for i, v := range got.Values {
			if !about(v, w.Values[i]) {
				t.Errorf("value %d is %v, want %v", i, v, w.Values[i])
			}
		}
	case wire.KindText:
		if w.Text == nil || got.Text != *w.Text || !about(got.TextScore, w.Score) {
			t.Errorf("read %q with %v, want %q with %v", got.Text, got.TextScore, *w.Text, w.Score)
		}
	case wire.KindMap:
		equal(t, "cells", len(got.Map.Classes), len(w.Cells))
		for i, class := range got.Map.Classes {
			if int(class) != int(w.Cells[i]) {
				t.Fatalf("cell %d is %d, want %v", i, class, w.Cells[i])
			}
		}
	case wire.KindPolygons:
		c.comparePolygons(t, got.Polygons)
	case wire.KindBoxes:
		c.compareBoxes(t, got.Boxes)
	case wire.KindPoints:
		if w.Points != nil { // of the whole picture
			comparePoints(t, got.Points, w.Points)
			return
		}
		for i, at := range c.compareBoxes(t, got.Boxes) {
			comparePoints(t, got.Points[i*got.PerBox:][:got.PerBox], w.Boxes[at].Points)
		}
	case wire.KindMasks:
		for i, at := range c.compareBoxes(t, got.Boxes) {
			compareMask(t, &got.Masks[i], got.Rows, got.Columns, w.Boxes[at].Mask)
		}
	default:
		t.Fatalf("kind %v", kind)
	}
}

func equal(t *testing.T, what string, got, want int) {
	t.Helper()
	if got != want {
		t.Fatalf("%d %s, want %d", got, what, want)
	}
}

// about allows for other orders of sums.
func about(got float32, want float64) bool {
	return math.Abs(float64(got)-want) <= 2e-4*max(1, math.Abs(want))
}

// compareBoxes returns the index of the reference's box for each box. Equal scores may be in any order.
func (c *referenceCase) compareBoxes(t *testing.T, boxes []wire.Box) (partners []int) {
	t.Helper()
	equal(t, "boxes", len(boxes), len(c.Want.Boxes))
	taken := make([]bool, len(boxes))
	for i, b := range boxes {
		at := -1
		for j, w := range c.Want.Boxes {
			if !taken[j] && at < 0 && int(b.Class) == w.Class && about(b.Score, w.Score) &&
				about(b.X0, w.Box[0]) && about(b.Y0, w.Box[1]) && about(b.X1, w.Box[2]) && about(b.Y1, w.Box[3]) {
				at, taken[j] = j, true
			}
		}
		if at < 0 {
			t.Fatalf("box %d is %+v, want one of %+v", i, b, c.Want.Boxes)
		}
		partners = append(partners, at)
	}
	return partners
}

func comparePoints(t *testing.T, got []wire.Point, want [][3]float64) {
	t.Helper()
	equal(t, "points", len(got), len(want))
	for i, p := range got {
		if w := want[i]; !about(p.X, w[0]) || !about(p.Y, w[1]) || !about(p.Score, w[2]) {
			t.Errorf("point %d is %v, want %v", i, p, w)
		}
	}
}

func compareMask(t *testing.T, m *wire.Mask, rows, columns int, want []string) {
	t.Helper()
	got := make([]string, rows)
	for y := range got {
		line := []byte(strings.Repeat(".", columns))
		for x := range line {
			inX, inY := x-int(m.X), y-int(m.Y)
			if i := inY*int(m.Columns) + inX; inX >= 0 && inY >= 0 && inX < int(m.Columns) && inY < int(m.Rows) && m.Bits[i/8]>>(i%8)&1 == 1 {
				line[x] = '#'
			}
		}
		got[y] = string(line)
	}
	if g, w := strings.Join(got, "\n"), strings.Join(want, "\n"); g != w {
		t.Errorf("mask\n%s\nwant\n%s", g, w)
	}
}

// comparePolygons finds a polygon of the reference for each. Corners may begin with any of them and go around in either
// direction.
func (c *referenceCase) comparePolygons(t *testing.T, polygons []wire.Polygon) {
	t.Helper()
	tolerance := max(2e-4, c.Want.Tolerance)
	equal(t, "polygons", len(polygons), len(c.Want.Polygons))
	taken := make([]bool, len(polygons))
	for i, p := range polygons {
		found := false
		for j, w := range c.Want.Polygons {
			if !taken[j] && !found && int(p.Class) == w.Class && math.Abs(float64(p.Score)-w.Score) < max(2e-4, 2*c.Want.Tolerance) && sameCorners(p.Points, w.Corners, tolerance) {
				found, taken[j] = true, true
			}
		}
		if !found {
			t.Errorf("polygon %d is %+v, want one of %+v", i, p, c.Want.Polygons)
		}
	}
}

func sameCorners(got []wire.Point, want [][2]float64, tolerance float64) bool {
	n := len(want)
	for _, step := range []int{1, n - 1} {
		for first := range n {
			same := len(got) == n
			for i := range got {
				w := want[(first+i*step)%n]
				same = same && math.Abs(float64(got[i].X)-w[0]) <= tolerance*max(1, math.Abs(w[0])) && math.Abs(float64(got[i].Y)-w[1]) <= tolerance*max(1, math.Abs(w[1]))
			}
			if same {
				return true
			}
		}
	}
	return false
}

// TestLowestScore compares with the answers of cards with a higher threshold.
func TestLowestScore(t *testing.T) {
	files, err := filepath.Glob("testdata/*.json")
	must.OK(t, err)
	for _, file := range files {
		_, card, outputs := readReference(t, file)
		if _, ok := card.Decoder.Params["score_threshold"]; !ok {
			continue
		}
		t.Run(strings.TrimSuffix(filepath.Base(file), ".json"), func(t *testing.T) {
			d := newDecoder(t, card)
			all, kind, err := d.Append(nil, outputs)
			must.OK(t, err)
			var scores []float32
			wire.Narrow(wire.Kind(kind), bytes.Clone(all), func(_ uint16, score float32) bool { scores = append(scores, score); return true })
			lowest := uint16(math.MaxUint16 * scores[len(scores)/2])
			card.Decoder.Params["score_threshold"] = float64(lowest) / math.MaxUint16
			want, _, err := newDecoder(t, card).Append([]byte("before"), outputs)
			must.OK(t, err)

			got, gotKind, err := d.AppendFrom([]byte("before"), outputs, nil, lowest, wire.Place{})
			if err != nil || gotKind != kind || !bytes.Equal(got, want) || len(got) >= len("before")+len(all) {
				t.Errorf("%d bytes of kind %d, %v, want %d of %d", len(got), gotKind, err, len(want), len(all))
			}
			for _, lower := range []uint16{0, 1} {
				if got, _, err := d.AppendFrom(nil, outputs, nil, lower, wire.Place{}); err != nil || !bytes.Equal(got, all) {
					t.Errorf("%d bytes for a lower score than the card's, %v, want %d", len(got), err, len(all))
				}
			}
			if n := testing.AllocsPerRun(5, func() { got, _, _ = d.AppendFrom(got[:0], outputs, nil, lowest, wire.Place{}) }); n != 0 {
				t.Errorf("%v allocations per image", n)
			}
		})
	}
}

// FuzzFamilies decodes arbitrary bytes with the cards of the references. It expects an error, or a valid payload of finite
// numbers within its bounds.
func FuzzFamilies(f *testing.F) {
	f.Add([]byte{0})
	f.Add(tensor(0.9, 0.1, 0.7, 12, 30))
	f.Add(tensor(nan, 1, infinity, -infinity, 0.5, math.MaxFloat32, -math.MaxFloat32))
	f.Add(tensor(math.MaxFloat32, 1e30, -1e30, 1e-40, 3))
	f.Add(tensor(1, 1, 1, 1, 1, 1, 1))
	files, err := filepath.Glob("testdata/*.json")
	must.OK(f, err)
	var cards []*models.Card
	var decoders []*Decoder
	for _, file := range files {
		_, card, _ := readReference(f, file)
		cards, decoders = append(cards, card), append(decoders, newDecoder(f, card))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) == 0 {
			return
		}
		for n, d := range decoders {
			outputs := empty(cards[n])
			next := 0
			for _, o := range outputs {
				for i := range o {
					o[i] = data[next%len(data)]
					next++
				}
			}
			payload, kind, err := d.Append([]byte("before"), outputs)
			if err != nil {
				if !errors.Is(err, errNotANumber) || string(payload) != "before" {
					t.Fatalf("%s: %q, %v", files[n], payload, err)
				}
				continue
			}
			payload = payload[len("before"):]
			if err := wire.Check(wire.Kind(kind), payload); err != nil || len(payload) > d.ResultBytes() {
				t.Fatalf("%s: %d bytes of at most %d, %v", files[n], len(payload), d.ResultBytes(), err)
			}
			for _, v := range numbers(t, wire.Kind(kind), payload) {
				if v*0 != 0 {
					t.Fatalf("%s: %v in the answer", files[n], v)
				}
			}
		}
	})
}

// numbers returns the numbers of an answer.
func numbers(t *testing.T, kind wire.Kind, payload []byte) (all []float32) {
	var c wire.Content
	must.OK(t, c.Decode(kind, payload))
	if kind == wire.KindEmbedding { // the numbers of raw outputs and maps are the model's own
		all = c.Values
	}
	points := c.Points
	for _, p := range c.Polygons {
		all, points = append(all, p.Score), append(points, p.Points...)
	}
	for _, c := range c.Classes {
		all = append(all, c.P)
	}
	for _, b := range c.Boxes {
		all = append(all, b.Score, b.X0, b.Y0, b.X1, b.Y1)
	}
	for _, p := range points {
		all = append(all, p.X, p.Y, p.Score)
	}
	return all
}
