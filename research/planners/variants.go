package planners

import (
	"slices"

	"github.com/penstock/penstock/plan"
)

// single is ParvaGPU without MPS, the policy "parvagpu-single" of its section IV-A: it sees
// only the points of one process per segment.
type single struct{ plan.Policy }

func (single) Name() string { return "parvagpu-single" }

func (s single) Plan(p *plan.Problem) (*plan.Plan, error) {
	alone := *p
	alone.Profiles = make(map[string]map[string]plan.Profile, len(p.Profiles))
	for gpu, models := range p.Profiles {
		alone.Profiles[gpu] = make(map[string]plan.Profile, len(models))
		for model, profile := range models {
			profile.Points = slices.DeleteFunc(slices.Clone(profile.Points), func(pt plan.Point) bool { return pt.Processes > 1 })
			alone.Profiles[gpu][model] = profile
		}
	}

	made, err := s.Policy.Plan(&alone)
	if err != nil {
		return nil, err
	}
	made.Policy = s.Name()
	return made, nil
}
