package main

import (
	"strings"
	"testing"
)

// A user may have edited the plan's file. Its latency bounds are checked, because
// services may answer as late as the bounds allow.
func TestPlanFromOtherBound(t *testing.T) {
	rows := "resnet50,100,100\n"
	text := plannedWith(t, "--services", services(t, rows), "-o", "json")
	for _, bound := range []string{"99", "0", "44.9"} {
		edited := strings.Replace(text, `"latency_bound_ms": 45`, `"latency_bound_ms": `+bound, 1)
		if edited == text {
			t.Fatal(text)
		}
		_, err := penstock(t, "plan", "--profiles", published, "--services", services(t, rows), "--from", file(t, "old.json", edited))
		if err == nil || !strings.Contains(err.Error(), "services[0]: latency_bound_ms "+bound+": want 45") {
			t.Errorf("%s: %v", bound, err)
		}
	}
	// The unchanged plan is accepted, with the bound of another objective.
	out := plannedWith(t, "--services", services(t, "resnet50,100,130\n"), "--from", file(t, "old.json", text), "-o", "json")
	if bound := read(t, out).Services[0].LatencyBoundMS; bound != 58.5 {
		t.Error(bound)
	}
}
