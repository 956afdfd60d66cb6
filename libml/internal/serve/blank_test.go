package serve

import (
	"encoding/binary"
	"math"
	"strings"
	"testing"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testing/functiontest"
)

// A value of the outputs that was not written is an error.
func TestWritten(t *testing.T) {
	card := functiontest.Card()
	fresh := func() [][]byte {
		outputs := [][]byte{make([]byte, 2*3*4), make([]byte, 2*4*4)}
		wipe(outputs)
		return outputs
	}
	fill := func(out []byte, bits uint32) {
		for at := 0; at < len(out); at += 4 {
			binary.LittleEndian.PutUint32(out[at:], bits)
		}
	}
	outputs := fresh()
	if err := checkWritten(card, outputs); err == nil || !strings.HasPrefix(err.Error(), "6 of 6 values of output a were not written") {
		t.Errorf("nothing written: %v", err)
	}
	fill(outputs[0], 0)
	fill(outputs[1][:3*4], 0)
	if err := checkWritten(card, outputs); err == nil || !strings.HasPrefix(err.Error(), "5 of 8 values of output b were not written") {
		t.Errorf("some written: %v", err)
	}
	// Every computed value counts as written, even a NaN.
	for _, value := range []float32{0, -1, math.MaxFloat32, float32(math.Inf(-1)), float32(math.NaN()), -float32(math.NaN())} {
		outputs := fresh()
		for _, out := range outputs {
			fill(out, math.Float32bits(value))
		}
		if err := checkWritten(card, outputs); err != nil {
			t.Errorf("%g: %v", value, err)
		}
	}
}

// A model that does not write its outputs never serves: it would return their old
// contents.
func TestWarmUpWithoutOutputs(t *testing.T) {
	h, f := newHarness(t, functiontest.Card()), functiontest.NewFake()
	f.Idle = true
	c := h.start(1, f.Build, nil)
	c.order(control.Order{Do: control.DoWake, SharePercent: 50})
	if err := c.end(); err == nil || !strings.Contains(err.Error(), "warm up test at batch 8: 24 of 24 values of output a were not written") {
		t.Errorf("it ends with %v", err)
	}
}
