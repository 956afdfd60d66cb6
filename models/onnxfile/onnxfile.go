// Package onnxfile reads ONNX files before ONNX Runtime loads them: inputs, outputs, metadata, and the other files that have
// weights. It also finds out what a file is that is no model.
package onnxfile

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// DataFiles returns the files that have weights of a model, sorted: absolute paths without symbolic links.
// The model names them relative to its folder. A name that leads out of the folder, or to no file, is an
// error. DataFiles returns no files and no error if the model cannot be read: ONNX Runtime reports that better.
func DataFiles(model string) (files []string, err error) {
	_, names := inspect(model)
	if len(names) == 0 {
		return nil, nil
	}

	// The folder's own path may have symbolic links.
	folder, err := filepath.EvalSymlinks(filepath.Dir(model))
	if err != nil {
		return nil, fmt.Errorf("find folder of %s: %w", model, err)
	}
	for _, name := range names {
		file, err := dataFile(folder, name)
		if err != nil {
			return nil, fmt.Errorf("model has weights in the file %q: %w", name, err)
		}
		files = append(files, file)
	}
	return files, nil
}

// dataFile returns the path of a file that a model in folder names.
func dataFile(folder, name string) (string, error) {
	if !filepath.IsLocal(name) {
		return "", errors.New("the name leads out of the model's folder; want a file in it, or below")
	}
	file := filepath.Join(folder, name)
	real, err := filepath.EvalSymlinks(file)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return "", fmt.Errorf("%s does not exist; put it next to the model", file)
	case err != nil:
		return "", err
	case !strings.HasPrefix(real, strings.TrimSuffix(folder, "/")+"/"):
		return "", fmt.Errorf("a symbolic link leads to %s, out of the model's folder; put the file itself there", real)
	}
	if about, err := os.Stat(real); err != nil {
		return "", err
	} else if !about.Mode().IsRegular() {
		return "", fmt.Errorf("%s is not a regular file", real)
	}
	return real, nil
}

// Describe returns what a file is if it is no ONNX model, with a hint. It is empty for a model, and for a file
// that Describe does not know.
func Describe(file string) string {
	known, _ := inspect(file)
	return known
}

// inspect returns what Describe does, and the names of other files in a model, sorted, each once.
func inspect(file string) (known string, names []string) {
	f, err := os.Open(file)
	if err != nil {
		return "", nil
	}
	defer f.Close()
	about, err := f.Stat()
	if err != nil {
		return "", nil
	}
	head := make([]byte, 512)
	n, err := io.ReadFull(f, head)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		return "", nil
	}
	if known := describe(string(head[:n])); known != "" {
		return known, nil
	}
	w := walker{file: window{of: f}}
	err = w.walk(modelProto, 0, about.Size(), 0)
	var cut *cutError
	switch {
	case errors.As(err, &cut) && head[0] == 8: // ir_version is the first field
		return fmt.Sprintf("an incomplete ONNX model: it has %d bytes, and a part of it ends at %d; copy it again", about.Size(), cut.end), nil
	case err != nil:
		return "", nil
	}
	slices.Sort(w.names)
	return "", slices.Compact(w.names)
}

// describe is Describe for the first bytes of a file.
func describe(head string) string {
	text := strings.ToLower(strings.TrimLeft(head, "\ufeff \t\r\n"))
	switch {
	case strings.HasPrefix(head, "version https://git-lfs"):
		return "a Git LFS pointer; run `git lfs pull` in its folder"
	case strings.HasPrefix(text, "<!doctype"), strings.HasPrefix(text, "<html"), strings.HasPrefix(text, "<?xml"):
		return "a web page, perhaps of a failed download; download the file itself"
	case strings.HasPrefix(head, "PK\x03\x04") && strings.Contains(head, "/data.pkl"), strings.HasPrefix(head, "PK\x03\x04") && strings.Contains(head, "/version"):
		return "a file that PyTorch saved; export it with torch.onnx.export, or write `framework: pytorch`"
	case strings.HasPrefix(head, "PK\x03\x04"):
		return "a ZIP archive; unpack it"
	case strings.HasPrefix(head, "\x1f\x8b"):
		return "a gzip archive; unpack it"
	case len(head) > 2 && head[0] == 0x80 && head[1] >= 2 && head[1] <= 5:
		return "a Python pickle, as old versions of PyTorch save; export the model with torch.onnx.export"
	case strings.HasPrefix(head, "ftrt"), strings.HasPrefix(head, "ptrt"):
		return "a TensorRT plan; use the ONNX file that it was built from"
	case len(head) > 10 && head[8:10] == `{"` && head[6:8] == "\x00\x00":
		return "a safetensors file, which has weights and no model; export the model with torch.onnx.export"
	case len(head) > 8 && head[4:8] == "TFL3":
		return "a TensorFlow Lite model; convert it to ONNX"
	case strings.HasPrefix(head, "\x89HDF"):
		return "an HDF5 file, as Keras saves; convert the model to ONNX"
	case strings.HasPrefix(head, "GGUF"):
		return "a GGUF file; convert the model to ONNX"
	}
	return ""
}
