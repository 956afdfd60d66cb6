package models

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"pgregory.net/rapid"

	"github.com/penstock/penstock/internal/testing/keydoc"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/tinymodel"
	"github.com/penstock/penstock/models/document"
	"github.com/penstock/penstock/wire"
)

// card is valid; the tests damage it.
const card = `name: shapes
version: 3
framework: onnx
model: model.onnx
input:
  name: image
  size: [4, 6, 3]
  wire: {type: u8, layout: hwc}
  tensor: {type: f32, layout: chw}
  reverse_channels: true
  mean: [1, 2.5, 3]
  std: [1, 2, 4.0]
outputs:
  - {name: prob, shape: [3]}
batches: [1, 2, 4]
slo: 25ms
knee_percent: 30
knees: [{batch: 1, percent: 20}, {batch: 4, percent: 30}]
threads: 2
decoder: {name: topk, k: 2}
labels: [circle, square, "3"]
`

const boxCard = `name: boxes
version: 1
framework: onnx
model: model.onnx
input:
  name: image
  size: [32, 32, 3]
  wire: {type: u8, layout: hwc}
  tensor: {type: f32, layout: hwc}
outputs:
  - {name: scores, shape: [128, 2]}
  - {name: places, shape: [128, 16]}
  - {name: cells, shape: [16, 2]}
  - {name: bins, shape: [16, 44]}
slo: 1s
decoder:
  name: boxes
  style: ssd-anchors
  score_threshold: 0.5
  scale: 32
  grids:
    - {size: 8, anchors: 2, scores: scores, boxes: places}
labels: labels.txt
`

const dflDecoder = `decoder:
  name: boxes
  style: dfl
  size: 32
  bins: 11
  levels:
    - {stride: 8, classes: cells, boxes: bins}
`

// dflCard is boxCard with the other style.
var dflCard = boxCard[:strings.Index(boxCard, "decoder:")] + dflDecoder

const speechCard = `name: speech
version: 1
framework: onnx
model: model.onnx
inputs:
  - {name: audio, shape: [3]}
  - {name: mask, type: bool, shape: []}
  - {name: "token ids", type: i64, shape: [2, 1]}
constants: {sr: 16000, range: [0, 0.5]}
outputs: [{name: y, type: i64, shape: []}]
batches: [1, 10]
slo: 1s
`

const ownCard = `name: own
version: 1
command: [./program, --fast]
input:
  size: [2, 2, 1]
  wire: {type: f32, layout: chw}
  tensor: {type: f16, layout: chw}
outputs: [{name: y, shape: [2, 2, 2]}]
slo: 1m
`

// familyCard returns boxCard with another input, outputs, decoder and labels.
func familyCard(size, outputs, decoder, labels string) string {
	return fmt.Sprintf(`name: family
version: 1
framework: "null"
input:
  size: %s
  wire: {type: u8, layout: hwc}
  tensor: {type: f32, layout: chw}
outputs: %s
slo: 1s
decoder: %s
labels: %s
`, size, outputs, decoder, labels)
}

const catAndDog = "[cat, dog]"

// Rows of YOLO for a picture of 64 x 96: 126 cells.
var (
	yoloCard = familyCard("[64, 96, 3]", "[{name: out, shape: [6, 126]}]", "{name: yolo}", catAndDog)
	textCard = familyCard("[48, 320, 3]", "[{name: out, shape: [40, 3]}]", "{name: text}", catAndDog)
	detrCard = familyCard("[64, 96, 3]", "[{name: places, shape: [30, 4]}, {name: logits, shape: [30, 2]}]", "{name: detr, boxes: places, scores: logits}", catAndDog)
	faceCard = familyCard("[64, 96, 3]", "[{name: b, shape: [252, 4]}, {name: s, shape: [252, 2]}, {name: p, shape: [252, 10]}]", "{name: faces}", "[face]")
	ssdCard  = familyCard("[64, 96, 3]", "[{name: b, shape: [30, 4]}, {name: s, shape: [30]}, {name: l, shape: [30]}]", "{name: objects, boxes: b, scores: s, labels: l}", catAndDog)
)

// TestFamily reads a card of each family, and compares what its decoder reads.
func TestFamily(t *testing.T) {
	for name, c := range map[string]struct {
		text  string
		kind  wire.Kind
		bytes int
		check func(f Family) bool
	}{
		"yolov8":  {yoloCard, wire.KindBoxes, 100 * 22, func(f Family) bool { y := f.(*YOLO); return y.Style == YOLOv8 && y.Rows == 126 && y.NumClasses == 2 }},
		"yolov5":  {strings.Replace(yoloCard, "[6, 126]", "[378, 7]", 1), wire.KindBoxes, 2200, func(f Family) bool { return f.(*YOLO).Style == YOLOv5 }},
		"yolov10": {strings.Replace(yoloCard, "[6, 126]", "[300, 6]", 1), wire.KindBoxes, 2200, func(f Family) bool { return f.(*YOLO).Style == YOLOv10 }},
		"yolox": {strings.NewReplacer("[6, 126]", "[126, 7]", "{name: yolo}", "{name: yolo, style: yolox}").Replace(yoloCard), wire.KindBoxes, 2200,
			func(f Family) bool { return f.(*YOLO).Style == YOLOX && f.(*YOLO).NumClasses == 2 }},
		"key points": {strings.NewReplacer("[6, 126]", "[12, 126]", "{name: yolo}", "{name: yolo, keypoints: [2, 3]}").Replace(yoloCard), wire.KindPoints, 2 + 100*(22+24),
			func(f Family) bool { return f.(*YOLO).Extra == 6 }},
		"masks": {strings.NewReplacer("[{name: out, shape: [6, 126]}]", "[{name: out, shape: [8, 126]}, {name: m, shape: [2, 16, 24]}]", "{name: yolo}", "{name: yolo, masks: m, max_boxes: 1}").Replace(yoloCard),
			wire.KindMasks, 4 + 22 + 8 + 48, func(f Family) bool { return f.(*YOLO).Prototypes == 1 && f.(*YOLO).Grid == [2]int{16, 24} }},
		"rotated": {strings.NewReplacer("[6, 126]", "[7, 126]", "{name: yolo}", "{name: yolo, rotated: true}").Replace(yoloCard), wire.KindPolygons, 100 * (8 + 32),
			func(f Family) bool { return f.(*YOLO).NumClasses == 2 }},
		"some classes": {strings.Replace(yoloCard, "{name: yolo}", `{name: yolo, classes: ["0", dog]}`, 1), wire.KindBoxes, 2200,
			func(f Family) bool { return slices.Equal(f.(*YOLO).Only, []bool{true, true}) }},
		"classes":   {strings.NewReplacer("[6, 126]", "[2]", "{name: yolo}", "{name: classes, activation: softmax}").Replace(yoloCard), wire.KindTopK, 12, func(f Family) bool { return f.(*Classes).K == 2 }},
		"embedding": {strings.NewReplacer("{name: yolo}", "{name: embedding}").Replace(yoloCard), wire.KindEmbedding, 6 * 126 * 4, func(f Family) bool { return true }},
		"text":      {textCard, wire.KindText, 4 + 40*3, func(f Family) bool { return f.(*Text).Steps == 40 }},
		"text with a space": {strings.Replace(textCard, "[40, 3]", "[40, 4]", 1), wire.KindText, 4 + 40*3,
			func(f Family) bool { return slices.Equal(f.(*Text).Labels, []string{"cat", "dog", " "}) }},
		"detr":              {detrCard, wire.KindBoxes, 2200, func(f Family) bool { return f.(*DETR).ScoresOutput == 1 && f.(*DETR).Activation == "sigmoid" }},
		"detr with classes": {familyCard("[64, 96, 3]", "[{name: out, shape: [30, 6]}]", "{name: detr}", "[a, b, c]"), wire.KindBoxes, 2200, func(f Family) bool { return f.(*DETR).Chosen }},
		"objects":           {ssdCard, wire.KindBoxes, 2200, func(f Family) bool { return f.(*Objects).Rows == 30 && f.(*Objects).CountOutput == -1 }},
		"map":               {strings.NewReplacer("[6, 126]", "[2, 16, 24]", "{name: yolo}", "{name: map, cells: classes}").Replace(yoloCard), wire.KindMap, 6 + 16*24*6, func(f Family) bool { return f.(*Map).Channels == 2 }},
		"polygons":          {strings.NewReplacer("[6, 126]", "[1, 64, 96]", "{name: yolo}", "{name: polygons}").Replace(yoloCard), wire.KindPolygons, 100 * 40, func(f Family) bool { return f.(*Polygons).Columns == 96 }},
		"pose": {familyCard("[64, 96, 3]", "[{name: x, shape: [5, 192]}, {name: y, shape: [5, 128]}]", "{name: pose, x: x, y: y}", "[a]"), wire.KindPoints, 2 + 22 + 60,
			func(f Family) bool { return f.(*Pose).Points == 5 }},
		"retinaface": {faceCard, wire.KindPoints, 2 + 100*(22+60), func(f Family) bool {
			last := f.(*Faces).Levels[2]
			return f.(*Faces).Style == RetinaFace && last.Boxes == 0 && last.Points == 2 && slices.Equal(last.Scores, []int{1}) && last.First == 240 && last.Rows == 12
		}},
		"scrfd": {familyCard("[64, 96, 3]", faceOutputs([]int{192, 48, 12}, 1, 4, 10), "{name: faces}", "[face]"), wire.KindPoints, 2 + 100*(22+60),
			func(f Family) bool { return f.(*Faces).Style == SCRFD && f.(*Faces).Levels[1].Points == 7 }},
		"yunet": {familyCard("[64, 96, 3]", faceOutputs([]int{96, 24, 6}, 1, 1, 4, 10), "{name: faces}", "[face]"), wire.KindPoints, 2 + 100*(22+60),
			func(f Family) bool {
				return f.(*Faces).Style == YuNet && slices.Equal(f.(*Faces).Levels[2].Scores, []int{2, 5}) && f.(*Faces).Levels[0].Boxes == 6
			}},
	} {
		t.Run(name, func(t *testing.T) {
			if err := valid(t, schema(t), c.text); err != nil {
				t.Errorf("the schema refuses: %v", err)
			}
			card, err := read(t, folder(t), c.text)
			must.OK(t, err)
			f, err := card.Family()
			must.OK(t, err)
			if !c.check(f) || card.Kind() != c.kind || card.ResultBytes() != c.bytes || f.ResultBytes() != c.bytes {
				t.Errorf("%+v, kind %v, %d bytes, want kind %v, %d bytes", f, card.Kind(), card.ResultBytes(), c.kind, c.bytes)
			}
		})
	}
}

// faceOutputs returns the outputs of these columns, each for these rows.
func faceOutputs(rows []int, columns ...int) string {
	var list []string
	for i, c := range columns {
		for j, r := range rows {
			list = append(list, fmt.Sprintf("{name: o%d_%d, shape: [%d, %d]}", i, j, r, c))
		}
	}
	return "[" + strings.Join(list, ", ") + "]"
}

// folder returns a folder for the test's cards, with the files that they name.
func folder(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range map[string]string{"model.onnx": "a model", "empty.onnx": "", "page.onnx": "<html>", "labels.txt": "cat\r\ndog\n", "program": "#!"} {
		mode := os.FileMode(0o644)
		if name == "program" {
			mode = 0o755
		}
		must.OK(t, os.WriteFile(filepath.Join(dir, name), []byte(content), mode))
	}
	return dir
}

func read(t testing.TB, dir, text string) (*Card, error) {
	t.Helper()
	path := filepath.Join(dir, "card.yaml")
	must.OK(t, os.WriteFile(path, []byte(text), 0o644))
	return ReadCard(path)
}

func TestReadCardAllKeys(t *testing.T) {
	dir := folder(t)
	got, err := read(t, dir, card)
	must.OK(t, err)
	want := &Card{
		Name: "shapes", Version: 3, Framework: "onnx", Model: filepath.Join(dir, "model.onnx"),
		File: filepath.Join(dir, "card.yaml"), Dir: dir,
		Input: Input{
			Name: "image", Height: 4, Width: 6, Channels: 3,
			WireType: U8, WireLayout: HWC, TensorType: F32, TensorLayout: CHW, Fit: "letterbox",
			ReverseChannels: true, Mean: []float32{1, 2.5, 3}, Std: []float32{1, 2, 4}, Background: [3]uint8{255, 255, 255},
		},
		Outputs: []Tensor{{Name: "prob", Type: F32, Shape: []int64{3}}},
		Batches: []int{1, 2, 4}, SLO: 25 * time.Millisecond, KneePercent: 30, Knees: []Knee{{1, 20}, {4, 30}}, Threads: 2,
		Decoder: Decoder{Name: "topk", Params: map[string]any{"k": int64(2)}},
		Labels:  []string{"circle", "square", "3"},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%+v, want\n%+v", got, want)
	}
}

// The names of tensors are any text. A shape may have ones next to the number of classes.
func TestReadCardNames(t *testing.T) {
	text := strings.NewReplacer("name: image", `name: "Input Image ✓"`, "name: prob", "name: Class Prob", "shape: [3]", "shape: [1, 3, 1]").Replace(card)
	got, err := read(t, folder(t), text)
	must.OK(t, err)
	if got.Input.Name != "Input Image ✓" || got.Outputs[0].Name != "Class Prob" {
		t.Errorf("names %q and %q", got.Input.Name, got.Outputs[0].Name)
	}
}

func TestReadCardScale(t *testing.T) {
	for _, c := range []struct{ mean, std, wire, want string }{
		{"[0.485, 0.456, 0.406]", "[0.229, 0.224, 0.225]", "u8", "card.yaml:12:8: input.std: is for pictures of 0 to 1, and requests of u8 have 0 to 255; want scale: 1/255, or mean: [123.675, 116.28, 103.53] and std: [58.395, 57.12, 57.375]"},
		{"[0.5, 0.5, 0.5]", "[1, 1, 1]", "u8", "want scale: 1/255, or mean: [127.5, 127.5, 127.5] and std: [255, 255, 255]"},
		{"[0, 0, 0]", "[0.5, 0.5, 0.5]", "u8", "want scale: 1/255, or mean: [0, 0, 0] and std: [127.5, 127.5, 127.5]"},
		{"[104, 117, 124]", "[0.017, 0.017, 0.017]", "u8", "so the tensor has up to 8882"},
		{"[0.485, 0.456, 0.406]", "[0.229, 0.224, 0.225]", "f32", ""},
		{"[123.675, 116.28, 103.53]", "[58.395, 57.12, 57.375]", "u8", ""},
		{"[104, 117, 124]", "[1, 1, 1]", "u8", ""},
		{"[0, 0, 0]", "[1, 1, 1]", "u8", ""},
		{"[0, 0, 0]", "[255, 255, 255]", "u8", ""},
	} {
		text := strings.NewReplacer("[1, 2.5, 3]", c.mean, "[1, 2, 4.0]", c.std, "{type: u8", "{type: "+c.wire).Replace(card)
		got, err := read(t, folder(t), text)
		must.OK(t, err)
		if all := strings.Join(got.Warnings, "\n"); (all == "") != (c.want == "") || !strings.Contains(all, c.want) {
			t.Errorf("mean %s, std %s of %s: got %q, want %q", c.mean, c.std, c.wire, all, c.want)
		}
	}
}

// Factors are in mean and std.
func TestReadCardFold(t *testing.T) {
	const values = "  mean: [1, 2.5, 3]\n  std: [1, 2, 4.0]\n"
	for _, c := range []struct {
		keys, warning string
		mean, std     []float32
	}{
		{"  scale: 1/255\n", "", []float32{0, 0, 0}, []float32{255, 255, 255}},
		{"  scale: 0.5\n  mean: [1, 2, 3]\n  std: [1, 2, 4]\n", "", []float32{2, 4, 6}, []float32{2, 4, 8}},
		{"  scale: 1/255\n  mean: [0, 0, 0.2]\n  std: [0.5, 1, 1]\n", "", []float32{0, 0, 51}, []float32{127.5, 255, 255}},
		{"  scale: 1/255\n  mean: [104, 117, 124]\n  std: [1, 1, 1]\n", "input.mean: has 124, and scale makes 0 to 1 of a picture; want a mean of that, or no scale", []float32{26520, 29835, 31620}, []float32{255, 255, 255}},
	} {
		got, err := read(t, folder(t), strings.Replace(card, values, c.keys, 1))
		must.OK(t, err)
		if !slices.Equal(got.Input.Mean, c.mean) || !slices.Equal(got.Input.Std, c.std) {
			t.Errorf("%s: mean %v, std %v, want %v and %v", c.keys, got.Input.Mean, got.Input.Std, c.mean, c.std)
		}
		if all := strings.Join(got.Warnings, "\n"); (all == "") != (c.warning == "") || !strings.Contains(all, c.warning) {
			t.Errorf("%s: got %q, want %q", c.keys, all, c.warning)
		}
	}
}

// A model in place of its card is named as such.
func TestReadModelAsCard(t *testing.T) {
	path := filepath.Join(t.TempDir(), "net.onnx")
	must.OK(t, os.WriteFile(path, make([]byte, 1<<20), 0o600))
	if _, err := ReadCard(path); err == nil || !strings.Contains(err.Error(), "net.onnx is a model; want its card") {
		t.Errorf("got %v", err)
	}
}

func TestReadCardFit(t *testing.T) {
	c, err := read(t, folder(t), strings.Replace(card, "reverse_channels: true", "fit: left\n  pad: [1, 2, 3]", 1))
	must.OK(t, err)
	if c.Input.Fit != "left" || !slices.Equal(c.Input.Pad, []int{1, 2, 3}) {
		t.Errorf("fit %q, pad %v", c.Input.Fit, c.Input.Pad)
	}
}

// Requests of tensors are packed. In a batch each tensor begins at a multiple of TensorAlignment.
func TestReadCardInputs(t *testing.T) {
	c, err := read(t, folder(t), speechCard)
	must.OK(t, err)
	want := []Tensor{{Name: "audio", Type: F32, Shape: []int64{3}}, {Name: "mask", Type: Bool}, {Name: "token ids", Type: I64, Shape: []int64{2, 1}}}
	if !reflect.DeepEqual(c.Inputs, want) || !reflect.DeepEqual(c.InputTensors(), want) {
		t.Errorf("inputs %+v, want %+v", c.Inputs, want)
	}
	if want := map[string][]float64{"sr": {16000}, "range": {0, 0.5}}; !reflect.DeepEqual(c.Constants, want) {
		t.Errorf("constants %v, want %v", c.Constants, want)
	}
	in := &c.Input
	if want := []Part{{At: 0, Bytes: 12}, {At: 128, Bytes: 1}, {At: 192, Bytes: 16}}; !slices.Equal(in.Places(), want) || in.WireBytes() != 29 || in.IsPicture() {
		t.Errorf("a request of %d bytes with %v, want 29 and %v", in.WireBytes(), in.Places(), want)
	}
	if n := in.BatchBytes(10); n != 192+10*16 || in.Images(n) != 10 || in.Images(n-1) != 9 || in.Images(191) != 0 {
		t.Errorf("10 images take %d bytes, which are of %d", n, in.Images(n))
	}
	if want := Aligned(352) + 128; c.TensorBytes() != want {
		t.Errorf("tensors take %d bytes, want %d", c.TensorBytes(), want)
	}
}

func TestReadCardDefaults(t *testing.T) {
	dir := folder(t)
	got, err := read(t, dir, ownCard)
	must.OK(t, err)
	want := &Card{
		Name: "own", Version: 1, Command: []string{filepath.Join(dir, "program"), "--fast"},
		File: filepath.Join(dir, "card.yaml"), Dir: dir,
		Input:   Input{Height: 2, Width: 2, Channels: 1, WireType: F32, WireLayout: CHW, TensorType: F16, TensorLayout: CHW, Fit: "letterbox", Background: [3]uint8{255, 255, 255}},
		Outputs: []Tensor{{Name: "y", Type: F32, Shape: []int64{2, 2, 2}}},
		Batches: []int{1, 2, 4, 8, 16, 32}, AutoBatches: true, SLO: time.Minute, Decoder: Decoder{Name: "raw", Params: map[string]any{}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%+v, want\n%+v", got, want)
	}
}

func TestAutoBatches(t *testing.T) {
	const gib = 1 << 30
	all := []int{1, 2, 4, 8, 16, 32}
	fixed := tinymodel.Model{
		Inputs:  []tinymodel.Value{{Name: "image", Type: tinymodel.F32, Dims: []int64{3, 3, 4, 6}}},
		Outputs: []tinymodel.Value{{Name: "prob", Type: tinymodel.F32, Dims: []int64{3, 3}}},
	}
	open := fixed
	open.Inputs = []tinymodel.Value{{Name: "image", Type: tinymodel.F32, Dims: []int64{tinymodel.Dynamic, 3, tinymodel.Dynamic, tinymodel.Dynamic}}}
	open.Outputs = []tinymodel.Value{{Name: "prob", Type: tinymodel.F32, Dims: []int64{tinymodel.Dynamic, tinymodel.Dynamic}}}
	for name, c := range map[string]struct {
		batches, size string
		output        string // "": as in card
		model         tinymodel.Model
		gpuBytes      int64
		want          []int
	}{
		"CPU":                  {size: "4, 6", model: open, want: all[:5]},
		"GPU":                  {size: "4, 6", model: open, gpuBytes: 8 * gib, want: all},
		"auto":                 {batches: "batches: auto\n", size: "4, 6", model: open, want: all[:5]},
		"batch axis, CPU":      {batches: "batches: auto\n", size: "4, 6", output: "[3], batch_axis: 1", model: open, want: all[:5]},
		"batch axis, GPU":      {batches: "batches: auto\n", size: "4, 6", output: "[3], batch_axis: 1", model: open, gpuBytes: 8 * gib, want: all[:1]},
		"list":                 {batches: "batches: [1, 3, 64]\n", size: "4, 6", model: open, want: []int{1, 3, 64}},
		"fixed":                {size: "4, 6", model: fixed, gpuBytes: 8 * gib, want: []int{3}},
		"large picture, CPU":   {size: "1024, 1024", model: open, want: all[:1]},
		"large picture, 8 GiB": {size: "1024, 1024", model: open, gpuBytes: 8 * gib, want: all[:2]},
		"large picture, 80":    {size: "1024, 1024", model: open, gpuBytes: 80 * gib, want: all[:5]},
		"largest tensors":      {size: "4096, 4096", model: open, gpuBytes: 1 << 50, want: all[:3]},
	} {
		t.Run(name, func(t *testing.T) {
			dir := folder(t)
			must.OK(t, os.WriteFile(filepath.Join(dir, "model.onnx"), c.model.Encode(), 0o600))
			read, err := read(t, dir, strings.NewReplacer("batches: [1, 2, 4]\n", c.batches, "4, 6", c.size, "shape: [3]", "shape: "+cmp.Or(c.output, "[3]")).Replace(card))
			must.OK(t, err)
			on := read.On(c.gpuBytes)
			if !slices.Equal(on.Batches, c.want) || !slices.Equal(read.BatchesOn(c.gpuBytes), c.want) {
				t.Errorf("batches of %v, want %v", on.Batches, c.want)
			}
		})
	}

	dir := folder(t)
	open.Outputs = fixed.Outputs
	must.OK(t, os.WriteFile(filepath.Join(dir, "model.onnx"), open.Encode(), 0o600))
	_, err := read(t, dir, strings.NewReplacer("[1, 2, 4]", "auto", "shape: [3]", "shape: [3], batch_axis: 2").Replace(card))
	if err == nil || !strings.Contains(err.Error(), "batch_axis: is 2, want at most 1") {
		t.Errorf("a batch axis beyond the tensor's: %v", err)
	}
}

// The model's file says which inputs and outputs there are. An error has its place in the card.
func TestReadCardModel(t *testing.T) {
	file := tinymodel.Model{
		Inputs:  []tinymodel.Value{{Name: "image", Type: tinymodel.F32, Dims: []int64{tinymodel.Dynamic, 3, 4, 6}}},
		Outputs: []tinymodel.Value{{Name: "other", Type: tinymodel.F32, Dims: []int64{1, 3}}, {Name: "prob", Type: tinymodel.F32, Dims: []int64{tinymodel.Dynamic, 3}}},
	}
	dir := folder(t)
	must.OK(t, os.WriteFile(filepath.Join(dir, "model.onnx"), file.Encode(), 0o600))
	for change, want := range map[string]string{
		"":                       "",
		"name: image/name: x":    `card.yaml:6:9: input.name: model has no input "x"; it has ["image"]`,
		"4, 6/6, 4":              `card.yaml:7:9: input.size: input "image" is f32 [n, 3, 4, 6] in the model, f32 [n, 3, 6, 4] in the card`,
		"name: prob/name: y":     `card.yaml:14:12: outputs[0].name: model has no output "y"; it has ["other" "prob"]`,
		"type: f32/type: f16":    `card.yaml:7:9: input.size: input "image" is f32 [n, 3, 4, 6] in the model, f16`,
		"name: prob/name: other": `card.yaml:15:10: batches: output "other" is f32 [1, 3] in the model, fixed at batch 1; the card has batches [1 2 4], want [1]`,
	} {
		from, to, _ := strings.Cut(change, "/")
		_, err := read(t, dir, strings.Replace(card, from, to, 1))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", change, err, want)
		}
	}
}

// Tensors of a request lie closer together if batches are smaller.
func TestAutoBatchesOfTensors(t *testing.T) {
	c, err := read(t, folder(t), strings.Replace(speechCard, "batches: [1, 10]\n", "", 1))
	must.OK(t, err)
	on, small := c.On(0), *c
	small.Batches = []int{16}
	if got, want := on.Input.Parts, small.pack().Parts; !slices.Equal(got, want) || slices.Equal(c.Input.Parts, want) {
		t.Errorf("tensors at %v, want %v", got, want)
	}
}

func TestReadCardLabelsFile(t *testing.T) {
	got, err := read(t, folder(t), boxCard)
	must.OK(t, err)
	if want := []string{"cat", "dog"}; !reflect.DeepEqual(got.Labels, want) {
		t.Errorf("labels %q, want %q", got.Labels, want)
	}
}

// spoiled is a card with one fault.
type spoiled struct {
	name     string
	card     string
	old, new string // the edit
	want     string // the start of the error's line after the folder, or a part of it
	// deep is set for faults that no schema can detect: files, sums, other fields.
	deep bool
}

var spoiledCards = []spoiled{
	{"a misspelt key", card, "slo: 25ms", "slos: 25ms", `card.yaml:16:1: unknown key "slos", did you mean "slo"?`, false},
	{"a misspelt key inside", card, "  size:", "  siez:", `card.yaml:7:3: input: unknown key "siez", did you mean "size"?`, false},
	{"a misspelt key in a flow map", card, "{type: u8,", "{typ: u8,", `card.yaml:8:10: input.wire: unknown key "typ", did you mean "type"?`, false},
	{"a misspelt decoder's key", boxCard, "score_threshold", "score_treshold", `card.yaml:19:3: decoder: unknown key "score_treshold", did you mean "score_threshold"?`, false},
	{"a key of another style", boxCard, "scale: 32", "scale: 32\n  bins: 11", `decoder: unknown key "bins"`, false},
	{"a key from nowhere", card, "threads: 2", "colour: red", `unknown key "colour"; known are name, version`, false},
	{"a key twice", card, "version: 3", "version: 3\nversion: 4", `card.yaml:3:1: mapping key "version" already defined at [2:1]: "version: 4"`, true},
	{"a key that is no word", card, "threads: 2", "2: 2", `card.yaml:19:1: key 2 is not a plain word`, true},
	{"no name", card, "name: shapes\n", "", `name: is missing, want lower case`, false},
	{"an empty name", card, "name: shapes", `name: ""`, `name: is "", want lower case`, false},
	{"a name in capitals", card, "name: shapes", "name: Shapes", `card.yaml:1:7: name: is "Shapes", want lower case`, false},
	{"a name that is a path", card, "name: shapes", "name: ../shapes", `name: is "../shapes"`, false},
	{"a name that is a number", card, "name: shapes", "name: 12", `name: is 12, want lower case`, false},
	{"version 0", card, "version: 3", "version: 0", `card.yaml:2:10: version: is 0, want an integer from 1`, false},
	{"a version too large", card, "version: 3", "version: 4294967296", `version: is 4294967296`, false},
	{"half a version", card, "version: 3", "version: 1.5", `version: is 1.5, want an integer`, false},
	{"a quoted version", card, "version: 3", `version: "3"`, `version: is "3", want an integer`, false},
	{"an unknown framework", card, "framework: onnx", "framework: onxx", `framework: is "onxx", want onnx, pytorch or null, did you mean "onnx"?`, false},
	{"no program at all", card, "framework: onnx\n", "", `card.yaml:1:1: has neither framework (onnx, pytorch) nor command`, false},
	{"pytorch without a file", card, "framework: onnx\nmodel: model.onnx\n", "framework: pytorch\n", `model`, false},
	{"two programs", card, "framework: onnx", "framework: onnx\ncommand: [cat]", `command: is set next to framework`, false},
	{"an empty command", ownCard, "[./program, --fast]", "[]", `command: has 0 elements, want at least 1`, false},
	{"a command that is a string", ownCard, "[./program, --fast]", "./program", `command: is "./program", want a list, each element a part of a command, like [./my-if, --flag]`, false},
	{"a program that is not there", ownCard, "./program", "./gone", `command[0]: program `, true},
	{"a program that is not executable", ownCard, "./program", "./model.onnx", `is not executable`, true},
	{"no model", card, "model: model.onnx\n", "", `model: is missing, want the model's file`, false},
	{"a model that is not there", card, "model: model.onnx", "model: gone.onnx", `gone.onnx: no such file or directory`, true},
	{"an empty model", card, "model: model.onnx", "model: empty.onnx", `empty.onnx is empty`, true},
	{"a model that is a folder", card, "model: model.onnx", "model: .", `is not a regular file`, true},
	{"both kinds of input", speechCard, "inputs:", "input: {size: [1, 1, 1], wire: {type: u8, layout: hwc}, tensor: {type: u8, layout: hwc}}\ninputs:", `inputs: is set next to input`, false},
	{"no inputs", speechCard, speechCard[strings.Index(speechCard, "inputs:"):strings.Index(speechCard, "constants:")], "", `input: is missing, want what arrives and what tensor the model wants; or inputs`, false},
	{"an input of strings", speechCard, "type: bool", "type: string", `inputs[1].type: is "string", want bool,`, false},
	{"an input twice", speechCard, "name: mask", "name: audio", `inputs[1].name: "audio" is listed twice`, true},
	{"inputs too large", speechCard, "shape: [3]", "shape: [67108864]", `inputs: take more than 67107840 bytes in a request`, true},
	{"a constant that is an input", speechCard, "sr:", "mask:", `constants: mask is an input of requests, too`, true},
	{"a constant that is text", speechCard, "16000", "many", `constants: sr is many, want a map from names of inputs to a number, or a list`, false},
	{"a constant of nothing", speechCard, "16000", "[]", `constants: sr has 0 numbers, want 1 to 1024`, false},
	{"a state that is no output", speechCard, "constants: {sr: 16000, range: [0, 0.5]}", "state: {h: z}", `state: h is the output "z", which outputs does not list`, true},
	{"a state that is an input", speechCard, "constants: {sr: 16000, range: [0, 0.5]}", "state: {audio: y}", `state: audio is an input of requests or a constant, too`, true},
	{"a state without another output", speechCard, "constants: {sr: 16000, range: [0, 0.5]}", "state: {h: y}", `state: has all outputs; want another one`, true},
	{"a state that is a list", speechCard, "constants: {sr: 16000, range: [0, 0.5]}", "state: [h]", `state: is no map, want`, false},
	{"a state of a program", ownCard, "outputs:", "state: {h: y}\noutputs:", `state: is for framework onnx`, true},
	{"a large state", speechCard, "constants: {sr: 16000, range: [0, 0.5]}\noutputs: [", "state: {h: hn}\noutputs: [{name: hn, shape: [262145]}, ", `state: has 1048580 bytes per stream, want at most 1048576`, true},
	{"constants that are a list", speechCard, "{sr: 16000, range: [0, 0.5]}", "[1]", `constants: is no map`, false},
	{"no input", card, card[strings.Index(card, "input:"):strings.Index(card, "outputs:")], "", `input: is missing`, false},
	{"an input that is a list", card, card[strings.Index(card, "input:"):strings.Index(card, "outputs:")], "input: [1, 2]\n", `input: is a list of 2, want a map of name, size`, false},
	{"an input without a name", card, "  name: image\n", "", `input.name: is missing`, false},
	{"two dimensions", card, "[4, 6, 3]", "[4, 6]", `input.size: has 2 elements, want 3 (height, width, channels)`, false},
	{"a side of nothing", card, "[4, 6, 3]", "[0, 6, 3]", `card.yaml:7:10: input.size[0]: is 0, want an integer from 1 to 16384`, false},
	{"a side too long", card, "[4, 6, 3]", "[4, 16385, 3]", `input.size[1]: is 16385`, false},
	{"a picture too large", card, "[4, 6, 3]", "[16384, 16384, 3]", `is 805306368 bytes on the wire, want at most 67107840`, true},
	{"an unknown type", card, "{type: u8,", "{type: u64,", `input.wire.type: is "u64", want u8, i8, u16, i16, u32, i32, f16 or f32`, false},
	{"an unknown layout", card, "layout: chw", "layout: cwh", `input.tensor.layout: is "cwh", want hwc or chw`, false},
	{"no tensor", card, "  tensor: {type: f32, layout: chw}\n", "", `input.tensor: is missing`, false},
	{"a wire without a layout", card, "{type: u8, layout: hwc}", "{type: u8}", `input.wire.layout: is missing`, false},
	{"reversed in words", card, "reverse_channels: true", "reverse_channels: yes please", `input.reverse_channels: is "yes please", want true or false`, false},
	{"one channel reversed", ownCard, "  wire:", "  reverse_channels: true\n  wire:", `reverse_channels: is true, want false`, true},
	{"an unknown colour", card, "reverse_channels: true", "colour: rbg", `input.colour: is "rbg", want rgb, bgr or grey`, false},
	{"both names of a colour", card, "  reverse", "  colour: bgr\n  reverse", `input.colour: is set next to reverse_channels, want one of the two`, true},
	{"grey of three channels", card, "reverse_channels: true", "colour: grey", `input.colour: is grey, want rgb or bgr: size has 3 channels`, true},
	{"colours of one channel", ownCard, "  wire:", "  colour: rgb\n  wire:", `input.colour: is rgb, want grey: size has 1 channels`, true},
	{"a scale of nothing", card, "reverse_channels: true", "scale: 1/0", `input.scale: is "1/0", want a number or a fraction like 1/255 from 1e-6 to 1e6`, true},
	{"a scale of words", card, "reverse_channels: true", "scale: small", `input.scale: is "small", want a number or a fraction`, false},
	{"a negative scale", card, "reverse_channels: true", "scale: -1", `input.scale: is -1, want a number`, false},
	{"a range of three", card, "reverse_channels: true", "range: [1, 2, 3]", `input.range: has 3 elements, want 1 to 2 (black, white)`, false},
	{"white below black", card, "reverse_channels: true", "range: [900, 800]", `input.range: has black 900 and white 800, want black below white`, true},
	{"a grey background", card, "reverse_channels: true", "background: [0]", `input.background: has 1 elements, want 3 (red, green, blue)`, false},
	{"widths of nothing", card, "reverse_channels: true", "widths: []", `input.widths: has 0 elements, want 1 to 64`, false},
	{"widths that fall", card, "reverse_channels: true", "widths: [6, 3]", `input.widths: is [6 3], want sizes, ascending`, true},
	{"widths in words", card, "reverse_channels: true", "widths: [small, 6]", `input.widths[0]: is "small", want an integer from 1 to 16384`, false},
	{"a width twice", card, "reverse_channels: true", "widths: [6, 6]", `input.widths[1]: is 6, which the list already has`, false},
	{"widths below the size", card, "reverse_channels: true", "widths: [3, 5]", `input.widths: ends with 5, want the size in the shape: it is the largest`, true},
	{"heights above the size", card, "reverse_channels: true", "heights: [4, 5]", `input.heights: ends with 5, want the size in the shape`, true},
	{"many sizes", card, "[4, 6, 3]\n  wire:", "[30, 30, 3]\n  heights: [1, 2, 3, 4, 5, 6, 7, 8, 30]\n  widths: [1, 2, 3, 4, 5, 6, 7, 30]\n  wire:", `input.heights: makes 72 sizes, want at most 64`, true},
	{"widths of a program", ownCard, "  wire:", "  widths: [1, 4]\n  wire:", `input.widths: is for framework onnx`, true},
	{"sides of floats", card, "{type: u8, layout: hwc}\n", "{type: f32, layout: hwc}\n  heights: [2, 4]\n  widths: [3, 6]\n", `input.heights: is set next to other sides, which is for requests of u8 and hwc`, true},
	{"lengths of no input", speechCard, "constants:", "lengths: [2, 4]\nconstants:", `lengths: ends with 4, want the size in the shape`, true},
	{"padding without lengths", speechCard, "constants:", "pad_lengths: true\nconstants:", `pad_lengths: is true, and there are no lengths`, true},
	{"an unknown fit", card, "reverse_channels: true", "fit: squeeze", `input.fit: is "squeeze", want letterbox, stretch, crop or left`, false},
	{"a colour of two channels", card, "reverse_channels: true", "pad: [1, 2]", `input.pad: has 2 elements, want 3, one per channel`, true},
	{"a colour too bright", card, "reverse_channels: true", "pad: [1, 2, 256]", `input.pad[2]: is 256, want an integer from 0 to 255`, false},
	{"a mean too few", card, "[1, 2.5, 3]", "[1, 2.5]", `card.yaml:11:9: input.mean: has 2 elements, want 3, one per channel`, true},
	{"a mean that is no number", card, "[1, 2.5, 3]", "[1, .nan, 3]", `input.mean[1]: is .nan, want a number`, true},
	{"a mean without end", card, "[1, 2.5, 3]", "[1, .inf, 3]", `input.mean[1]: is .inf, want a number`, true},
	{"a mean alone", card, "  std: [1, 2, 4.0]\n", "", `input.mean: is set without std`, false},
	{"a deviation alone", card, "  mean: [1, 2.5, 3]\n", "", `input.std: is set without mean`, false},
	{"a deviation of nothing", card, "[1, 2, 4.0]", "[1, 0, 4]", `card.yaml:12:12: input.std[1]: is 0, want a number from 1e-6`, false},
	{"no outputs", card, "outputs:\n  - {name: prob, shape: [3]}", "outputs: []", `outputs: has 0 elements, want 1 to 32`, false},
	{"an output without a shape", card, ", shape: [3]}", "}", `outputs[0].shape: is missing`, false},
	{"a shape of too many axes", card, "shape: [3]", "shape: [3, 1, 1, 1, 1, 1, 1, 1, 1]", `outputs[0].shape: has 9 elements, want 0 to 8`, false},
	{"an output of strings", card, "shape: [3]", "shape: [3], type: string", `outputs[0].type: is "string", want bool, i8, i16, i32, i64, u8, u16, u32, u64, f16, bf16, f32 or f64`, false},
	{"a negative dimension", card, "shape: [3]", "shape: [-1]", `outputs[0].shape[0]: is -1`, false},
	{"rows on the wire", speechCard, "shape: [3]", "shape: [3], rows: {max: 9}", `inputs[0].rows: is for outputs`, true},
	{"rows of a program", card, "shape: [3]", "shape: [3], rows: {max: 9}, batch_axis: 1", `outputs[0].rows: is set next to batch_axis, want one of the two`, true},
	{"rows in half precision", card, "shape: [3]", "shape: [3], type: f16, rows: {max: 9}", `outputs[0].rows: is for other types than f16`, true},
	{"rows of two kinds", card, "shape: [3]", "shape: [3], rows: {max: 9, count: y, batch_column: true}", `outputs[0].rows: has count and batch_column, want one of the two`, true},
	{"rows of an unknown count", card, "shape: [3]", "shape: [3], rows: {max: 9, count: y}", `outputs[0].rows.count: is "y", want an output in this card with one number per image`, true},
	{"rows of two dimensions", card, "shape: [3]", "shape: [3, 3], rows: {max: 9, batch_column: true}", `outputs[0].rows.batch_column: is true, and a row has shape [3 3] without it; want one dimension`, true},
	{"rows of unknown images", card, "shape: [3]", "shape: [3], rows: {max: 9}", `outputs[0].rows: has neither count nor batch_column, which say what rows an image has; want one, or batches: [1]`, true},
	{"a batch axis beyond the tensor's", card, "shape: [3]", "shape: [3], batch_axis: 2", `outputs[0].batch_axis: is 2, want at most 1: the model's tensor has an axis more than shape [3]`, true},
	{"a shape too large", card, "shape: [3]", "shape: [100000, 100000, 100000]", `outputs[0].shape: has more than 268435456 elements`, true},
	{"an output twice", boxCard, "name: places", "name: scores", `"scores" is listed twice`, true},
	{"an output's name with a tab", card, "name: prob", "name: \"pr\\tob\"", `outputs[0].name: is "pr\tob", want a tensor's name`, false},
	{"topk of an image", card, "shape: [3]", "shape: [22, 2100]", `card.yaml:20:17: decoder.name: topk reads one value per class, and prob has shape [22 2100]; want a shape like [2100]`, true},
	{"a web page", card, "model: model.onnx", "model: page.onnx", `page.onnx is a web page`, true},
	{"batches with 0", card, "batches: [1, 2, 4]", "batches: [0, 4]", `card.yaml:15:11: batches[0]: is 0, want an integer from 1 to 1024`, false},
	{"batches that fall", card, "batches: [1, 2, 4]", "batches: [1, 4, 2]", `batches[2]: is 2 after 4, want batch sizes, ascending`, true},
	{"a batch twice", card, "batches: [1, 2, 4]", "batches: [1, 2, 2]", `batches[2]: is 2, which the list already has`, false},
	{"no batches", card, "batches: [1, 2, 4]", "batches: []", `batches: has 0 elements`, false},
	{"batches of a word", card, "batches: [1, 2, 4]", "batches: automatic", `batches: is "automatic", want auto, or a list, each element an integer from 1 to 1024`, false},
	{"a word in batches", card, "batches: [1, 2, 4]", "batches: [auto]", `batches[0]: is "auto", want an integer from 1 to 1024`, false},
	{"a batch of thousands", card, "batches: [1, 2, 4]", "batches: [1, 2000]", `batches[1]: is 2000`, false},
	{"tensors too large", card, "shape: [3]", "shape: [100000000]", `card.yaml:15:10: batches: tensors of a batch of 4 take 1600001152 bytes, want at most`, true},
	{"an objective without a unit", card, "slo: 25ms", "slo: 25", `card.yaml:16:6: slo: is 25, want a duration with its unit`, false},
	{"an objective of nothing", card, "slo: 25ms", "slo: 0s", `slo: is "0s", want a duration with its unit from 1us to 1h`, true},
	{"a negative objective", card, "slo: 25ms", "slo: -25ms", `slo: is "-25ms"`, false},
	{"no objective", card, "slo: 25ms\n", "", `slo: is missing`, false},
	{"a knee past the end", card, "knee_percent: 30", "knee_percent: 130", `knee_percent: is 130, want a number from 0 to 100`, false},
	{"a knee without a batch", card, "{batch: 1, percent: 20}", "{percent: 20}", `knees[0].batch: is missing, want a batch size`, false},
	{"knees that fall", card, "{batch: 4, percent: 30}", "{batch: 1, percent: 30}", `knees[1].batch: is 1 after 1, want a list of {batch, percent}, ascending by batch`, true},
	{"knees that are no list", card, "knees: [{batch: 1, percent: 20}, {batch: 4, percent: 30}]", "knees: 20", `knees: is 20, want a list, each element {batch, percent}`, false},
	{"negative threads", card, "threads: 2", "threads: -1", `threads: is -1`, false},
	{"an unknown decoder", card, "{name: topk, k: 2}", "{name: top-k, k: 2}", `decoder.name: is "top-k", want boxes, classes, detr, embedding, faces, map, objects, polygons, pose, raw, tensors, text, topk or yolo, did you mean "topk"?`, false},
	{"a decoder without a name", card, "{name: topk, k: 2}", "{k: 2}", `decoder.name: is missing`, false},
	{"a decoder that is a word", card, "{name: topk, k: 2}", "topk", `decoder: is "topk", want a map`, false},
	{"more answers than classes", card, "k: 2", "k: 4", `decoder.k: is 4, want an integer from 1 to 3`, true},
	{"keys for raw", card, "{name: topk, k: 2}", "{name: raw, k: 2}", `decoder: unknown key "k"`, false},
	{"an unknown style", boxCard, "ssd-anchors", "ssd", `decoder.style: is "ssd", want ssd-anchors or dfl`, false},
	{"a threshold past 1", boxCard, "score_threshold: 0.5", "score_threshold: 50", `decoder.score_threshold: is 50, want a number from 0 to 1`, false},
	{"no grids", boxCard, "    - {size: 8, anchors: 2, scores: scores, boxes: places}\n", "    []\n", `decoder.grids: has 0 elements, want at least 1`, false},
	{"an output that is not there", boxCard, "scores: scores", "scores: score", `card.yaml:22:37: decoder.grids[0].scores: no output is called "score", did you mean "scores"?`, true},
	{"a grid of another size", boxCard, "anchors: 2", "anchors: 6", `scores has shape [128 2], want [384, at least 1]`, true},
	{"scores and boxes swapped", boxCard, "scores: scores, boxes: places", "scores: places, boxes: scores", `scores has shape [128 2], want [128, at least 4]`, true},
	{"a grid without a size", boxCard, "size: 8, ", "", `decoder.grids[0]: has stride 0 and size 0, want one of the two`, true},
	{"a grid with two sizes", boxCard, "size: 8, ", "size: 8, stride: 4, ", `decoder.grids[0]: has stride 4 and size 8, want one of the two`, true},
	{"no bins", dflCard, "  bins: 11\n", "", `decoder.bins: is missing`, false},
	{"other bins", dflCard, "bins: 11", "bins: 8", `bins has shape [16 44], want 4 distances of 8 bins: 32`, true},
	{"rows that differ", dflCard, "{name: cells, shape: [16, 2]}", "{name: cells, shape: [15, 2]}", `cells has shape [15 2], want [16, at least 1]`, true},
	{"an output of no YOLO", yoloCard, "[6, 126]", "[5, 120]", `decoder: out has shape [5 120], want [378, 5 + classes] (yolov5), [4 + classes, 126] (yolov8), [boxes, 6] (yolov10) or [126, 5 + classes] (yolox)`, true},
	{"an output of two YOLOs", yoloCard, "[6, 126]", "[126, 7]", `out has shape [126 7], which fits two styles; want style: yolox for raw boxes, or style: yolov5`, true},
	{"another style of YOLO", yoloCard, "{name: yolo}", "{name: yolo, style: yolov10}", `out has shape [6 126], want [boxes, 6] (yolov10)`, true},
	{"classes of YOLO and labels", yoloCard, "[6, 126]", "[7, 126]", `out has shape [7 126]: the outputs have 3 classes, the labels name 2`, true},
	{"YOLO with several outputs", yoloCard, "[{name: out", "[{name: other, shape: [2]}, {name: out", `yolo reads outputs: 1, the card has 2; list only those that it reads`, true},
	{"masks that are not there", yoloCard, "{name: yolo}", "{name: yolo, masks: mask}", `masks: no output is called "mask"; known are out`, true},
	{"key points without values", yoloCard, "{name: yolo}", "{name: yolo, keypoints: [17]}", `decoder.keypoints: has 1 elements, want 2 (points, values of each)`, false},
	{"a class that is not there", yoloCard, "{name: yolo}", "{name: yolo, classes: [dug]}", `classes has "dug", want labels or numbers below 2, did you mean "dog"?`, true},
	{"a key of YOLO", yoloCard, "{name: yolo}", "{name: yolo, size: 3}", `decoder: unknown key "size"`, false},
	{"text of another alphabet", textCard, "[40, 3]", "[40, 97]", `out has shape [40 97], want [steps, 3] or, with a space, [steps, 4] as there are 2 labels`, true},
	{"queries that differ", detrCard, "[30, 2]", "[20, 2]", `logits has shape [20 2], want [30, classes]`, true},
	{"boxes of three numbers", ssdCard, "[30, 4]", "[30, 3]", `boxes: b has shape [30 3], want [rows, 4]`, true},
	{"scores that differ", ssdCard, "s, shape: [30]", "s, shape: [20]", `scores: s has shape [20], want [30] as b has shape [30 4]`, true},
	{"faces of another size", faceCard, "b, shape: [252, 4]", "b, shape: [126, 4]", `decoder: faces of 3 outputs (retinaface): 0 of shape [252 4], want 1; the shapes are [126 4] [252 2] [252 10]`, true},
	{"faces without points", faceCard, ", {name: p, shape: [252, 10]}", "", `faces reads 3 outputs (retinaface), 9 (scrfd) or 12 (yunet), the card has 2`, true},
	{"faces of two classes", faceCard, "[face]", "[face, hand]", `the outputs have 1 classes, the labels name 2`, true},
	{"a map of one number", familyCard("[64, 96, 3]", "[{name: out, shape: [7]}]", "{name: map, cells: u8}", catAndDog), "u8", "f16", `out has shape [7], want [1, rows, columns]`, true},
	{"a label too few", card, `[circle, square, "3"]`, "[circle, square]", `the outputs have 3 classes, the labels name 2`, true},
	{"a label that is a number", card, `"3"]`, "3]", `labels[2]: is 3, want a name; quote it`, false},
	{"labels that are not there", boxCard, "labels: labels.txt", "labels: gone.txt", `gone.txt: no such file`, true},
	{"labels of a device", boxCard, "labels: labels.txt", "labels: /dev/zero", `/dev/zero is not a regular file`, true},
	{"an anchor and its alias", card, "slo: 25ms", "slo: &a 25ms", `slo: is an anchor, want a duration`, true},
	{"a tag", card, "version: 3", "version: !!int 3", `version: is tagged, want an integer`, true},
	{"a merge key", card, "threads: 2", "<<: {threads: 2}", `is not a plain word`, true},
	{"a second document", card, "labels:", "---\nlabels:", `second document`, true},
	{"nothing", card, card, "", `card.yaml: is empty`, true},
	{"a comment only", card, card, "# nothing\n", `card.yaml: is empty`, true},
	{"no YAML", card, "slo: 25ms", "slo: [25ms", `card.yaml:`, true},
	{"a zero byte", card, "slo", "s\x00lo", `the file is not text`, true},
	{"brackets without end", card, "slo: 25ms", "slo: " + strings.Repeat("[", 1000), `nests deeper than`, true},
}

func (s spoiled) text(t testing.TB) string {
	t.Helper()
	text := strings.Replace(s.card, s.old, s.new, 1)
	if text == s.card {
		t.Fatalf("the edit %q changes nothing", s.old)
	}
	return text
}

func TestReadCardErrors(t *testing.T) {
	for _, s := range spoiledCards {
		t.Run(s.name, func(t *testing.T) {
			dir := folder(t)
			_, err := read(t, dir, s.text(t))
			if err == nil {
				t.Fatal("taken")
			}
			found := false
			for line := range strings.SplitSeq(err.Error(), "\n") {
				found = found || strings.Contains(line, s.want)
				if !strings.HasPrefix(line, dir+"/card.yaml:") {
					t.Errorf("line %q does not begin with the card", line)
				}
			}
			if !found {
				t.Errorf("got\n%v\nwant %s", err, s.want)
			}
			var p *document.Problem
			if !errors.As(err, &p) {
				t.Errorf("%T is no problem", err)
			}
		})
	}
}

func TestReadCardErrorOrder(t *testing.T) {
	text := strings.NewReplacer("version: 3", "version: 0", "slo: 25ms", "slo: soon", "threads: 2", "thread: 2").Replace(card)
	_, err := read(t, folder(t), text)
	if err == nil {
		t.Fatal("taken")
	}
	lines := strings.Split(err.Error(), "\n")
	if len(lines) != 3 || !strings.Contains(lines[0], ":2:10: version") || !strings.Contains(lines[1], ":16:6: slo") || !strings.Contains(lines[2], `"thread"`) {
		t.Errorf("got\n%v", err)
	}
}

func TestReadCardMissingFile(t *testing.T) {
	_, err := ReadCard(filepath.Join(t.TempDir(), "gone.yaml"))
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	if _, err := ReadCard("/dev/zero"); err == nil {
		t.Error("read a device")
	}
}

func TestReadDir(t *testing.T) {
	dir := folder(t)
	for name, text := range map[string]string{
		"z.yaml":          strings.Replace(ownCard, "name: own", "name: zebra", 1),
		"own/card.yaml":   strings.Replace(ownCard, "./program", "cat", 1),
		"twice/card.yaml": strings.Replace(ownCard, "./program", "cat", 1),
		"bad/card.yaml":   "name: bad\n",
		"other/notes.txt": "no card",
	} {
		path := filepath.Join(dir, name)
		must.OK(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must.OK(t, os.WriteFile(path, []byte(text), 0o644))
	}
	cards, err := ReadDir(dir)
	var names []string
	for _, c := range cards {
		names = append(names, c.Name)
	}
	if fmt.Sprint(names) != "[own zebra]" {
		t.Errorf("cards %v", names)
	}
	for _, part := range []string{"bad/card.yaml:1:1: version: is missing", "twice/card.yaml: name own is already used by " + filepath.Join(dir, "own/card.yaml")} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("got %v, want %s", err, part)
		}
	}
}

// schema returns configs/card.schema.json.
func schema(t testing.TB) *jsonschema.Schema {
	t.Helper()
	s, err := jsonschema.NewCompiler().Compile("../configs/card.schema.json")
	must.OK(t, err)
	return s
}

// valid checks a card in YAML against the schema.
func valid(t testing.TB, s *jsonschema.Schema, text string) error {
	t.Helper()
	doc, err := document.Parse("card.yaml", []byte(text))
	if err != nil {
		return err
	}
	data, err := json.Marshal(doc.Root().Plain())
	if err != nil {
		return err
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
	if err != nil {
		return err
	}
	return s.Validate(value)
}

func TestSchema(t *testing.T) {
	s := schema(t)
	for name, text := range map[string]string{"card": card, "boxCard": boxCard, "dflCard": dflCard, "ownCard": ownCard, "speechCard": speechCard} {
		if err := valid(t, s, text); err != nil {
			t.Errorf("%s: the schema refuses what the reader takes: %v", name, err)
		}
		if _, err := read(t, folder(t), text); err != nil {
			t.Errorf("%s: the reader refuses: %v", name, err)
		}
	}
	for _, name := range []string{"face", "fashion", "detect"} {
		text, err := os.ReadFile(filepath.Join("zoo", name, "card.yaml"))
		must.OK(t, err)
		if err := valid(t, s, string(text)); err != nil {
			t.Errorf("%s: the schema refuses what ships: %v", name, err)
		}
	}
	for _, c := range spoiledCards {
		if c.deep {
			continue
		}
		if err := valid(t, s, c.text(t)); err == nil {
			t.Errorf("%s: the schema takes what the reader refuses", c.name)
		}
	}
}

func TestGeneratedSchema(t *testing.T) {
	comments := keydoc.ReadComments(t, ".")
	var decoders []any
	add := func(f Family, consts map[string]string) {
		object := comments.Object(reflect.TypeOf(f).Elem())
		for key, value := range consts {
			property := object["properties"].(map[string]any)[key].(map[string]any)
			delete(property, "enum")
			property["const"] = value
		}
		decoders = append(decoders, object)
	}
	for _, name := range decoderNames {
		if name == "boxes" {
			add(new(Anchors), map[string]string{"name": name, "style": "ssd-anchors"})
			add(new(Distances), map[string]string{"name": name, "style": "dfl"})
		} else {
			add(families[name](), map[string]string{"name": name})
		}
	}
	keydoc.Golden(t, "../configs/card.schema.json", keydoc.Schema(reflect.TypeFor[cardFile](), comments, "Penstock model card",
		"Describes one model. The reader checks more: that files exist, that products stay in bounds, that the decoder's outputs are the card's.",
		map[string]any{
			"constants": map[string]any{"type": "object", "additionalProperties": map[string]any{"oneOf": []any{
				map[string]any{"type": "number"},
				map[string]any{"type": "array", "minItems": 1, "maxItems": maxChannels, "items": map[string]any{"type": "number"}},
			}}},
			"state":   map[string]any{"type": "object", "additionalProperties": map[string]any{"type": "string"}},
			"decoder": map[string]any{"oneOf": decoders},
			"labels": map[string]any{"oneOf": []any{
				map[string]any{"type": "string", "minLength": 1},
				map[string]any{"type": "array", "maxItems": maxLabels, "items": map[string]any{"type": "string", "minLength": 1, "maxLength": maxLabelBytes}},
			}},
		}, json.RawMessage(programRules)))
}

// programRules state which keys name the program that runs a model, that a card has one kind of input, and that mean and std need each
// other.
const programRules = `[
	{"oneOf": [{"required": ["input"]}, {"required": ["inputs"]}]},
	{"oneOf": [{"required": ["framework"], "not": {"required": ["command"]}}, {"required": ["command"], "not": {"required": ["framework"]}}]},
	{"if": {"properties": {"framework": {"const": "onnx"}}, "required": ["framework"]}, "then": {"required": ["model"], "properties": {"input": {"required": ["name"]}}}},
	{"if": {"properties": {"framework": {"const": "pytorch"}}, "required": ["framework"]}, "then": {"required": ["model"]}},
	{"properties": {"input": {"dependentRequired": {"mean": ["std"], "std": ["mean"]}}}}
]`

func TestConstantsMatchTags(t *testing.T) {
	for _, row := range []struct {
		k    document.Key
		tag  string
		want any
	}{
		{document.KeyOf[cardFile]("name"), "pattern", NamePattern},
		{document.KeyOf[cardFile]("batches"), "max", MaxBatchSize},
		{document.KeyOf[Knee]("batch"), "max", MaxBatchSize},
		{document.KeyOf[tensorFile]("shape"), "max", maxElements},
	} {
		if got := row.k.Tag.Get(row.tag); got != fmt.Sprint(row.want) {
			t.Errorf("%s: %s is %s, want %v", row.k.Name, row.tag, got, row.want)
		}
	}
}

// Random cards: if the reader accepts a card, the products of its sizes are bounded.
func TestCardBounds(t *testing.T) {
	dir := folder(t)
	rapid.Check(t, func(rt *rapid.T) {
		text := strings.NewReplacer(
			"[4, 6, 3]", fmt.Sprint("[", rapid.IntRange(-1, 20000).Draw(rt, "h"), ", ", rapid.IntRange(-1, 20000).Draw(rt, "w"), ", 3]"),
			"shape: [3]", fmt.Sprint("shape: [3, ", rapid.Int64Range(-1, 1<<40).Draw(rt, "d"), "]"),
			"[1, 2, 4]", fmt.Sprint("[1, ", rapid.IntRange(-1, 5000).Draw(rt, "n"), "]"),
			"labels: [circle, square, \"3\"]\n", "",
		).Replace(card)
		c, err := decodeCard(filepath.Join(dir, "card.yaml"), []byte(text))
		if err != nil {
			return
		}
		if n := c.TensorBytes(); n <= 0 || n > 2*maxTensorBytes {
			rt.Fatalf("tensors of %d bytes", n)
		}
		if n := c.Input.WireBytes(); n <= 0 || n > maxRequestBytes {
			rt.Fatalf("requests of %d bytes", n)
		}
	})
}

func FuzzReadCard(f *testing.F) {
	for _, text := range []string{card, boxCard, dflCard, ownCard, yoloCard, textCard, detrCard, ssdCard} {
		f.Add([]byte(text))
	}
	for _, c := range spoiledCards {
		f.Add([]byte(strings.Replace(c.card, c.old, c.new, 1)))
	}
	f.Add([]byte("0\n---"))
	dir := folder(f)
	path := filepath.Join(dir, "card.yaml")
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := decodeCard(path, data)
		if err != nil {
			for line := range strings.SplitSeq(err.Error(), "\n") {
				if !strings.HasPrefix(line, path+":") {
					t.Errorf("line %q does not begin with the card", line)
				}
			}
			return
		}
		if !NamePattern.MatchString(c.Name) || c.Version == 0 || c.SLO <= 0 || len(c.Batches) == 0 || c.Batches[0] != 1 || len(c.Outputs) == 0 {
			t.Errorf("took %+v", c)
		}
		if (c.Framework == "") == (len(c.Command) == 0) || c.Framework == "onnx" && c.Model == "" {
			t.Errorf("took a card that nothing runs: %+v", c)
		}
		if n := c.TensorBytes(); n <= 0 || n > 2*maxTensorBytes {
			t.Errorf("tensors of %d bytes", n)
		}
	})
}
