package replay_test

import (
	"os"
	"testing"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/plan"
	"github.com/penstock/penstock/planner/pack"
	"github.com/penstock/penstock/planner/replay"
)

// published returns ParvaGPU's profiles and a scenario of its Table IV, with
// all rates scaled.
func published(t testing.TB, scenario string, rates float64) *plan.Problem {
	t.Helper()
	profiles, err := plan.ReadProfiles(os.DirFS("../../plan/testdata/parvagpu/prof_data"))
	must.OK(t, err)
	file, err := os.Open("../../plan/testdata/parvagpu/scenarios_s1_s3.csv")
	must.OK(t, err)
	defer file.Close()
	services, err := plan.ReadServices(file, file.Name(), scenario)
	must.OK(t, err)
	for i := range services {
		services[i].RateRPS *= rates
	}
	gpu, err := plan.Lookup("a100-80")
	must.OK(t, err)
	return &plan.Problem{GPU: gpu, Services: services, Profiles: profiles}
}

// worst plans, replays, and returns the service with the most violations.
func worst(t testing.TB, policy plan.Policy, p *plan.Problem, c replay.Config) replay.Service {
	t.Helper()
	pl, err := policy.Plan(p)
	must.OK(t, err)
	r, err := replay.Run(p, pl, c)
	must.OK(t, err)
	for _, s := range r.Services {
		if s.Service == r.Worst {
			return s
		}
	}
	t.Fatalf("no service %q", r.Worst)
	return replay.Service{}
}

// Half is not enough if the throughput is used almost completely.
func TestHalfAtFullLoad(t *testing.T) {
	p := published(t, "S3", 1)
	if s := worst(t, pack.New(), p, replay.Config{}); s.Load < 0.98 || s.Low < 0.005 {
		t.Errorf("%+v", s)
	}
}
