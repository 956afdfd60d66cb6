package decode

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/wire"
)

var (
	nan      = float32(math.NaN())
	infinity = float32(math.Inf(1))
)

// tensor returns values as the bytes of an output.
func tensor(values ...float32) []byte {
	var b []byte
	for _, v := range values {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	return b
}

func set(output []byte, i int, v float32) {
	binary.LittleEndian.PutUint32(output[4*i:], math.Float32bits(v))
}

func topKCard(classes int64, params map[string]any) *models.Card {
	return &models.Card{
		Name:    "fashion",
		Outputs: []models.Tensor{{Name: "prob", Type: models.F32, Shape: []int64{classes}}},
		Decoder: models.Decoder{Name: "topk", Params: params},
	}
}

// faceCard is the card of BlazeFace 128, detectCard of NanoDet 416.
func faceCard() *models.Card {
	return &models.Card{
		Name: "face",
		Outputs: []models.Tensor{
			{Name: "Identity:0", Type: models.F32, Shape: []int64{512, 1}},
			{Name: "Identity_1:0", Type: models.F32, Shape: []int64{384, 1}},
			{Name: "Identity_2:0", Type: models.F32, Shape: []int64{512, 16}},
			{Name: "Identity_3:0", Type: models.F32, Shape: []int64{384, 16}},
		},
		Decoder: models.Decoder{Name: "boxes", Params: map[string]any{
			"style": "ssd-anchors", "score_activation": "sigmoid", "scale": int64(128),
			"score_threshold": 0.5, "iou_threshold": 0.3, "max_boxes": int64(16),
			"grids": []any{
				map[string]any{"size": int64(16), "anchors": int64(2), "scores": "Identity:0", "boxes": "Identity_2:0"},
				map[string]any{"size": int64(8), "anchors": int64(6), "scores": "Identity_1:0", "boxes": "Identity_3:0"},
			},
		}},
	}
}

func detectCard() *models.Card {
	level := func(stride int64, classes, boxes string) any {
		return map[string]any{"stride": stride, "classes": classes, "boxes": boxes}
	}
	return &models.Card{
		Name: "detect",
		Outputs: []models.Tensor{
			{Name: "c8", Type: models.F32, Shape: []int64{2704, 80}}, {Name: "c16", Type: models.F32, Shape: []int64{676, 80}}, {Name: "c32", Type: models.F32, Shape: []int64{169, 80}},
			{Name: "b8", Type: models.F32, Shape: []int64{2704, 44}}, {Name: "b16", Type: models.F32, Shape: []int64{676, 44}}, {Name: "b32", Type: models.F32, Shape: []int64{169, 44}},
		},
		Decoder: models.Decoder{Name: "boxes", Params: map[string]any{
			"style": "dfl", "size": int64(416), "bins": int64(11),
			"score_threshold": 0.45, "iou_threshold": 0.5, "max_boxes": int64(64),
			"levels": []any{level(8, "c8", "b8"), level(16, "c16", "b16"), level(32, "c32", "b32")},
		}},
	}
}

func newDecoder(t rapid.TB, card *models.Card) *Decoder {
	t.Helper()
	d, err := New(card)
	must.OK(t, err)
	return d
}

// empty returns outputs of zeros. The scores of faceCard are those of no face.
func empty(card *models.Card) [][]byte {
	var outputs [][]byte
	for i := range card.Outputs {
		o := make([]byte, 4*card.Outputs[i].Elements())
		if card.Name == "face" && i < 2 {
			for j := range len(o) / 4 {
				set(o, j, -20)
			}
		}
		outputs = append(outputs, o)
	}
	return outputs
}

func boxesOf(t rapid.TB, d *Decoder, outputs [][]byte) []wire.Box {
	t.Helper()
	payload, kind, err := d.Append(nil, outputs)
	must.OK(t, err)
	if kind != uint8(wire.KindBoxes) || len(payload) > d.ResultBytes() {
		t.Fatalf("kind %d with %d bytes of at most %d", kind, len(payload), d.ResultBytes())
	}
	found, err := wire.DecodeBoxes(nil, payload)
	must.OK(t, err)
	return found
}

func near(a, b wire.Box) bool {
	close := func(x, y float32) bool { return math.Abs(float64(x-y)) < 1e-5 }
	return a.Class == b.Class && close(a.Score, b.Score) &&
		close(a.X0, b.X0) && close(a.Y0, b.Y0) && close(a.X1, b.X1) && close(a.Y1, b.Y1)
}

func TestTopK(t *testing.T) {
	for _, c := range []struct {
		name   string
		k      int
		values []float32
		want   []wire.Class
	}{
		{"the best two", 2, []float32{0.1, 0.5, 0.2, 0.4}, []wire.Class{{Class: 1, P: 0.5}, {Class: 3, P: 0.4}}},
		{"ties by class", 3, []float32{0.3, 0.3, 0.1, 0.3}, []wire.Class{{Class: 0, P: 0.3}, {Class: 1, P: 0.3}, {Class: 3, P: 0.3}}},
		{"a tie at the end is cut by class", 1, []float32{0.2, 0.2}, []wire.Class{{Class: 0, P: 0.2}}},
		{"all", 3, []float32{-1, -3, -2}, []wire.Class{{Class: 0, P: -1}, {Class: 2, P: -2}, {Class: 1, P: -3}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := newDecoder(t, topKCard(int64(len(c.values)), map[string]any{"k": c.k}))
			payload, kind, err := d.Append([]byte("before"), [][]byte{tensor(c.values...)})
			if err != nil || kind != uint8(wire.KindTopK) {
				t.Fatalf("kind %d, %v", kind, err)
			}
			if want := wire.AppendTopK([]byte("before"), c.want); !slices.Equal(payload, want) {
				got, _ := wire.DecodeTopK(nil, payload[6:])
				t.Errorf("classes %v, want %v", got, c.want)
			}
		})
	}
}

func TestTopKStableSort(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		values := rapid.SliceOfN(rapid.SampledFrom([]float32{-1, 0, 0.25, 0.5, 1}), 1, 40).Draw(t, "values")
		if rapid.Bool().Draw(t, "ascending") {
			slices.Sort(values)
		}
		k := rapid.IntRange(1, len(values)).Draw(t, "k")
		d := newDecoder(t, topKCard(int64(len(values)), map[string]any{"k": k}))
		payload, _, err := d.Append(nil, [][]byte{tensor(values...)})
		must.OK(t, err)
		var all []wire.Class
		for i, v := range values {
			all = append(all, wire.Class{Class: uint16(i), P: v})
		}
		slices.SortStableFunc(all, func(a, b wire.Class) int {
			switch {
			case a.P > b.P:
				return -1
			case a.P < b.P:
				return 1
			}
			return 0
		})
		if want := wire.AppendTopK(nil, all[:k]); !slices.Equal(payload, want) {
			t.Fatalf("%x, want %x", payload, want)
		}
	})
}

func TestRaw(t *testing.T) {
	card := &models.Card{
		Name:    "own",
		Outputs: []models.Tensor{{Name: "a", Type: models.F32, Shape: []int64{3, 1}}},
		Decoder: models.Decoder{Name: "raw"},
	}
	d := newDecoder(t, card)
	payload, kind, err := d.Append(nil, [][]byte{tensor(1, 2, 3)})
	if err != nil || kind != uint8(wire.KindRaw) || d.ResultBytes() != 12 {
		t.Fatalf("kind %d of at most %d bytes, %v", kind, d.ResultBytes(), err)
	}
	if !slices.Equal(payload, tensor(1, 2, 3)) {
		t.Errorf("payload %x", payload)
	}
}

func TestAnchors(t *testing.T) {
	card := faceCard()
	d := newDecoder(t, card)
	outputs := empty(card)
	if got := boxesOf(t, d, outputs); len(got) != 0 {
		t.Fatalf("found %v in nothing", got)
	}
	// Anchor 1 of the cell at x 5, y 3 of the 16 x 16 grid: 8 px right and 4 px up
	// of the cell's centre, 32 x 40 px.
	row := (3*16+5)*2 + 1
	set(outputs[0], row, 2)
	for i, v := range []float32{8, -4, 32, 40} {
		set(outputs[2], row*16+i, v)
	}
	x, y := float32(5.5/16+8.0/128), float32(3.5/16-4.0/128)
	want := wire.Box{Score: 0.880797, X0: x - 16.0/128, Y0: y - 20.0/128, X1: x + 16.0/128, Y1: y + 20.0/128}
	if got := boxesOf(t, d, outputs); len(got) != 1 || !near(got[0], want) {
		t.Fatalf("found %+v, want %+v", got, want)
	}
	// The same face with a lower score from the coarse grid: cell x 2, y 1, anchor 5.
	twin := (1*8+2)*6 + 5
	set(outputs[1], twin, 1)
	for i, v := range []float32{(x - 2.5/8) * 128, (y - 1.5/8) * 128, 34, 40} {
		set(outputs[3], twin*16+i, v)
	}
	if got := boxesOf(t, d, outputs); len(got) != 1 || !near(got[0], want) {
		t.Errorf("found %+v, want the better of two that overlap", got)
	}
	// Another face, far away, with a higher score: it comes first.
	set(outputs[1], 63*6, 3)
	set(outputs[3], 63*6*16+2, 16)
	set(outputs[3], 63*6*16+3, 16)
	if got := boxesOf(t, d, outputs); len(got) != 2 || got[0].Score < got[1].Score {
		t.Errorf("found %+v, want two, the surer first", got)
	}
}

func TestDistributions(t *testing.T) {
	card := detectCard()
	d := newDecoder(t, card)
	outputs := empty(card)
	// Class 15 in the cell at x 10, y 7 of stride 16: 3 strides to the left, 2.5 up
	// (half between two bins), 4 right, and evenly spread below: 5.
	row := 7*26 + 10
	set(outputs[1], row*80+15, 0.75)
	peaks := map[int][]int{0: {3}, 1: {2, 3}, 2: {4}}
	for side, bins := range peaks {
		for _, b := range bins {
			set(outputs[4], row*44+side*11+b, 60)
		}
	}
	x, y := float32(10.5*16), float32(7.5*16)
	want := wire.Box{Class: 15, Score: 0.75, X0: (x - 48) / 416, Y0: (y - 40) / 416, X1: (x + 64) / 416, Y1: (y + 80) / 416}
	if got := boxesOf(t, d, outputs); len(got) != 1 || !near(got[0], want) {
		t.Fatalf("found %+v, want %+v", got, want)
	}
	// A box of another class in the same place is kept, one of the same class is not.
	set(outputs[1], row*80+16, 0.5)
	set(outputs[1], (row+1)*80+15, 0.6)
	copy(outputs[4][4*(row+1)*44:], outputs[4][4*row*44:4*(row+1)*44])
	got := boxesOf(t, d, outputs)
	if len(got) != 2 || got[0].Class != 15 || got[1].Class != 16 {
		t.Errorf("found %+v, want class 15 once and class 16", got)
	}
	// A score below the threshold does not count, a score at the threshold does.
	set(outputs[1], row*80+16, 0.449)
	set(outputs[0], 0, 0.45)
	if got := boxesOf(t, d, outputs); len(got) != 2 || got[1].Class != 0 {
		t.Errorf("found %+v, want class 15 and class 0", got)
	}
}

// A picture that is twice as wide as high: without size and scale, cells follow from input.size.
func TestNotSquare(t *testing.T) {
	dfl := smallCard(0.5, 4)
	dfl.Input.Height, dfl.Input.Width = 32, 64
	dfl.Outputs[0].Shape, dfl.Outputs[1].Shape = []int64{8, 2}, []int64{8, 8}
	delete(dfl.Decoder.Params, "size")
	anchors := &models.Card{
		Name: "anchors", Input: models.Input{Height: 32, Width: 64}, Outputs: dfl.Outputs,
		Decoder: models.Decoder{Name: "boxes", Params: map[string]any{
			"style": "ssd-anchors", "score_activation": "none",
			"grids": []any{map[string]any{"stride": 16, "anchors": 1, "scores": "c", "boxes": "b"}},
		}},
	}
	for name, card := range map[string]*models.Card{"dfl": dfl, "ssd-anchors": anchors} {
		outputs := empty(card)
		set(outputs[0], 6*2+1, 0.75) // the cell at x 2, y 1
		for side := range 4 {
			set(outputs[1], 6*8+2*side+1, 60) // dfl: a stride to each side
		}
		want := wire.Box{Class: 1, Score: 0.75, X0: 24.0 / 64, X1: 56.0 / 64, Y0: 8.0 / 32, Y1: 1}
		if name == "ssd-anchors" {
			for i, v := range []float32{-8, 0, 16, 8} {
				set(outputs[1], 6*8+i, v)
			}
			want = wire.Box{Class: 1, Score: 0.75, X0: 24.0 / 64, X1: 40.0 / 64, Y0: 20.0 / 32, Y1: 28.0 / 32}
		}
		if got := boxesOf(t, newDecoder(t, card), outputs); len(got) != 1 || !near(got[0], want) {
			t.Errorf("%s: found %+v, want %+v", name, got, want)
		}
	}
}

// smallCard is the card of NanoDet with 16 cells, two classes, and pictures of 64 x 64.
func smallCard(overlap float64, most int) *models.Card {
	return &models.Card{
		Name:    "small",
		Outputs: []models.Tensor{{Name: "c", Type: models.F32, Shape: []int64{16, 2}}, {Name: "b", Type: models.F32, Shape: []int64{16, 8}}},
		Decoder: models.Decoder{Name: "boxes", Params: map[string]any{
			"style": "dfl", "size": 64, "bins": 2,
			"score_threshold": 0.5, "iou_threshold": overlap, "max_boxes": most,
			"levels": []any{map[string]any{"stride": 16, "classes": "c", "boxes": "b"}},
		}},
	}
}

// TestSuppression compares with the definition. It goes through the boxes in the order of their
// scores, and keeps a box unless a kept one of its class overlaps it by more than the threshold.
func TestSuppression(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		// Boxes of whole cells have no such overlap: for those the last bit would decide.
		threshold := rapid.SampledFrom([]float64{0.0123, 0.237, 0.519, 1}).Draw(t, "threshold")
		most := rapid.IntRange(1, 32).Draw(t, "max_boxes")
		card := smallCard(threshold, most)
		outputs := empty(card)
		for i := range 32 {
			set(outputs[0], i, rapid.SampledFrom([]float32{0, 0.49, 0.5, 0.6, 0.7, 0.8}).Draw(t, "score"))
		}
		for i := range 128 {
			set(outputs[1], i, rapid.SampledFrom([]float32{-4, 0, 1, 9}).Draw(t, "bin"))
		}
		var want []wire.Box
		for _, b := range allBoxes(outputs) {
			free := true
			for _, k := range want {
				free = free && !(k.Class == b.Class && sharedPart(k, b) > threshold)
			}
			if free && len(want) < most {
				want = append(want, b)
			}
		}
		got := boxesOf(t, newDecoder(t, card), outputs)
		if !slices.EqualFunc(got, want, near) {
			t.Fatalf("found %+v,\nwant %+v", got, want)
		}
	})
}

// allBoxes returns smallCard's boxes of at least its threshold, best first. It decodes them in a
// simpler way.
func allBoxes(outputs [][]byte) []wire.Box {
	var all []wire.Box
	for i := range 32 {
		score, cell := element(outputs[0], i), i/2
		if score < 0.5 {
			continue
		}
		var reach [4]float64 // in parts of the picture
		for side := range reach {
			a, b := element(outputs[1], cell*8+side*2), element(outputs[1], cell*8+side*2+1)
			reach[side] = 16.0 / 64 / (1 + math.Exp(float64(a-b)))
		}
		x, y := (float64(cell%4)+0.5)/4, (float64(cell/4)+0.5)/4
		all = append(all, wire.Box{
			Class: uint16(i % 2), Score: score,
			X0: float32(max(0, x-reach[0])), Y0: float32(max(0, y-reach[1])),
			X1: float32(min(1, x+reach[2])), Y1: float32(min(1, y+reach[3])),
		})
	}
	slices.SortStableFunc(all, func(a, b wire.Box) int { return cmp.Compare(b.Score, a.Score) })
	return all
}

// sharedPart returns the intersection divided by the union.
func sharedPart(a, b wire.Box) float64 {
	area := func(b wire.Box) float64 { return float64(b.X1-b.X0) * float64(b.Y1-b.Y0) }
	shared := area(wire.Box{
		X0: max(a.X0, b.X0), Y0: max(a.Y0, b.Y0),
		X1: max(a.X0, b.X0, min(a.X1, b.X1)), Y1: max(a.Y0, b.Y0, min(a.Y1, b.Y1)),
	})
	return shared / (area(a) + area(b) - shared)
}

// The payload is at most ResultBytes for any numbers. In these outputs every class and every cell is
// above the threshold.
func TestResultBytes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		card := rapid.Custom(func(t *rapid.T) *models.Card {
			switch rapid.IntRange(0, 3).Draw(t, "decoder") {
			case 0:
				classes := rapid.IntRange(1, 50).Draw(t, "classes")
				return topKCard(int64(classes), map[string]any{"k": rapid.IntRange(1, classes).Draw(t, "k")})
			case 1:
				card := faceCard()
				card.Decoder.Params["max_boxes"] = rapid.IntRange(1, 40).Draw(t, "max_boxes")
				return card
			case 2:
				return smallCard(rapid.Float64Range(0, 1).Draw(t, "overlap"), rapid.IntRange(1, 40).Draw(t, "max_boxes"))
			}
			return rawCard()
		}).Draw(t, "card")
		d := newDecoder(t, card)
		outputs := empty(card)
		number := rapid.Float32Range(0.4, 40)
		for _, o := range outputs {
			pattern := rapid.SliceOfN(number, 1, 17).Draw(t, "pattern")
			for i := range len(o) / 4 {
				set(o, i, pattern[i%len(pattern)])
			}
		}
		payload, _, err := d.Append(nil, outputs)
		must.OK(t, err)
		if len(payload) > d.ResultBytes() {
			t.Fatalf("%d bytes, at most %d", len(payload), d.ResultBytes())
		}
	})
}

func TestClip(t *testing.T) {
	card := faceCard()
	d := newDecoder(t, card)
	outputs := empty(card)
	set(outputs[0], 0, 5) // the upper left anchor, four times the size of the picture
	set(outputs[2], 2, 512)
	set(outputs[2], 3, 512)
	set(outputs[0], 511, 5) // the lower right anchor, moved out of the picture
	set(outputs[2], 511*16+0, 100)
	set(outputs[2], 511*16+2, 20)
	set(outputs[2], 511*16+3, 20)
	got := boxesOf(t, d, outputs)
	if len(got) != 1 || got[0].X0 != 0 || got[0].Y0 != 0 || got[0].X1 != 1 || got[0].Y1 != 1 {
		t.Errorf("found %+v, want the whole picture once", got)
	}
}

// With a low threshold and a hundred thousand candidates the result has the best, as if all had
// been sorted.
func TestCandidates(t *testing.T) {
	card := detectCard()
	card.Decoder.Params["score_threshold"] = 0.0
	card.Decoder.Params["iou_threshold"] = 1.0
	d := newDecoder(t, card)
	outputs := empty(card)
	for _, o := range outputs[:3] {
		for i := range len(o) / 4 {
			set(o, i, float32(i%7919)/8000)
		}
	}
	set(outputs[2], 169*80-1, 0.999) // the last element
	got := boxesOf(t, d, outputs)
	if len(got) != 64 {
		t.Fatalf("found %d, want max_boxes", len(got))
	}
	if got[0].Score != 0.999 || got[1].Score != float32(7918)/8000 {
		t.Errorf("scores %v, %v first, want the best", got[0].Score, got[1].Score)
	}
	for k := range 20 { // equal ones keep their order
		if class := uint16((7918 + 7919*k) % 80); got[1+k].Class != class {
			t.Errorf("box %d of equal scores is of class %d, want %d", k, got[1+k].Class, class)
		}
	}
}

func rawCard() *models.Card {
	return &models.Card{
		Name:    "own",
		Outputs: []models.Tensor{{Name: "a", Type: models.F32, Shape: []int64{2}}, {Name: "b", Type: models.F32, Shape: []int64{3}}},
		Decoder: models.Decoder{Name: "raw"},
	}
}

func TestNotFinite(t *testing.T) {
	face, detect := faceCard(), detectCard()
	_, retinaface, _ := readReference(t, "testdata/retinaface.json") // boxes, scores, points
	_, scrfd, _ := readReference(t, "testdata/scrfd.json")           // scores, boxes, points, each for three strides
	_, yunet, _ := readReference(t, "testdata/yunet.json")           // two of scores, boxes, points
	for _, c := range []struct {
		name   string
		card   *models.Card
		output int
		at     int
		also   func(outputs [][]byte)
	}{
		{"topk", topKCard(10, nil), 0, 9, nil},
		{"raw", rawCard(), 1, 2, nil},
		{"score of ssd-anchors", face, 1, 383, nil},
		{"box of ssd-anchors", face, 2, 16*7 + 1, func(o [][]byte) { set(o[0], 7, 9) }},
		{"score of dfl", detect, 2, 169*80 - 1, nil},
		{"box of dfl", detect, 3, 44*100 + 43, func(o [][]byte) { set(o[0], 80*100, 0.9) }},
		{"score of retinaface", retinaface, 1, 2*251 + 1, nil},
		{"box of retinaface", retinaface, 0, 4*251 + 2, func(o [][]byte) { set(o[1], 2*251+1, 0.9) }},
		{"point of retinaface", retinaface, 2, 10*251 + 9, func(o [][]byte) { set(o[1], 2*251+1, 0.9) }},
		{"score of scrfd", scrfd, 2, 11, nil},
		{"box of scrfd", scrfd, 3, 4 * 191, func(o [][]byte) { set(o[0], 191, 0.9); set(o[3], 4*191+2, 5); set(o[3], 4*191+3, 5) }},
		{"score of yunet", yunet, 0, 95, nil},
		{"box of yunet", yunet, 8, 4*5 + 3, func(o [][]byte) { set(o[2], 5, 0.9); set(o[5], 5, 0.9) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := newDecoder(t, c.card)
			outputs := empty(c.card)
			if c.also != nil {
				c.also(outputs)
			}
			if _, _, err := d.Append(nil, outputs); err != nil {
				t.Fatalf("numbers: %v", err)
			}
			want := fmt.Sprintf("output %q: not a finite number", c.card.Outputs[c.output].Name)
			for _, v := range []float32{nan, -nan, infinity, -infinity} {
				set(outputs[c.output], c.at, v)
				got, _, err := d.Append([]byte("before"), outputs)
				if !errors.Is(err, errNotANumber) || err.Error() != want || string(got) != "before" {
					t.Errorf("%v: Append = %q, %v, want dst as it was and %s", v, got, err, want)
				}
			}
		})
	}
}

// A box without a score may have any contents: frameworks need not write it.
func TestUnusedBoxes(t *testing.T) {
	card := faceCard()
	outputs := empty(card)
	set(outputs[2], 16*7, nan)
	if got := boxesOf(t, newDecoder(t, card), outputs); len(got) != 0 {
		t.Errorf("found %+v", got)
	}
}

// The numbers are finite, but the corners are not.
func TestInfiniteCorners(t *testing.T) {
	card := faceCard()
	card.Decoder.Params["scale"] = 1e-3
	outputs := empty(card)
	set(outputs[0], 7, 9)
	set(outputs[2], 16*7, math.MaxFloat32)
	set(outputs[2], 16*7+2, math.MaxFloat32)
	d := newDecoder(t, card)
	if got, _, err := d.Append(nil, outputs); !errors.Is(err, errNotANumber) || got != nil {
		t.Errorf("Append = %x, %v, want ErrNotANumber", got, err)
	}
}

// The logarithm of a size is finite, but the size is not.
func TestInfiniteFaces(t *testing.T) {
	for name, outputs := range map[string][2]int{"retinaface": {0, 3}, "yunet": {6, 3}} {
		_, card, values := readReference(t, "testdata/"+name+".json")
		for i := range len(values[outputs[0]]) / 16 {
			set(values[outputs[0]], 4*i+outputs[1], math.MaxFloat32)
		}
		if got, _, err := newDecoder(t, card).Append(nil, values); !errors.Is(err, errNotANumber) || got != nil {
			t.Errorf("%s: Append = %x, %v, want %v", name, got, err, errNotANumber)
		}
	}
}

func TestOutputSizes(t *testing.T) {
	for _, card := range []*models.Card{topKCard(10, nil), faceCard(), detectCard()} {
		d := newDecoder(t, card)
		outputs := empty(card)
		last := len(outputs) - 1
		short := slices.Clone(outputs)
		short[last] = short[last][:len(short[last])-4]
		for name, o := range map[string][][]byte{"none": nil, "one less": outputs[:last], "a shorter one": short} {
			if _, _, err := d.Append(nil, o); !errors.Is(err, errOutputs) {
				t.Errorf("%s, %s: %v, want ErrOutputs", card.Name, name, err)
			}
		}
	}
}

func TestInvalidParameters(t *testing.T) {
	change := func(card *models.Card, f func(params map[string]any)) *models.Card {
		f(card.Decoder.Params)
		return card
	}
	named := func(name string, card *models.Card, params map[string]any) *models.Card {
		card.Decoder = models.Decoder{Name: name, Params: params}
		return card
	}
	manyClasses := detectCard()
	manyClasses.Outputs[0].Shape = []int64{2704, 70000}
	grid := func(p map[string]any, i int) map[string]any { return p["grids"].([]any)[i].(map[string]any) }
	level := func(p map[string]any, i int) map[string]any { return p["levels"].([]any)[i].(map[string]any) }
	for _, c := range []struct {
		want string
		card *models.Card
	}{
		{`name: is "yolov4", want boxes, classes,`, &models.Card{Name: "x", Decoder: models.Decoder{Name: "yolov4"}}},
		{"k: is 11, want an integer from 1 to 10", topKCard(10, map[string]any{"k": 11})},
		{"k: is 2.5, want an integer", topKCard(10, map[string]any{"k": 2.5})},
		{`k: is "five"`, topKCard(10, map[string]any{"k": "five"})},
		{"topk reads one output, the card has 4", named("topk", faceCard(), map[string]any{})},
		{`the outputs have 65537 classes, want 1 to 65536`, topKCard(65537, nil)},
		{"style: is missing, want ssd-anchors or dfl", change(faceCard(), func(p map[string]any) { delete(p, "style") })},
		{`style: is "yolo", want ssd-anchors or dfl`, change(faceCard(), func(p map[string]any) { p["style"] = "yolo" })},
		{"score_threshold: is 2", change(faceCard(), func(p map[string]any) { p["score_threshold"] = 2 })},
		{"unsupported value: NaN", change(faceCard(), func(p map[string]any) { p["score_threshold"] = math.NaN() })},
		{"max_boxes: is 0", change(faceCard(), func(p map[string]any) { p["max_boxes"] = 0 })},
		{"scale: is 0, want a number from 1e-6", change(faceCard(), func(p map[string]any) { p["scale"] = 0 })},
		{`score_activation: is "softmax"`, change(faceCard(), func(p map[string]any) { p["score_activation"] = "softmax" })},
		{"grids: is missing, want a list, each element {size, anchors, scores, boxes}", change(faceCard(), func(p map[string]any) { delete(p, "grids") })},
		{"grids: has 0 elements, want at least 1", change(faceCard(), func(p map[string]any) { p["grids"] = []any{} })},
		{"grids: is 7, want a list", change(faceCard(), func(p map[string]any) { p["grids"] = 7 })},
		{"grids[0]: is 7, want a map of stride, size, anchors, scores, boxes", change(faceCard(), func(p map[string]any) { p["grids"] = []any{7} })},
		{"grids[1].boxes: is missing, want an output's name", change(faceCard(), func(p map[string]any) { delete(grid(p, 1), "boxes") })},
		{"levels[0].classes: the outputs have 70000 classes, want 1 to 65536", manyClasses},
		{`grids[1].scores: no output is called "nothing"`, change(faceCard(), func(p map[string]any) { grid(p, 1)["scores"] = "nothing" })},
		{`grids[0].scores: Identity:0 has shape [512 1], want [768, at least 1]`, change(faceCard(), func(p map[string]any) { grid(p, 0)["anchors"] = 3 })},
		{"grids[0]: has stride 0 and size 0, want one of the two", change(faceCard(), func(p map[string]any) { delete(grid(p, 0), "size") })},
		{"bins: is missing", change(detectCard(), func(p map[string]any) { delete(p, "bins") })},
		{`levels[0].boxes: b8 has shape [2704 44], want 4 distances of 10 bins`, change(detectCard(), func(p map[string]any) { p["bins"] = 10 })},
		{`levels[2].classes: c32 has shape [169 80], want [676, at least 1]`, change(detectCard(), func(p map[string]any) { level(p, 2)["stride"] = 16 })},
	} {
		d, err := New(c.card)
		if err == nil || !strings.Contains(err.Error(), c.want) || d != nil {
			t.Errorf("New = %v, %v, want it to say %s", d, err, c.want)
		}
	}
}

// A card that another process received as JSON makes the same decoder.
func TestParametersJSON(t *testing.T) {
	for _, card := range []*models.Card{faceCard(), detectCard(), topKCard(10, map[string]any{"k": int64(3)})} {
		text, err := json.Marshal(card)
		must.OK(t, err)
		var again models.Card
		must.OK(t, json.Unmarshal(text, &again))
		if a, b := newDecoder(t, card).ResultBytes(), newDecoder(t, &again).ResultBytes(); a != b {
			t.Errorf("%s: %d bytes at most, after JSON %d", card.Name, a, b)
		}
	}
}

func TestAppendAllocations(t *testing.T) {
	for _, card := range []*models.Card{topKCard(10, nil), faceCard(), detectCard(), rawCard()} {
		d := newDecoder(t, card)
		outputs := empty(card)
		for i := range len(outputs[0]) / 4 {
			if i%9 == 0 {
				set(outputs[0], i, 0.9)
			}
		}
		dst := make([]byte, 0, d.ResultBytes())
		if n := testing.AllocsPerRun(20, func() {
			if _, _, err := d.Append(dst, outputs); err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations an image", card.Decoder.Name, n)
		}
		set(outputs[0], 0, nan)
		if n := testing.AllocsPerRun(20, func() {
			if _, _, err := d.Append(dst, outputs); !errors.Is(err, errNotANumber) {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations an error", card.Decoder.Name, n)
		}
	}
}

// Two processes that decode the same outputs return the same bytes, even if one of them decoded
// other outputs before.
func TestDecoderReuse(t *testing.T) {
	for _, card := range []*models.Card{topKCard(100, nil), faceCard(), detectCard()} {
		used := newDecoder(t, card)
		busy, quiet := empty(card), empty(card)
		for i := range 50 {
			set(busy[0], i, 1)
		}
		if _, _, err := used.Append(nil, busy); err != nil {
			t.Fatal(err)
		}
		got, _, _ := used.Append(nil, quiet)
		want, _, _ := newDecoder(t, card).Append(nil, quiet)
		if !slices.Equal(got, want) {
			t.Errorf("%s: %x after another image, %x before any", card.Name, got, want)
		}
	}
}

// FuzzAppend decodes arbitrary bytes. It expects an error, or a result within its bounds.
func FuzzAppend(f *testing.F) {
	f.Add([]byte{0})
	f.Add(tensor(nan, 1, float32(math.Inf(1)), float32(math.Inf(-1)), 0.5, math.MaxFloat32, -math.MaxFloat32))
	f.Add(tensor(0.9, 0.1, 0.7))
	small := detectCard()
	small.Outputs = []models.Tensor{{Name: "c", Type: models.F32, Shape: []int64{16, 3}}, {Name: "b", Type: models.F32, Shape: []int64{16, 8}}}
	small.Decoder.Params["levels"] = []any{map[string]any{"stride": 104, "classes": "c", "boxes": "b"}}
	small.Decoder.Params["bins"] = 2
	small.Decoder.Params["score_threshold"] = 0.0
	face := faceCard()
	face.Decoder.Params["score_threshold"] = 0.01
	cards := []*models.Card{topKCard(20, nil), face, small, rawCard()}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) == 0 {
			return
		}
		for _, card := range cards {
			d := newDecoder(t, card)
			outputs := empty(card)
			next := 0
			for _, o := range outputs {
				for i := range o {
					o[i] = data[next%len(data)]
					next++
				}
			}
			payload, kind, err := d.Append(nil, outputs)
			if err != nil {
				if !errors.Is(err, errNotANumber) {
					t.Fatal(err)
				}
				continue
			}
			if len(payload) > d.ResultBytes() {
				t.Fatalf("%s: %d bytes, at most %d", card.Decoder.Name, len(payload), d.ResultBytes())
			}
			if kind != uint8(wire.KindBoxes) {
				continue
			}
			boxes, err := wire.DecodeBoxes(nil, payload)
			must.OK(t, err)
			for i, b := range boxes {
				if !(b.X0 >= 0 && b.X0 < b.X1 && b.X1 <= 1 && b.Y0 >= 0 && b.Y0 < b.Y1 && b.Y1 <= 1) || !finite(tensor(b.Score)) {
					t.Fatalf("box %+v", b)
				}
				if i > 0 && b.Score > boxes[i-1].Score {
					t.Fatalf("score %v after %v", b.Score, boxes[i-1].Score)
				}
			}
		}
	})
}

func BenchmarkDetect(b *testing.B) {
	card := detectCard()
	d, err := New(card)
	must.OK(b, err)
	outputs := empty(card)
	for i := range 20 {
		set(outputs[0], i*9173, 0.9)
	}
	dst := make([]byte, 0, d.ResultBytes())
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := d.Append(dst, outputs); err != nil {
			b.Fatal(err)
		}
	}
}

// Ascending values are the worst case: each is among the largest so far.
func BenchmarkTopKOfAscendingClasses(b *testing.B) {
	card := topKCard(maxClasses, map[string]any{"k": 1000})
	d, err := New(card)
	must.OK(b, err)
	outputs := empty(card)
	for i := range maxClasses {
		set(outputs[0], i, float32(i))
	}
	dst := make([]byte, 0, d.ResultBytes())
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := d.Append(dst, outputs); err != nil {
			b.Fatal(err)
		}
	}
}

// Decoders read outputs of other types as f32; raw passes them on.
func TestOtherTypes(t *testing.T) {
	card := &models.Card{
		Name: "typed", Decoder: models.Decoder{Name: "raw"},
		Outputs: []models.Tensor{{Name: "class", Type: models.I64}, {Name: "p", Type: models.F16, Shape: []int64{2}}},
	}
	d := newDecoder(t, card)
	class, p := binary.LittleEndian.AppendUint64(nil, 7), []byte{0x00, 0x3c, 0x00, 0xc0} // 1, -2
	payload, kind, err := d.Append(nil, [][]byte{class, p})
	want := append(wire.AppendTensorHead(nil, "class", "i64", nil), class...)
	want = append(wire.AppendTensorHead(want, "p", "f16", []int64{2}), p...)
	if err != nil || wire.Kind(kind) != wire.KindTensors || !bytes.Equal(payload, want) || d.ResultBytes() != len(want) || card.ResultBytes() != len(want) {
		t.Errorf("% x of kind %d, at most %d (%d) bytes: %v", payload, kind, d.ResultBytes(), card.ResultBytes(), err)
	}
	for kind, infinity := range map[models.DType][]byte{
		models.F16: {0, 0x7c}, models.BF16: {0x80, 0xff}, models.F32: {0, 0, 0x80, 0x7f}, models.F64: {0, 0, 0, 0, 0, 0, 0xf0, 0x7f}, models.I16: {0, 0x7c},
	} {
		_, _, err := newDecoder(t, &models.Card{
			Decoder: models.Decoder{Name: "tensors"}, Outputs: []models.Tensor{{Name: "p", Type: kind, Shape: []int64{2}}},
		}).Append(nil, [][]byte{append(make([]byte, kind.Bytes()), infinity...)})
		if errors.Is(err, errNotANumber) != kind.IsFloat() {
			t.Errorf("infinity of %s: %v", kind, err)
		}
	}
	classes := newDecoder(t, &models.Card{
		Decoder: models.Decoder{Name: "classes", Params: map[string]any{"k": 1}}, Outputs: []models.Tensor{{Name: "p", Type: models.F16, Shape: []int64{2}}},
	})
	if payload, _, err := classes.Append(nil, [][]byte{p}); err != nil || !bytes.Equal(payload, wire.AppendTopK(nil, []wire.Class{{Class: 0, P: 1}})) {
		t.Errorf("classes of f16: % x, %v", payload, err)
	}
	for _, outputs := range [][][]byte{{class}, {class, p[:2]}, {class[:4], p}} {
		if _, _, err := d.Append(nil, outputs); !errors.Is(err, errOutputs) {
			t.Errorf("outputs of other sizes: %v", err)
		}
	}
	outputs := [][]byte{class, p}
	if n := testing.AllocsPerRun(10, func() { payload, _, _ = d.Append(payload[:0], outputs) }); n > 0 {
		t.Errorf("allocates %v times", n)
	}
}
