package fleet

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/penstock/penstock/cluster/api/v1alpha1"
	"github.com/penstock/penstock/models/profile"
	"github.com/penstock/penstock/plan"
)

// A State is everything that a fleet's plan depends on.
type State struct {
	Fleet string
	GPUs  []GPU
	// Functions are those that the fleet serves.
	Functions []Function
	// Profiles are keyed by table, then by model.
	Profiles map[string]map[string]plan.Profile
	// Limits are the max GPCs of namespaces. A namespace without an entry has no limit.
	Limits map[string]int
	// Plans are the fleet's GPUPlans.
	Plans []*v1alpha1.GPUPlan
	// Dead has the names of segments whose pods do not answer.
	Dead map[string]bool
	// Abandoned means that the last change was given up in the middle, or is not written completely. Functions may have more segments than they need.
	Abandoned bool
}

// A Function is what a fleet must serve.
type Function struct {
	types.NamespacedName
	Model    string
	SLO      time.Duration
	Port     int32
	Priority int32
	Created  time.Time
	// Rate is the rate to plan for. Planned is the rate that the running plan was made for, 0 if none was.
	Rate, Planned float64
	// Held, if not empty, says why the function must stay as it is.
	Held string
}

// compare orders functions: the first ones are served if a fleet is too small.
func (f Function) compare(o Function) int {
	return cmp.Or(cmp.Compare(o.Priority, f.Priority), f.Created.Compare(o.Created), cmp.Compare(f.String(), o.String()))
}

// service returns the function as a service of a plan.
func (f Function) service(rate float64) plan.Service {
	return plan.Service{Name: f.String(), Model: f.Model, RateRPS: rate, SLOMS: milliseconds(f.SLO)}
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// whole rounds a rate to what an object can hold (v1alpha1.Rate).
func whole(rate float64) float64 { return math.Round(rate*1000) / 1000 }

// A Condition is a condition of a Function or Fleet.
type Condition struct {
	OK              bool
	Reason, Message string
}

// ReadProfile reads a Profile object.
func ReadProfile(p *v1alpha1.Profile) (plan.Profile, error) {
	if _, err := plan.Lookup(p.Spec.GPU); err != nil {
		return plan.Profile{}, fmt.Errorf("spec.gpu: %w", err)
	}
	from, err := profile.Read(strings.NewReader(p.Spec.CSV), "spec.csv")
	if err != nil {
		return plan.Profile{}, err
	}
	to, err := plan.FromProfile(p.Spec.Model, from, p.Spec.GPU)
	switch {
	case err != nil:
		return plan.Profile{}, fmt.Errorf("spec.csv: %w", err)
	case to.GPU != p.Spec.GPU:
		return plan.Profile{}, fmt.Errorf("spec.csv: it was measured on %s: want spec.gpu %s", to.GPU, to.GPU)
	case len(to.Points) == 0:
		return plan.Profile{}, fmt.Errorf("spec.csv: no point serves: want one with a throughput and a latency above 0")
	}
	return to, nil
}

// Serving returns the fleet that serves a namespace: the oldest that names it, else the oldest that serves all. It is nil if
// there is none.
func Serving(fleets []*v1alpha1.Fleet, namespace string) *v1alpha1.Fleet {
	var all *v1alpha1.Fleet
	for _, f := range slices.SortedFunc(slices.Values(fleets), older) {
		if slices.ContainsFunc(f.Spec.Namespaces, func(n v1alpha1.NamespaceLimit) bool { return n.Name == namespace }) {
			return f
		}
		if len(f.Spec.Namespaces) == 0 && all == nil {
			all = f
		}
	}
	return all
}

// Urgent reports whether segments must be replaced that do not serve, or will not. Such a change does not wait for damping.
func (s *State) Urgent() bool {
	bad := map[string]bool{}
	for i := range s.GPUs {
		bad[s.GPUs[i].Name()] = s.GPUs[i].Health >= Leaving
	}
	for _, p := range s.Plans {
		for _, g := range p.Spec.Segments {
			if bad[p.Name] || s.Dead[g.Name] {
				return true
			}
		}
	}
	return false
}

// Overtaken returns why an unfinished change cannot go on: it creates a segment on a GPU that is lost, or it does not replace
// segments of one. It is empty if the change can go on.
func (s *State) Overtaken(steps []v1alpha1.Step) string {
	lost := map[string]string{}
	for i := range s.GPUs {
		if g := &s.GPUs[i]; g.Health == Lost {
			lost[g.Name()] = fmt.Sprintf("GPU %s is lost: %s", g.UUID, g.Why)
		}
	}
	ends := map[string]bool{}
	for _, step := range steps {
		if why := lost[step.GPUPlan]; why != "" && step.Op != v1alpha1.Destroy {
			return why
		}
		ends[step.Segment.Name] = step.Op == v1alpha1.Destroy
	}
	for _, p := range s.Plans {
		for _, g := range p.Spec.Segments {
			if why := lost[p.Name]; why != "" && !ends[g.Name] {
				return why
			}
		}
	}
	return ""
}
