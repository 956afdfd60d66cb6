package gpu

import (
	"crypto/sha256"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/models"
)

func TestPTXSource(t *testing.T) {
	source, err := os.ReadFile("gather.cu")
	must.OK(t, err)
	first, _, _ := strings.Cut(ptx, "\n")
	if hash := fmt.Sprintf("%x", sha256.Sum256(source)); !strings.HasSuffix(first, "sha256 "+hash) {
		t.Errorf("gather.ptx begins with %q; gather.cu has %s: run `make ptx`", first, hash)
	}
	// ptx.sh documents the minimum driver and GPU.
	for _, line := range []string{".version 8.3", ".target sm_75", ".address_size 64"} {
		if !strings.Contains(ptx, "\n"+line+"\n") {
			t.Errorf("gather.ptx has no line %q", line)
		}
	}
}

// The part of each kernel in the PTX is complete.
func TestKernels(t *testing.T) {
	for _, name := range allKernels() {
		text, err := kernels(name)
		must.OK(t, err)
		part := string(text)
		if n := strings.Count(part, entry); n != 1 || !strings.Contains(part, entry+name+"(") {
			t.Errorf("%s: %d kernels in its part", name, n)
		}
		if strings.Count(part, "{") != strings.Count(part, "}") {
			t.Errorf("%s: its part does not end where the kernel does", name)
		}
		if strings.Contains(part, "call") || strings.Contains(part, ".extern") || strings.Contains(part, ".global .") {
			t.Errorf("%s needs something outside", name)
		}
		bytes := batchBytes
		switch name {
		case "fetch":
			bytes = fetchBytes
		case "sample":
			bytes = samplingBytes
		case "collect":
			bytes = collectBytes
		}
		if !strings.Contains(part, fmt.Sprintf("%s_param_0[%d]", name, bytes)) {
			t.Errorf("%s does not take %d bytes", name, bytes)
		}
	}
	if got, want := strings.Count(ptx, entry), len(allKernels()); got != want {
		t.Errorf("gather.ptx has %d kernels, want %d", got, want)
	}
	if _, err := kernels("gather_nothing"); err == nil {
		t.Error("a kernel was found that there is not")
	}
}

func allKernels() []string {
	names := []string{"gather_copy", "fetch", "sample", "collect"}
	types := []models.DType{models.U8, models.F16, models.F32}
	for _, to := range types {
		names = append(names, "gather_three_"+string(to)+"_planes", "gather_three_"+string(to)+"_pixels")
		for _, from := range types {
			names = append(names, anyKernel(&models.Input{WireType: from, TensorType: to}))
		}
	}
	return names
}
