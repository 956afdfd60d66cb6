package planner

import (
	"context"
	"errors"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/plan"
	"github.com/penstock/penstock/research/planners/parvagpu"
)

// published returns options with ParvaGPU's profiles and scenarios.
func published(t *testing.T) Options {
	t.Helper()
	o := Options{Times: []int{1, 2}, Services: []int{1, 20}, Limit: time.Minute, Seed: 1}
	var err error
	if o.GPU, err = plan.Lookup("a100-80"); err != nil {
		t.Fatal(err)
	}
	if o.Profiles, err = plan.ReadProfiles(os.DirFS("../../plan/testdata/parvagpu/prof_data")); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open("../../plan/testdata/parvagpu/scenarios_s1_s3.csv")
	must.OK(t, err)
	defer f.Close()
	services, err := plan.ReadServices(f, f.Name(), "S3")
	must.OK(t, err)
	o.Scenarios = []Scenario{{Name: "S3", Services: services}}
	o.Drawn = o.Scenarios
	return o
}

// made is a policy with a name and a function that a test supplies.
type made struct {
	name string
	plan func(*plan.Problem) (*plan.Plan, error)
}

func (m made) Name() string                             { return m.name }
func (m made) Plan(p *plan.Problem) (*plan.Plan, error) { return m.plan(p) }

func TestReport(t *testing.T) {
	o := published(t)
	o.Policies = []plan.Policy{parvagpu.New()}
	said := 0
	o.Progress = func(done, all int, what string) {
		if done != said || all != 6 {
			t.Errorf("told %d of %d, want %d of 6", done, all, said)
		}
		said++
	}
	r, err := Run(context.Background(), o)
	must.OK(t, err)
	if said != 6 || len(r.Delays) != 2 || len(r.Counts) != 4 || len(r.Missing) != 0 {
		t.Errorf("told %d times of %+v", said, r)
	}
	want := []struct {
		scale                 Scale
		times, services, gpus int
	}{{scaleServices, 1, 11, 5}, {scaleServices, 2, 22, 10}, {scaleRates, 1, 11, 5}, {scaleRates, 2, 11, 9}}
	for i, w := range want {
		c := r.Counts[i]
		if c.Scale != w.scale || c.Times != w.times || c.Services != w.services || c.GPUs != w.gpus || c.Runs < minRuns || c.DelayMS <= 0 {
			t.Errorf("count %d is %+v, want %+v", i, c, w)
		}
	}
}

func TestTimeLimit(t *testing.T) { synctest.Test(t, testTimeLimit) }

// In testTimeLimit only Sleep takes time, so a busy machine does not exceed the limit.
func testTimeLimit(t *testing.T) {
	o := published(t)
	const limit = 500 * time.Millisecond
	o.Services, o.Times, o.Limit = []int{1, 2, 3}, nil, limit
	asked := 0
	o.Policies = []plan.Policy{made{"slow", func(p *plan.Problem) (*plan.Plan, error) {
		asked++
		if len(p.Services) == 2 {
			time.Sleep(limit + time.Millisecond)
		}
		return parvagpu.New().Plan(p)
	}}}
	r, err := Run(context.Background(), o)
	must.OK(t, err)
	if len(r.Delays) != 2 || len(r.Missing) != 1 || r.Missing[0].Services != 3 || !strings.Contains(r.Missing[0].Why, "more than 500ms") {
		t.Fatalf("delays %+v, missing %+v: want three services missing", r.Delays, r.Missing)
	}
	if two := r.Delays[1]; two.Runs != 1 {
		t.Errorf("%d runs of what takes longer than the limit, want 1", two.Runs)
	}
}

func TestPolicyErrors(t *testing.T) {
	o := published(t)
	o.Services, o.Times = []int{1}, nil
	o.Policies = []plan.Policy{made{"undivided", func(p *plan.Problem) (*plan.Plan, error) {
		return nil, &plan.Infeasible{Service: p.Services[0], Reason: "undivided"}
	}}}
	r, err := Run(context.Background(), o)
	if err != nil || len(r.Delays) != 0 || len(r.Missing) != 1 || r.Missing[0].Why == "" {
		t.Errorf("%+v, %v: want one missing, and why", r, err)
	}
}

func TestWrongPlan(t *testing.T) {
	o := published(t)
	o.Services, o.Times = []int{2}, nil
	o.Policies = []plan.Policy{made{"wrong", func(p *plan.Problem) (*plan.Plan, error) {
		pl, err := parvagpu.New().Plan(p)
		if err == nil {
			pl.Segments[0].Slot++
		}
		return pl, err
	}}}
	if _, err := Run(context.Background(), o); err == nil || !strings.Contains(err.Error(), "the plan is wrong") {
		t.Errorf("a plan in a slot that there is not: %v", err)
	}
}

func TestInterrupt(t *testing.T) {
	o := published(t)
	o.Policies = []plan.Policy{parvagpu.New()}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Run(ctx, o); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want %v", err, context.Canceled)
	}
}

func TestSeed(t *testing.T) {
	o := published(t)
	a, b := many(o.Scenarios, 300, 1), many(o.Scenarios, 300, 1)
	if !reflect.DeepEqual(a, b) {
		t.Error("the same seed draws others")
	}
	if reflect.DeepEqual(a, many(o.Scenarios, 300, 2)) {
		t.Error("another seed draws the same")
	}
	seen := map[string]bool{}
	for _, s := range a {
		of := slices.IndexFunc(o.Scenarios[0].Services, func(x plan.Service) bool { return x.Model == s.Model })
		from := o.Scenarios[0].Services[of]
		if seen[s.Name] || s.RateRPS < from.RateRPS*0.1 || s.RateRPS > from.RateRPS || s.SLOMS < from.SLOMS || s.SLOMS > from.SLOMS*1.5 {
			t.Errorf("%+v is drawn from %+v", s, from)
		}
		seen[s.Name] = true
	}
}
