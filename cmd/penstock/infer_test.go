package main

import (
	"strings"
	"testing"

	"github.com/penstock/penstock/gateway/functions"
	"github.com/penstock/penstock/wire"
)

func TestInferredText(t *testing.T) {
	for name, c := range map[string]struct {
		inferred inferred
		want     string
	}{
		"values": {inferred{Values: []float32{1, 2}}, "a.jpg: 2 values in 1.5 ms, first [1 2]\n"},
		"tensors": {
			inferred{Tensors: []wire.Tensor{
				{Name: "num", Type: "i64", Data: []byte{3, 0, 0, 0, 0, 0, 0, 0}},
				{Name: "y", Type: "u8", Shape: []int64{2, 5}, Data: []byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}},
			}},
			"a.jpg: 2 tensors in 1.5 ms\n  num i64 [], first [3]\n  y u8 [2 5], first [1 2 3 4 5 6 7 8]\n",
		},
		"nothing": {inferred{}, "a.jpg: 0 found in 1.5 ms\n"},
		"a class": {inferred{Found: []functions.Item{{Label: "cat", Score: 0.5}}}, "a.jpg: 1 found in 1.5 ms\n   50.0 %  cat\n"},
	} {
		t.Run(name, func(t *testing.T) {
			c.inferred.File, c.inferred.LatencyMS = "a.jpg", 1.5
			var out strings.Builder
			if err := c.inferred.print(&out); err != nil || out.String() != c.want {
				t.Errorf("%v; printed %q, want %q", err, out.String(), c.want)
			}
		})
	}
}
