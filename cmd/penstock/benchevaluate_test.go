package main

import (
	"strings"
	"testing"
)

// What `bench evaluate --help` shows can be typed.
func TestExamplesOfEvaluateParse(t *testing.T) {
	examples := strings.Split(evaluateCommand(nil).Example, "\n")
	for _, example := range examples {
		words := strings.Fields(example)
		if len(words) < 3 || strings.Join(words[:3], " ") != "penstock bench evaluate" {
			t.Fatalf("%q is no call of bench evaluate", example)
		}
		cmd := evaluateCommand(nil)
		if err := cmd.ParseFlags(words[3:]); err != nil {
			t.Errorf("%q: %v", example, err)
			continue
		}
		given, err := cmd.Flags().GetStringSlice("figure")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := figureNames(given); err != nil {
			t.Errorf("%q: %v", example, err)
		}
	}
}
