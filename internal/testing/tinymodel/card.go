package tinymodel

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/penstock/penstock/internal/testing/must"
)

// Truncated is a model file that ends early: loading it fails.
var Truncated = []byte("\x08\x07cut short")

// Card is a card of a model with one u8 picture x of one channel, and one f32 output y.
type Card struct {
	Name          string
	Version       int
	Height, Width int
	Outputs       int    // length of y
	Model         []byte // the ONNX file
}

// Write writes the card to NAME.yaml in dir, and its model to NAME.onnx, which every user may
// read. It returns the card's path.
func (c Card) Write(t testing.TB, dir string) (path string) {
	t.Helper()
	text := fmt.Sprintf(`name: %s
version: %d
framework: onnx
model: %s.onnx
input: {name: x, size: [%d, %d, 1], wire: {type: u8, layout: hwc}, tensor: {type: f32, layout: chw}}
outputs: [{name: y, shape: [%d]}]
batches: [1]
slo: 1s
threads: 1
decoder: {name: raw}
`, c.Name, c.Version, c.Name, c.Height, c.Width, c.Outputs)
	path = filepath.Join(dir, c.Name+".yaml")
	for file, data := range map[string][]byte{path: []byte(text), filepath.Join(dir, c.Name+".onnx"): c.Model} {
		must.OK(t, os.WriteFile(file, data, 0o644))
	}
	return path
}
