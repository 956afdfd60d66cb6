package fleet

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/penstock/penstock/cluster/api/v1alpha1"
	"github.com/penstock/penstock/plan"
	"github.com/penstock/penstock/planner/change"
	"github.com/penstock/penstock/planner/pack"
	"github.com/penstock/penstock/planner/verify"
)

// A Result is the answer to a State.
type Result struct {
	// Steps lead from the running plan to the next one. They are empty if the running plan is right. New segments have no
	// names yet (Name).
	Steps []v1alpha1.Step
	// Rates are the rates that the next plan is made for, by function. A function that it does not serve has none.
	Rates map[string]float64
	// Conditions are Planned, by function.
	Conditions map[string]Condition
	// Fleet is the fleet's condition Planned.
	Fleet Condition
}

// tries is how often a plan is made for lower rates, if those before did not fit.
const tries = 8

// Next returns what to do in a state. If it finds no plan, the running one stays.
func Next(s *State) *Result {
	n := newPlanner(s)
	n.admit()
	made, err := n.solve()
	if err != nil {
		n.fail(err)
		return n.Result
	}
	n.conclude(made.Plan)
	n.Steps = n.steps(made)
	return n.Result
}

// planner makes a Result.
type planner struct {
	*State
	*Result
	// functions are in the order in which they are served if the fleet is too small.
	functions []Function
	byName    map[string]Function
	// stocks are the GPUs to plan on. profiles have the points of State.Profiles, and those at which segments run.
	stocks   []plan.Stock
	profiles map[string]map[string]plan.Profile
	board    *board
	// wanted are the services to plan for, without what is fixed.
	wanted map[string]plan.Service
}

func newPlanner(s *State) *planner {
	n := &planner{State: s, Result: &Result{Rates: map[string]float64{}, Conditions: map[string]Condition{}},
		functions: slices.SortedFunc(slices.Values(s.Functions), Function.compare),
		byName:    map[string]Function{}, wanted: map[string]plan.Service{}}
	for _, f := range n.functions {
		n.byName[f.String()] = f
	}
	stocks := map[string]plan.Stock{}
	for i := range s.GPUs {
		if g := &s.GPUs[i]; g.Health == Good {
			stocks[g.Table.Name] = plan.Stock{GPU: g.Table, Count: stocks[g.Table.Name].Count + 1}
		}
	}
	for _, g := range plan.GPUs() {
		if stock, ok := stocks[g.Name]; ok {
			n.stocks = append(n.stocks, stock)
		}
	}
	n.board = newBoard(n)
	return n
}

// problem returns the problem of serving what is wanted.
func (n *planner) problem() *plan.Problem {
	p := &plan.Problem{Profiles: n.profiles, Fleet: n.stocks}
	for _, f := range n.functions {
		if s, ok := n.wanted[f.String()]; ok {
			p.Services = append(p.Services, s)
		}
	}
	return p
}

// admit decides which functions can be planned, and at most for which rates. A function that cannot be planned as it is
// wanted, but runs, stays as it is.
func (n *planner) admit() {
	offers := newOffers(n)
	ports := map[string]Function{}
	byAge := slices.SortedFunc(slices.Values(n.functions), func(a, b Function) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.String(), b.String()))
	})
	for _, f := range byAge {
		name, port := f.String(), fmt.Sprintf("%s:%d", f.Namespace, f.Port)
		if other, twice := ports[port]; twice {
			n.Conditions[name] = Condition{Reason: v1alpha1.ReasonConflict,
				Message: fmt.Sprintf("spec.port: %d: function %s of the namespace, which is older, has it: want another one", f.Port, other.Name)}
			continue
		}
		ports[port] = f
		if c := offers.refuse(f); c.Reason != "" {
			n.Conditions[name] = c
			if s, runs := n.board.services[name]; runs {
				n.wanted[name] = s
			}
			continue
		}
		s := f.service(min(whole(f.Rate), offers.reach(f)))
		if s.RateRPS = n.board.rest(name, s.RateRPS); s.RateRPS == 0 {
			// What is fixed suffices. The rest stays until the state of its GPUs is known.
			s.RateRPS = n.board.services[name].RateRPS
		}
		if s.RateRPS > 0 {
			n.wanted[name] = s
		}
	}
	n.limit(offers)
}

// solve makes a plan, for lower rates if these do not fit.
func (n *planner) solve() (*change.Change, error) {
	err := errors.New("namespaces have limits that no plan was found for")
	for try := range tries {
		p := n.problem()
		c, why := n.plan(p)
		small, isSmall := errors.AsType[*plan.TooSmall](why)
		switch {
		case isSmall:
			err = why
			n.shrink(p, small, try)
		case why != nil:
			return nil, fmt.Errorf("make a plan: %w", why)
		case n.exceeds(c.Plan, try):
		default:
			return c, nil
		}
	}
	return nil, fmt.Errorf("make a plan: %w", err)
}

// plan makes a plan from the running one, and checks it.
func (n *planner) plan(p *plan.Problem) (c *change.Change, err error) {
	old := n.board.old(p)
	switch {
	case len(p.Services) == 0:
		c = &change.Change{Plan: plan.New(p, pack.New().Name(), nil)}
		for _, g := range old.Segments {
			c.Steps = append(c.Steps, change.Step{Op: change.Destroy, Segment: g, Why: g.Service + " is not wanted any more"})
		}
		return c, nil
	case len(old.Segments) == 0:
		c = &change.Change{}
		if c.Plan, err = pack.New().Plan(p); err != nil {
			return nil, err
		}
		for _, g := range c.Plan.Segments {
			c.Steps = append(c.Steps, change.Step{Op: change.Create, Segment: g, Why: g.Service + " needs it; the slots are free"})
		}
	default:
		if c, err = change.From(old, p); err != nil {
			return nil, err
		}
	}
	return c, verify.Plan(p, c.Plan)
}

// shrink lowers the rates to what fits. The first functions are served.
func (n *planner) shrink(p *plan.Problem, small *plan.TooSmall, try int) {
	// change reports what fits around services that stay. pack serves the first ones.
	if _, err := pack.New().Plan(p); !errors.As(err, &small) || try > 0 {
		// What pack fits, change does not find: leave out the last one.
		last := &small.Services[len(small.Services)-1]
		last.PlacedRPS = 0
	}
	for _, served := range small.Services {
		if served.PlacedRPS < served.RateRPS {
			n.lower(served.Service, math.Floor(served.PlacedRPS*1000)/1000, v1alpha1.ReasonFleetTooSmall)
		}
	}
}

// lower sets the rate of a function that cannot have all.
func (n *planner) lower(name string, rate float64, reason string) {
	if s := n.wanted[name]; rate > 0 {
		s.RateRPS = rate
		n.wanted[name] = s
	} else {
		delete(n.wanted, name)
	}
	if n.Conditions[name].Reason == "" {
		n.Conditions[name] = Condition{Reason: reason} // conclude adds the message
	}
}

// fail keeps the running plan.
func (n *planner) fail(err error) {
	// The planner's sentence can name each function of the fleet.
	n.Result.Fleet = Condition{Reason: v1alpha1.ReasonFleetTooSmall, Message: fmt.Sprintf("the plan stays as it is: %.1000s", err)}
	for _, f := range n.functions {
		if f.Planned > 0 {
			n.Rates[f.String()] = f.Planned
		}
		if n.Conditions[f.String()].Message == "" {
			n.Conditions[f.String()] = n.Result.Fleet
		}
	}
}

// conclude sets the rates and conditions of a plan.
func (n *planner) conclude(made *plan.Plan) {
	planned := map[string]float64{}
	for _, s := range made.Services {
		planned[s.Service] = s.RateRPS
	}
	bad := 0
	for _, f := range n.functions {
		name := f.String()
		c, wrong := n.Conditions[name]
		rate := whole(planned[name] + n.board.fixed[name])
		if rate = min(rate, whole(f.Rate)); c.Reason == v1alpha1.ReasonChangeFailed && f.Planned > 0 {
			rate = f.Planned
		}
		if rate > 0 {
			n.Rates[name] = rate
		}
		switch {
		case !wrong && rate >= whole(f.Rate):
			n.Conditions[name] = Condition{OK: true, Reason: v1alpha1.ReasonPlanned, Message: fmt.Sprintf("planned for %.6g requests/s", rate)}
			continue
		case c.Reason == v1alpha1.ReasonNamespaceLimit:
			c.Message = fmt.Sprintf("planned for %.6g of %.6g requests/s: namespace %s may use %d GPCs of fleet %s: want a higher limit, or a lower rate or priority of other functions there",
				rate, f.Rate, f.Namespace, n.Limits[f.Namespace], n.State.Fleet)
		case c.Message == "":
			c = Condition{Reason: v1alpha1.ReasonFleetTooSmall, Message: fmt.Sprintf("planned for %.6g of %.6g requests/s: fleet %s has no more GPUs that can serve: want more GPUs, a lower rate, or a higher priority",
				rate, f.Rate, n.State.Fleet)}
		}
		n.Conditions[name] = c
		bad++
	}
	n.Result.Fleet = Condition{OK: bad == 0, Reason: v1alpha1.ReasonPlanned, Message: "all functions are planned"}
	if bad > 0 {
		n.Result.Fleet.Message = fmt.Sprintf("%d of %d functions are not planned as they should be: see their conditions", bad, len(n.functions))
	}
}
