package simulated

import (
	"fmt"
	"slices"
	"strings"

	"github.com/penstock/penstock/plan"
	"github.com/penstock/penstock/plan/pack"
	"github.com/penstock/penstock/plan/replay"
)

// levels are the latency bounds that are tried, as parts of the objective, from
// the loosest on. One of them is the paper's half × 0.9.
var levels = []float64{1, 0.9, 0.8, 0.7, 0.6, 0.5, 0.45, 0.4, 0.3, 0.2, 0.1}

// headrooms are the parts of the rate that are tried as headroom.
var headrooms = []float64{0, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 1, 2, 4, 9}

// A pair is a level and a headroom, by their places in the lists, with the plan
// for the service alone.
type pair struct {
	level, room int
	headroom    float64
	// cost is the part of a GPU that the segments take.
	cost     float64
	segments []plan.Segment
}

// A student learns what one service needs.
type student struct {
	policy  simulatedPolicy
	problem *plan.Problem
	service plan.Service
	// open are pairs that were planned and not yet replayed; seen has all that ever
	// were open.
	open []pair
	seen [][]bool
	// passed has what the replay said of segments.
	passed        map[string]bool
	at            pair
	minViolations float64 // upper end of the violations
	err           error   // why the loosest bound has no plan
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

// inflated is the service with the headroom of the present pair.
func (st *student) inflated() plan.Service {
	s := st.service
	s.RateRPS *= 1 + st.at.headroom
	return s
}

// bound is the latency bound of the present pair, in milliseconds.
func (st *student) bound() float64 { return levelMS(st.service, st.at.level) }

func levelMS(s plan.Service, level int) float64 {
	if levels[level] == 0.45 {
		return plan.HalfSLO(s) // to the last bit
	}
	return levels[level] * s.SLOMS
}

// add plans the service alone at a pair, if that was not done and can be.
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
		return // nor is there one with less
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

// next goes to the cheapest pair that is left and that the replay passes; of
// equally cheap ones to that with the tighter bound, then with more headroom.
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
		passes, err := st.replayed(n.segments)
		if err != nil {
			return err
		}
		if passes {
			st.at = n
			return nil
		}
	}
	if st.err != nil {
		return st.err
	}
	return &Unmet{Service: st.service, Threshold: st.policy.Threshold, MinViolations: st.minViolations}
}

// hopeless is how many times the threshold a short replay must show for the long
// one to be left out.
const hopeless = 4

// replayed says whether the service does on these segments. It spends less on
// what is clear than on what is near the threshold.
func (st *student) replayed(segments []plan.Segment) (bool, error) {
	var key []string
	for _, g := range segments {
		key = append(key, fmt.Sprintf("%s/%d/%d/%d", g.GPUModel, g.GPCs, g.Batch, g.Processes))
	}
	slices.Sort(key)
	mix := strings.Join(key, " ")
	if passes, known := st.passed[mix]; known {
		return passes, nil
	}
	s := plan.Assigned{Service: st.service.Name, Model: st.service.Model, RateRPS: st.service.RateRPS, SLOMS: st.service.SLOMS}
	lesson := st.policy.Replay
	lesson.Requests, lesson.MinRuns, lesson.MaxRuns, lesson.Precision = 4000, 2, 2, 1
	r, err := replay.One(st.problem, s, segments, lesson)
	if err != nil {
		return false, err
	}
	if r.Violations <= hopeless*st.policy.Threshold {
		lesson.Requests, lesson.MinRuns, lesson.MaxRuns, lesson.Precision = 10000, 5, 15, st.policy.Threshold/5
		if r, err = replay.One(st.problem, s, segments, lesson); err != nil {
			return false, err
		}
		st.minViolations = min(st.minViolations, r.High)
	} else {
		st.minViolations = min(st.minViolations, r.Violations)
	}
	passes := r.Violations <= hopeless*st.policy.Threshold && r.High <= st.policy.Threshold
	st.passed[mix] = passes
	return passes, nil
}
