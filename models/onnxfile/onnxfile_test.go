package onnxfile

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"pgregory.net/rapid"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/tinymodel"
)

// model returns a model with weights in these files.
func model(names ...string) []byte {
	m := tinymodel.Linear(tinymodel.F32, 4, 1, 2, 3, 1)
	for _, name := range names {
		w := m.Weights[0]
		w.Name, w.File = name, name
		m.Weights = append(m.Weights, w)
	}
	return m.Encode()
}

func write(t testing.TB, data []byte, path ...string) string {
	t.Helper()
	file := filepath.Join(path...)
	must.OK(t, os.MkdirAll(filepath.Dir(file), 0o700))
	must.OK(t, os.WriteFile(file, data, 0o600))
	return file
}

func TestDataFiles(t *testing.T) {
	dir := t.TempDir()
	weights := write(t, []byte("weights"), dir, "models", "net.onnx.data")
	below := write(t, []byte("weights"), dir, "models", "parts", "1")
	outside := write(t, []byte("secret"), dir, "secret")
	for link, to := range map[string]string{"inside": weights, "outside": outside, "up": dir} {
		must.OK(t, os.Symlink(to, filepath.Join(dir, "models", link)))
	}
	must.OK(t, os.Symlink("models", filepath.Join(dir, "link")))
	for _, c := range []struct {
		names []string
		want  []string
		err   string
	}{
		{nil, nil, ""},
		{[]string{"net.onnx.data", "parts/1", "net.onnx.data"}, []string{weights, below}, ""},
		{[]string{"inside"}, []string{weights}, ""},
		{[]string{"missing"}, nil, "does not exist; put it next to the model"},
		{[]string{"../secret"}, nil, "leads out of the model's folder"},
		{[]string{outside}, nil, "leads out of the model's folder"},
		{[]string{"parts/../../secret"}, nil, "leads out of the model's folder"},
		{[]string{"outside"}, nil, "a symbolic link leads to " + outside},
		{[]string{"up/secret"}, nil, "a symbolic link leads to " + outside},
		{[]string{"parts"}, nil, "is not a regular file"},
		{[]string{"*/_ORT_MEM_ADDR_/*"}, nil, "does not exist"},
	} {
		for _, folder := range []string{"models", "link"} { // the folder itself may be a link
			got, err := DataFiles(write(t, model(c.names...), dir, folder, "net.onnx"))
			if !slices.Equal(got, c.want) || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Errorf("%q: got %q, %v, want %q, %s", c.names, got, err, c.want, c.err)
			}
		}
	}
}

// Weights may be in the attributes of nodes, in nested graphs and in functions.
func TestDataFilesNested(t *testing.T) {
	dir := t.TempDir()
	want := write(t, []byte("weights"), dir, "deep")
	tensor := slices.Concat(protowire.AppendVarint(protowire.AppendTag(nil, 14, protowire.VarintType), 1),
		nested(13, text(1, "location"), text(2, "deep")))
	for name, graph := range map[string][]byte{
		"constant": nested(7, nested(1, nested(5, nested(5, tensor)))),
		"nested":   nested(7, nested(1, nested(5, nested(6, nested(5, tensor))))),
		"sparse":   nested(7, nested(15, nested(1, tensor))),
		"function": nested(25, nested(7, nested(5, nested(10, tensor)))),
	} {
		if got, err := DataFiles(write(t, graph, dir, "net.onnx")); err != nil || !slices.Equal(got, []string{want}) {
			t.Errorf("%s: got %q, %v", name, got, err)
		}
	}
}

func TestRead(t *testing.T) {
	m := tinymodel.Linear(tinymodel.F32, 4, tinymodel.Dynamic, 2, 3, 1)
	m.Inputs = append(m.Inputs, tinymodel.Value{Name: "w", Type: tinymodel.F32, Dims: []int64{6, 4}}) // has a value
	labels := strings.Repeat("0123456789\n", 10_000)
	data := append(m.Encode(), nested(14, text(1, "character"), text(2, labels))...)
	got, err := Read(write(t, data, t.TempDir(), "net.onnx"))
	must.OK(t, err)
	want := &Model{
		IRVersion: 8, Opset: 13,
		Inputs:   []Value{{Name: "x", Type: "f32", Shape: []Dim{{Size: -1, Name: "n"}, {Size: 2}, {Size: 3}, {Size: 1}}}},
		Outputs:  []Value{{Name: "y", Type: "f32", Shape: []Dim{{Size: -1, Name: "n"}, {Size: 4}}, Operator: "MatMul"}},
		Metadata: map[string]string{"character": labels},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %.500v", got)
	}
	if text := got.Inputs[0].String(); text != "x f32 [n, 2, 3, 1]" {
		t.Errorf("the input is %s", text)
	}
}

func TestReadNames(t *testing.T) {
	dim := nested(1, text(2, "batch"))
	tensor := nested(1, protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), 7), nested(2, dim))
	data := nested(7, nested(11, text(1, "Input Image"), nested(2, tensor)), nested(12, text(1, "open")), nested(15, nested(1, text(8, "given"))), nested(11, text(1, "given")))
	got, err := Read(write(t, slices.Concat(text(2, "me"), data), t.TempDir(), "net.onnx"))
	must.OK(t, err)
	if len(got.Inputs) != 1 || got.Inputs[0].String() != "Input Image i64 [batch]" || got.Outputs[0].Shape != nil || got.Producer != "me" {
		t.Errorf("got %.500v", got)
	}
}

// A file that is no model is one error, which says what is wrong. Read keeps a bounded part of a hostile one.
func TestReadRefuses(t *testing.T) {
	dir := t.TempDir()
	for want, data := range map[string][]byte{
		"Git LFS pointer":               []byte("version https://git-lfs.github.com/spec/v1\n"),
		"incomplete ONNX model":         model()[:200],
		"it has 0 graphs":               text(2, "producer"),
		"it has 2 graphs":               append(nested(7), nested(7)...),
		"not a protocol buffer":         {0x0b},
		"is not UTF-8":                  nested(7, nested(11, text(1, "\xff"))),
		"more than 1024 inputs":         nested(7, bytes.Repeat(nested(11), maxValues+1)),
		"more than 64 dimensions":       nested(7, nested(11, nested(2, nested(1, nested(2, bytes.Repeat(nested(1), maxRank+1)))))),
		"has 4097 bytes, want at most":  nested(7, nested(11, text(1, strings.Repeat("n", maxNameBytes+1)))),
		"more than 4194304 bytes or 10": append(nested(7), bytes.Repeat(nested(14, text(2, strings.Repeat("v", 1<<20))), 4)...),
	} {
		if got, err := Read(write(t, data, dir, "net.onnx")); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %+v, %v", want, got, err)
		}
	}
	if _, err := Read(filepath.Join(dir, "missing")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing: %v", err)
	}
}

func nested(number protowire.Number, parts ...[]byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), slices.Concat(parts...))
}

func text(number protowire.Number, s string) []byte { return nested(number, []byte(s)) }

func FuzzRead(f *testing.F) {
	f.Add(model())
	f.Add(model("data"))
	f.Add(nested(7, nested(11, text(1, "x"), nested(2, nested(1, nested(2, nested(1, text(2, "n"))))))))
	f.Fuzz(func(t *testing.T, data []byte) {
		r := reader{window: window{of: bytes.NewReader(data)}}
		_ = r.model(int64(len(data)))
	})
}

// No function fails on files that are no models.
func TestAnyFile(t *testing.T) {
	dir := t.TempDir()
	valid := model("data")
	rapid.Check(t, func(r *rapid.T) {
		data := slices.Clone(valid)
		for range rapid.IntRange(1, 4).Draw(r, "changes") {
			data[rapid.IntRange(0, len(data)-1).Draw(r, "at")] = rapid.Byte().Draw(r, "byte")
		}
		data = data[:rapid.IntRange(1, len(data)).Draw(r, "length")]
		file := write(t, data, dir, "net.onnx")
		_, _ = DataFiles(file)
		_ = Describe(file)
		_, _ = Read(file)
	})
}

func TestDescribe(t *testing.T) {
	dir := t.TempDir()
	valid := model()
	for want, data := range map[string]string{
		"":                string(valid),
		"Git LFS pointer": "version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 1\n",
		"web page":        "\n<!DOCTYPE html><html>not found",
		"PyTorch saved":   "PK\x03\x04xxxxarchive/data.pkl",
		"ZIP archive":     "PK\x03\x04xxxxreadme.txt",
		"gzip archive":    "\x1f\x8b\x08",
		"Python pickle":   "\x80\x02}q",
		"TensorRT plan":   "ftrt\x00\x00",
		"safetensors":     "\x40\x00\x00\x00\x00\x00\x00\x00{\"w\":",
		"TensorFlow Lite": "\x1c\x00\x00\x00TFL3\x00",
		"HDF5":            "\x89HDF\r\n",
		"incomplete":      string(valid[:len(valid)/2]),
		"GGUF":            "GGUF\x03",
	} {
		got := Describe(write(t, []byte(data), dir, "file"))
		if (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("%q is %q, want %q", data[:min(len(data), 12)], got, want)
		}
	}
}
