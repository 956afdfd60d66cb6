package fleet

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
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
	offers *offers
	// short has services whose rates were lowered so that others do not move. It keeps their full rates.
	short []plan.Service
	// fits are the rates of short services that run with more. A plan of all services has no room for more.
	fits map[string]float64
}

func newPlanner(s *State) *planner {
	n := &planner{State: s, Result: &Result{Rates: map[string]float64{}, Conditions: map[string]Condition{}},
		functions: slices.SortedFunc(slices.Values(s.Functions), Function.compare),
		byName:    map[string]Function{}, wanted: map[string]plan.Service{}, fits: map[string]float64{}}
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
	n.offers = newOffers(n)
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
		if c := n.offers.refuse(f); c.Reason != "" {
			n.Conditions[name] = c
			if s, runs := n.board.services[name]; runs {
				n.wanted[name] = s
			}
			continue
		}
		s := f.service(min(whole(f.Rate), n.offers.reach(f)))
		if s.RateRPS = n.board.rest(name, s.RateRPS); s.RateRPS == 0 {
			// What is fixed suffices. The rest stays until the state of its GPUs is known.
			s.RateRPS = n.board.services[name].RateRPS
		}
		if s.RateRPS > 0 {
			n.wanted[name] = s
		}
	}
	n.limit(n.offers)
}

// solve makes a plan, for lower rates if these do not fit:
//
//  1. Functions that the fleet cannot serve completely, or only if functions of a higher priority move, stay as they run.
//  2. The others get their places. Functions that stay may move for them.
//  3. The first functions of step 1 get what is left. Nothing moves for them.
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
		case n.displaces(c):
		case n.exceeds(c.Plan, try):
		default:
			return n.keep(n.fill(c)), nil
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
	if len(n.fits) > 0 {
		for name, rate := range n.fits {
			n.lower(name, rate, v1alpha1.ReasonFleetTooSmall)
		}
		clear(n.fits)
		return
	}
	// change reports what fits around services that stay. pack serves the first ones.
	if _, err := pack.New().Plan(p); !errors.As(err, &small) || try > 0 {
		// What pack fits, change does not find: leave out the last one.
		last := &small.Services[len(small.Services)-1]
		last.PlacedRPS = 0
	}
	alone := !slices.ContainsFunc(small.Services, func(s plan.Served) bool { return s.PlacedRPS >= s.RateRPS })
	for _, served := range small.Services {
		if served.PlacedRPS >= served.RateRPS {
			continue
		}
		rate := math.Floor(served.PlacedRPS*1000) / 1000
		if runs := n.board.services[served.Service].RateRPS; try == 0 && !alone {
			if len(n.short) == 0 && runs > rate {
				n.fits[served.Service] = rate // it may keep what it has, because all that come before it are served
				rate = min(runs, served.RateRPS)
			}
			n.short = append(n.short, n.wanted[served.Service])
			rate = min(rate, runs)
		}
		n.lower(served.Service, rate, v1alpha1.ReasonFleetTooSmall)
	}
}

// displaces reports whether functions of a higher priority would move for others. Then these stay as they run.
func (n *planner) displaces(made *change.Change) (any bool) {
	moved := int32(math.MinInt32)
	for _, s := range made.Services {
		if s.Fate == change.Moves {
			moved = max(moved, n.byName[s.Service].Priority)
		}
	}
	for _, f := range n.functions {
		s, wanted := n.wanted[f.String()]
		if runs := n.board.services[f.String()].RateRPS; wanted && f.Priority < moved && s.RateRPS > runs {
			n.short = append(n.short, s)
			n.lower(s.Name, runs, v1alpha1.ReasonFleetTooSmall)
			any = true
		}
	}
	return any
}

// fill serves more of the short services if there is room around all others.
func (n *planner) fill(made *change.Change) *change.Change {
	if len(made.Plan.Segments) == 0 {
		return made
	}
	for _, s := range n.short[:min(len(n.short), tries)] {
		wanted, conditions := maps.Clone(n.wanted), maps.Clone(n.Conditions)
		if more := n.grow(made, s); more != nil && !n.exceeds(more.Plan, 1) {
			made = &change.Change{Plan: more.Plan, Steps: slices.Concat(made.Steps, more.Steps)}
		} else {
			n.wanted, n.Conditions = wanted, conditions
		}
	}
	return made
}

// keep leaves short services as they run if none of them got more at the cost of later ones.
func (n *planner) keep(made *change.Change) *change.Change {
	if len(n.short) == 0 {
		return made
	}
	for _, s := range n.short {
		now, runs := n.wanted[s.Name].RateRPS, n.board.services[s.Name].RateRPS
		if now > runs*(1+1e-9) {
			return made
		}
		if now < runs {
			break
		}
	}
	wanted, conditions := maps.Clone(n.wanted), maps.Clone(n.Conditions)
	for _, s := range n.short {
		full := s.RateRPS
		if s.RateRPS = min(full, n.board.services[s.Name].RateRPS); s.RateRPS > 0 {
			n.wanted[s.Name] = s
		}
		if s.RateRPS == full && n.Conditions[s.Name].Message == "" {
			delete(n.Conditions, s.Name)
		}
	}
	if as, err := n.plan(n.problem()); err == nil && !n.exceeds(as.Plan, 1) {
		return as
	}
	n.wanted, n.Conditions = wanted, conditions
	return made
}

// grow changes a plan for more of one service. It returns nil if there is no room.
func (n *planner) grow(made *change.Change, s plan.Service) *change.Change {
	had := n.wanted[s.Name].RateRPS
	all := s
	all.RateRPS = n.offers.reach(n.byName[s.Name]) // more than the fleet serves, so the error says what fits around the others
	n.wanted[s.Name] = all
	_, err := change.From(made.Plan, n.problem())
	small, isSmall := errors.AsType[*plan.TooSmall](err)
	if !isSmall {
		return nil
	}
	fits := small.Services[slices.IndexFunc(small.Services, func(o plan.Served) bool { return o.Service == s.Name })].PlacedRPS
	full := s.RateRPS
	if s.RateRPS = min(full, math.Floor(fits*1000)/1000); s.RateRPS <= had {
		return nil
	}
	if n.wanted[s.Name] = s; s.RateRPS == full && n.Conditions[s.Name].Message == "" {
		delete(n.Conditions, s.Name)
	}
	p := n.problem()
	more, err := change.From(made.Plan, p)
	if err != nil || verify.Plan(p, more.Plan) != nil ||
		slices.ContainsFunc(more.Services, func(s change.Service) bool { return s.Fate == change.Moves }) {
		return nil
	}

	// The second change knows a GPU that the first one leaves by another number, or gives its number to another model.
	models, left := map[int]string{}, map[string]int{}
	for _, stock := range n.stocks {
		left[stock.GPU.Name] = stock.Count
	}
	for i, g := range n.board.used {
		models[i] = g.Table.Name
		left[g.Table.Name]--
	}
	for _, step := range slices.Concat(made.Steps, more.Steps) {
		model, known := models[step.Segment.GPU]
		if !known {
			model = step.Segment.GPUModel
			models[step.Segment.GPU] = model
			left[model]--
		}
		if model != step.Segment.GPUModel || left[model] < 0 {
			return nil
		}
	}
	return more
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
