package simulated

import (
	"fmt"
	"slices"
	"strings"

	"github.com/penstock/penstock/plan"
	"github.com/penstock/penstock/planner/pack"
	"github.com/penstock/penstock/planner/replay"
)

// levels are the latency bounds to try, as fractions of the objective, in
// descending order. One of them is the paper's half × 0.9.
var levels = []float64{1, 0.9, 0.8, 0.7, 0.6, 0.5, 0.45, 0.4, 0.3, 0.2, 0.1}

// headrooms are the fractions of the rate to try as headroom.
var headrooms = []float64{0, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 1, 2, 4, 9}

// A pair is a level and a headroom, as indexes into the lists, with the plan for
// the service alone.
type pair struct {
	level, room int
	headroom    float64
	// cost is the sum of the segments' fractions of a GPU.
	cost     float64
	segments []plan.Segment
}

// A student learns the level and the headroom of one service.
type student struct {
	policy  simulatedPolicy
	problem *plan.Problem
	service plan.Service
	// open are pairs that were planned but not yet replayed. seen marks all pairs
	// that were ever tried.
	open []pair
	seen [][]bool
	// passed is the replay's result by list of segments.
	passed        map[string]bool
	at            pair
	minViolations float64 // lowest upper end of the violations' interval
	err           error   // why even the loosest pair has no plan
}

func newStudent(policy simulatedPolicy, p *plan.Problem, s plan.Service) *student {
	st := &student{policy: policy, problem: p, service: s, passed: map[string]bool{}, minViolations: 1}
	st.seen = make([][]bool, len(levels))
	for i := range st.seen {
		st.seen[i] = make([]bool, len(headrooms))
	}
	st.add(0, 0)
	return st
}

// inflated is the service with its rate raised by the current pair's headroom.
func (st *student) inflated() plan.Service {
	s := st.service
	s.RateRPS *= 1 + st.at.headroom
	return s
}

// bound is the latency bound of the current pair, in milliseconds.
func (st *student) bound() float64 { return levelMS(st.service, st.at.level) }

func levelMS(s plan.Service, level int) float64 {
	if levels[level] == 0.45 {
		return plan.HalfSLO(s) // bit-identical to the bound of the other policies
	}
	return levels[level] * s.SLOMS
}

// add plans the service alone with a pair. It ignores pairs that do not exist or
// were tried before.
func (st *student) add(level, room int) {
	if level == len(levels) || room == len(headrooms) || st.seen[level][room] {
		return
	}
	st.seen[level][room] = true
	p := *st.problem
	s := st.service
	s.RateRPS *= 1 + headrooms[room]
	p.Services = []plan.Service{s}
	p.Bound = func(plan.Service) float64 { return levelMS(s, level) }
	made, err := pack.New().Plan(&p)
	if err != nil {
		if level == 0 && room == 0 {
			st.err = err
		}
		return // pairs that demand more have no plan either
	}
	n := pair{level: level, room: room, headroom: headrooms[room], segments: made.Segments}
	for _, g := range made.Segments {
		for _, stock := range p.Stocks() {
			if stock.GPU.Name == g.GPUModel {
				n.cost += float64(g.GPCs) / float64(stock.GPU.GPCs)
				break
			}
		}
	}
	st.open = append(st.open, n)
}

// next moves to the cheapest open pair that passes its replay. If several are
// equally cheap, it tries the one with the tighter bound first, then the one with
// more headroom.
func (st *student) next() error {
	for len(st.open) > 0 {
		best := 0
		for i, n := range st.open {
			if b := st.open[best]; n.cost < b.cost || n.cost == b.cost && (n.level > b.level || n.level == b.level && n.room > b.room) {
				best = i
			}
		}
		n := st.open[best]
		st.open = slices.Delete(st.open, best, best+1)
		st.add(n.level+1, n.room)
		st.add(n.level, n.room+1)
		if st.passes(n.segments) {
			st.at = n
			return nil
		}
	}
	if st.err != nil {
		return st.err
	}
	return &Unmet{Service: st.service, Threshold: st.policy.Threshold, MinViolations: st.minViolations}
}

// hopeless is the factor for the short replay: if its violations exceed hopeless
// times the threshold, the student skips the long replay.
const hopeless = 4

// passes reports whether the service passes its replay on these segments. A clear
// failure gets only a short replay.
func (st *student) passes(segments []plan.Segment) bool {
	var key []string
	for _, g := range segments {
		key = append(key, fmt.Sprintf("%s/%d/%d/%d", g.GPUModel, g.GPCs, g.Batch, g.Processes))
	}
	slices.Sort(key)
	mix := strings.Join(key, " ")
	if passes, known := st.passed[mix]; known {
		return passes
	}
	s := plan.Assigned{Service: st.service.Name, Model: st.service.Model, RateRPS: st.service.RateRPS, SLOMS: st.service.SLOMS}
	lesson := st.policy.Replay
	lesson.Requests, lesson.MinRuns, lesson.MaxRuns, lesson.Precision = 4000, 2, 2, 1
	r := replay.One(st.problem, s, segments, lesson)
	if r.Violations <= hopeless*st.policy.Threshold {
		lesson.Requests, lesson.MinRuns, lesson.MaxRuns, lesson.Precision = 10000, 5, 15, st.policy.Threshold/5
		r = replay.One(st.problem, s, segments, lesson)
		st.minViolations = min(st.minViolations, r.High)
	} else {
		st.minViolations = min(st.minViolations, r.Violations)
	}
	passes := r.Violations <= hopeless*st.policy.Threshold && r.High <= st.policy.Threshold
	st.passed[mix] = passes
	return passes
}
