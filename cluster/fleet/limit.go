package fleet

import (
	"errors"
	"math"
	"slices"
	"time"

	"github.com/penstock/penstock/cluster/api/v1alpha1"
	"github.com/penstock/penstock/plan"
)

// offers knows at which points functions may run. Many functions have the same model and objective.
type offers struct {
	*planner
	known map[offer]*offered
}

type offer struct {
	model string
	slo   time.Duration
}

type offered struct {
	// why is why no GPU can serve the model within the objective.
	why error
	// reach is more than the whole fleet can serve.
	reach float64
	// best has the highest throughput of a segment, by its size (sevenths).
	best map[int]float64
}

func newOffers(n *planner) *offers { return &offers{n, map[offer]*offered{}} }

func (o *offers) of(f Function) *offered {
	key := offer{f.Model, f.SLO}
	if known := o.known[key]; known != nil {
		return known
	}
	p := &plan.Problem{Profiles: o.State.Profiles, Fleet: o.stocks}
	out := &offered{best: map[int]float64{}}
	o.known[key] = out
	for _, stock := range o.stocks {
		points, err := p.Feasible(stock.GPU, f.service(1))
		// An objective that cannot be met says more than a GPU without a profile.
		if _, noProfile := errors.AsType[*plan.NoProfile](out.why); out.why == nil || noProfile {
			out.why = err
		}
		most := 0.0
		for _, pt := range points {
			size := sevenths(stock.GPU, pt.GPCs)
			out.best[size] = max(out.best[size], pt.ThroughputRPS)
			most = max(most, pt.ThroughputRPS)
		}
		out.reach += most * float64(stock.GPU.GPCs*stock.Count)
	}
	if len(out.best) > 0 {
		out.why = nil
	}
	return out
}

func (o *offers) reach(f Function) float64 { return o.of(f).reach }

// refuse returns the condition of a function that cannot be planned.
func (o *offers) refuse(f Function) Condition {
	if f.Held != "" {
		return Condition{Reason: v1alpha1.ReasonChangeFailed, Message: f.Held}
	}
	if len(o.stocks) == 0 {
		return Condition{Reason: v1alpha1.ReasonFleetTooSmall, Message: "fleet " + o.State.Fleet + " has no GPU that can serve"}
	}
	why := o.of(f).why
	if why == nil {
		return Condition{}
	}
	if _, noProfile := errors.AsType[*plan.NoProfile](why); noProfile {
		return Condition{Reason: v1alpha1.ReasonNoProfile, Message: why.Error()}
	}
	return Condition{Reason: v1alpha1.ReasonInfeasible, Message: why.Error()}
}

// limit lowers the rates of functions whose namespaces may not have as many GPCs as they need at least.
func (n *planner) limit(o *offers) {
	left := map[string]int{}
	for namespace, most := range n.Limits {
		left[namespace] = most - n.board.fixedGPCs[namespace]
	}
	for _, f := range n.functions {
		s, wanted := n.wanted[f.String()]
		room, limited := left[f.Namespace]
		if !wanted || !limited {
			continue
		}
		gpcs, rate := cover(o.of(f).best, max(0, room), s.RateRPS)
		left[f.Namespace] -= gpcs
		if rate < s.RateRPS {
			n.lower(f.String(), math.Floor(rate*1000)/1000, v1alpha1.ReasonNamespaceLimit)
		}
	}
}

// cover returns the fewest GPCs that segments for a rate take, and the rate, or the highest rate of all in the room.
func cover(best map[int]float64, room int, rate float64) (gpcs int, served float64) {
	reach := []float64{0}
	for gpcs = 0; reach[gpcs] < rate && gpcs < room; {
		gpcs++
		most := reach[gpcs-1]
		for size, throughput := range best {
			if size <= gpcs {
				most = max(most, reach[gpcs-size]+throughput)
			}
		}
		reach = append(reach, most)
	}
	return gpcs, min(rate, reach[gpcs])
}

// exceeds reports whether a plan gives namespaces more than their limits. Then it lowers the rates of their functions, the
// last ones first. At the first try, functions that should grow stay as they run. After some tries, functions get nothing.
func (n *planner) exceeds(made *plan.Plan, try int) bool {
	used, of := map[string]int{}, map[string]int{}
	tables := map[string]plan.GPU{}
	for _, stock := range n.stocks {
		tables[stock.GPU.Name] = stock.GPU
	}
	for _, g := range made.Segments {
		gpcs := sevenths(tables[g.GPUModel], g.GPCs)
		of[g.Service] += gpcs
		used[n.namespace(g.Service)] += gpcs
	}
	exceeded := false
	for namespace, most := range n.Limits {
		excess := used[namespace] + n.board.fixedGPCs[namespace] - most
		if used[namespace] == 0 || excess <= 0 {
			continue
		}
		exceeded = true
		if try == 0 && n.stay(namespace) {
			continue
		}
		for _, f := range slices.Backward(n.functions) {
			name := f.String()
			if f.Namespace != namespace || excess <= 0 || of[name] == 0 {
				continue
			}
			left := max(0, of[name]-excess)
			if try > 2 {
				left = 0 // the smallest segment may be too large
			}
			excess -= of[name] - left
			n.lower(name, math.Floor(n.wanted[name].RateRPS*1000*float64(left)/float64(of[name]))/1000, v1alpha1.ReasonNamespaceLimit)
		}
	}
	return exceeded
}

func (n *planner) namespace(service string) string { return n.byName[service].Namespace }

// stay lets functions of a namespace that should grow stay as they run. It reports whether there are any.
func (n *planner) stay(namespace string) (any bool) {
	for _, f := range n.functions {
		s, wanted := n.wanted[f.String()]
		if was, runs := n.board.services[f.String()]; f.Namespace == namespace && wanted && runs && was.RateRPS < s.RateRPS*(1-1e-6) {
			n.lower(f.String(), was.RateRPS, v1alpha1.ReasonNamespaceLimit)
			any = true
		}
	}
	return any
}
