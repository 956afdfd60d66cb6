package cuda_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/penstock/penstock/cuda"
)

func TestErrorIs(t *testing.T) {
	sentinels := []error{cuda.ErrOutOfMemory, cuda.ErrLost, cuda.ErrServer, cuda.ErrTooFewSMs, cuda.ErrNotReady, cuda.ErrNotSupported, cuda.ErrNoDevice}
	lost := []cuda.Code{214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 805, 806, 807, 810}
	for code := cuda.Code(1); code < 1000; code++ {
		var want []error
		switch code {
		case 2:
			want = []error{cuda.ErrOutOfMemory}
		case 100, 101:
			want = []error{cuda.ErrNoDevice}
		case 600:
			want = []error{cuda.ErrNotReady}
		case 720, 912:
			want = []error{cuda.ErrTooFewSMs}
		case 801:
			want = []error{cuda.ErrNotSupported}
		}
		if slices.Contains(lost, code) {
			want = []error{cuda.ErrLost}
		}
		if code == 805 || code == 806 {
			want = append(want, cuda.ErrServer)
		}
		err := fmt.Errorf("run a batch: %w", &cuda.Error{Op: "cuX", Code: code})
		for _, s := range sentinels {
			if errors.Is(err, s) != slices.Contains(want, s) {
				t.Errorf("%v (%d) is %v: %v", code, code, s, errors.Is(err, s))
			}
		}
	}
	missing := &cuda.SymbolError{Symbol: "cuGreenCtxCreate", Library: "/lib/libcuda.so.1"}
	if !errors.Is(missing, cuda.ErrNoSymbol) || !errors.Is(missing, cuda.ErrNotSupported) || errors.Is(missing, cuda.ErrLost) {
		t.Error("a missing symbol is not what it should be")
	}
	if text := missing.Error(); !strings.Contains(text, "cuGreenCtxCreate") || !strings.Contains(text, "/lib/libcuda.so.1") {
		t.Error(text)
	}
}

func TestFindUUIDPrefix(t *testing.T) {
	a := cuda.NewDevice(0, "GPU-aa11bb22-0000-0000-0000-000000000000", "NVIDIA H200")
	b := cuda.NewDevice(1, "GPU-aa11cc33-0000-0000-0000-000000000000", "NVIDIA H200")
	for name, want := range map[string]cuda.Device{
		"cuda": a, "cuda:0": a, "cuda:1": b, "GPU-aa11b": a, "GPU-AA11C": b, "gpu-aa11c": b, a.UUID(): a,
	} {
		if got, err := cuda.FindIn(name, a, b); err != nil || got != want {
			t.Errorf("%q is %v, %v", name, got, err)
		}
	}
	_, err := cuda.FindIn("GPU-aa11", a, b)
	if !errors.Is(err, cuda.ErrNoDevice) || !strings.Contains(err.Error(), a.UUID()) || !strings.Contains(err.Error(), b.UUID()) {
		t.Errorf("two begin so: %v", err)
	}
	_, err = cuda.FindIn("cuda:2", a, b)
	if want := "cuda:1 = " + b.UUID() + " (NVIDIA H200)"; !errors.Is(err, cuda.ErrNoDevice) || !strings.Contains(err.Error(), want) {
		t.Errorf("the error does not list what there is: %v", err)
	}
	if _, err := cuda.FindIn("cuda"); err == nil || !strings.Contains(err.Error(), "none") {
		t.Errorf("where there is no device: %v", err)
	}
}
