package onnxfile

import (
	"os"
	"path/filepath"
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
	field := func(number protowire.Number, data []byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), data)
	}
	tensor := slices.Concat(protowire.AppendVarint(protowire.AppendTag(nil, 14, protowire.VarintType), 1),
		field(13, slices.Concat(field(1, []byte("location")), field(2, []byte("deep")))))
	for name, graph := range map[string][]byte{
		"constant": field(7, field(1, field(5, field(5, tensor)))),
		"nested":   field(7, field(1, field(5, field(6, field(5, tensor))))),
		"sparse":   field(7, field(15, field(1, tensor))),
		"function": field(25, field(7, field(5, field(10, tensor)))),
	} {
		if got, err := DataFiles(write(t, graph, dir, "net.onnx")); err != nil || !slices.Equal(got, []string{want}) {
			t.Errorf("%s: got %q, %v", name, got, err)
		}
	}
}

// Neither function fails on files that are no models.
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
