package planners_test

import (
	"encoding/json"
	"testing"

	"github.com/penstock/penstock/internal/testing/plantest"
	"github.com/penstock/penstock/research/planners"
)

func TestLimits(t *testing.T) { plantest.Limits(t, planners.All()) }

func TestEstimates(t *testing.T) { plantest.Estimates(t, planners.All()) }

func TestSamePlanTwice(t *testing.T) {
	for _, policy := range planners.All() {
		var first string
		for range 2 {
			made, err := policy.Plan(plantest.Scenario(t, "S3"))
			if err != nil {
				t.Fatalf("%s: %v", policy.Name(), err)
			}
			text, err := json.Marshal(made)
			if err != nil {
				t.Fatal(err)
			}
			if first != "" && string(text) != first {
				t.Errorf("%s plans\n%s\nthen\n%s", policy.Name(), first, text)
			}
			first = string(text)
		}
	}
}
