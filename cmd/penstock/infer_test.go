package main

import (
	"strings"
	"testing"

	"github.com/penstock/penstock/gateway/functions"
)

func TestInferredText(t *testing.T) {
	for name, c := range map[string]struct {
		inferred inferred
		want     string
	}{
		"values":  {inferred{Values: []float32{1, 2}}, "a.jpg: 2 values in 1.5 ms, first [1 2]\n"},
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
