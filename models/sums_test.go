package models

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/testing/must"
)

func TestSums(t *testing.T) {
	dir := t.TempDir()
	model, sums := filepath.Join(dir, "a model.onnx"), filepath.Join(dir, "SHA256SUMS")
	must.OK(t, os.WriteFile(model, []byte("weights"), 0o600))
	sum := fmt.Sprintf("%x", sha256.Sum256([]byte("weights")))
	other := strings.Repeat("0", len(sum))
	for text, want := range map[string]string{
		sum + "  a model.onnx\n":                              "",
		strings.ToUpper(sum) + " *./a model.onnx":             "",
		sum + "  " + model + "\n" + other + "  b\n":           "",
		other + "  b.onnx\n":                                  "a model.onnx is not listed in " + sums + "; its SHA-256 is " + sum,
		other + "  a model.onnx\n":                            "has the SHA-256 " + sum + ", and model_sums lists " + other,
		sum + "  a model.onnx\n" + other + "  a model.onnx\n": sums + ":2: " + model + " has another sum in a line before",
		"SHA256 (a model.onnx) = " + sum + "\n":               sums + ":1: is \"SHA256",
		sum + " a model.onnx\n":                               "want a line of sha256sum",
	} {
		must.OK(t, os.WriteFile(sums, []byte(text), 0o600))
		c := &Card{Model: model}
		err := c.Demand(sums)
		if err == nil {
			err = c.CheckSum(0)
		}
		if (want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}
