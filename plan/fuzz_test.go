package plan_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/models/document"
	"github.com/penstock/penstock/plan"
	"github.com/penstock/penstock/planner/verify"
)

// checkProblem checks that an error of a reader has a file, line and column.
func checkProblem(t *testing.T, err error) {
	t.Helper()
	var at *document.Problem
	if err != nil && (!errors.As(err, &at) || at.File != "file" || at.Line < 0 || at.Line > 0 && at.Column < 1) {
		t.Errorf("%#v does not say where", err)
	}
}

func FuzzReadServices(f *testing.F) {
	f.Add("model,rate_rps,slo_ms\na,1,2\n", "")
	f.Add("scenario,service,model,rate_rps,slo_ms\nS1,x,a,1e3,.2\nS2,x,\"b\nc\",1,2\n", "S2")
	f.Add("model,rate_rps,slo_ms\n\"a,1\n", "")
	f.Fuzz(func(t *testing.T, text, scenario string) {
		services, err := plan.ReadServices(strings.NewReader(text), "file", scenario)
		checkProblem(t, err)
		p := plan.Problem{GPU: lookup(t, "a30"), Services: services}
		if err == nil && p.Check() != nil {
			t.Errorf("read without an error, and then: %v", p.Check())
		}
	})
}

func FuzzReadFleet(f *testing.F) {
	f.Add("gpu,count\na30,2\nv100,unlimited\n")
	f.Fuzz(func(t *testing.T, text string) {
		fleet, err := plan.ReadFleet(strings.NewReader(text), "file")
		checkProblem(t, err)
		for _, s := range fleet {
			if s.Count == 0 || len(s.GPU.Sizes) == 0 {
				t.Errorf("stock %v", s)
			}
		}
	})
}

func FuzzReadPlan(f *testing.F) {
	f.Add(small)
	f.Add(strings.Replace(small, `"gpus": 1`, `"gpus": -9223372036854775808, "idle_gpus": [0]`, 1))
	f.Fuzz(func(t *testing.T, text string) {
		pl, err := plan.Read(strings.NewReader(text), "file")
		checkProblem(t, err)
		if err != nil {
			return
		}
		_ = verify.Layout(pl)
		again, err := json.Marshal(pl)
		must.OK(t, err)
		if _, err := plan.Read(bytes.NewReader(again), "file"); err != nil {
			t.Errorf("written again: %v", err)
		}
	})
}
