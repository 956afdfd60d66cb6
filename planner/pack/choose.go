package pack

import (
	"cmp"
	"math"
	"slices"
)

// option is one mix that a demand may use in a search, with its contribution to each row.
type option struct {
	mix    []int32
	loads  []float64 // by row
	weight float64   // in the relaxation's solution
	excess float64   // its cost at the relaxation's prices above the demand's min, in GPUs
}

// row is one linear rule that a choice of mixes must satisfy: Σ price × items ≤ target.
type row struct {
	of     rowKind
	price  []float64
	target float64
}

type rowKind int

const (
	// gpuRow is one of the rules of a kind's cut. Its target is the number of GPUs that the kind
	// may use.
	gpuRow rowKind = iota
	// gpcRow counts GPCs.
	gpcRow
	// cutRow is a bound that a relaxation proved. It only drops states that cannot lead to an
	// answer.
	cutRow
)

// rows lists the rules of a task, given the GPUs that each kind may use, and then the row of GPCs.
func (t *task) rows(gpus []int, gpcs float64) []row {
	var rows []row
	for m := range t.kinds {
		k := &t.kinds[m]
		rules, _ := k.cut.rules()
		for _, rule := range rules {
			price := make([]float64, t.items)
			copy(k.of(price), rule)
			rows = append(rows, row{of: gpuRow, price: price, target: float64(gpus[m])})
		}
	}
	return append(rows, row{of: gpcRow, price: t.gpcs, target: gpcs})
}

// search chooses one option for each demand.
type search struct {
	*task
	relaxed relaxation
	rows    []row
	lists   [][]option
	order   []int
}

// search prepares a search with split GPUs of each kind and a target of GPCs. The demands come in
// order of cost, the highest first: small ones are best for using up what is left.
func (t *task) search(relaxed relaxation, split []int, gpcs float64) *search {
	s := &search{task: t, relaxed: relaxed, rows: t.rows(split, gpcs), order: make([]int, len(t.demands))}
	for i := range s.order {
		s.order[i] = i
	}
	slices.SortStableFunc(s.order, func(a, b int) int { return cmp.Compare(relaxed.least[b], relaxed.least[a]) })
	return s
}

// enlarge adds mixes to those of the relaxation: all mixes whose cost is at most slack above a
// demand's min, at the relaxation's prices. It then makes options of all. It returns false if a mix
// may be missing, because most limits their number per demand. A demand of many segments has more
// mixes than that; a search then needs those near the relaxation's solution.
func (s *search) enlarge(slack float64, most int, drop bool) (all bool) {
	coverer := &coverer{}
	all = true
	s.lists = make([][]option, len(s.demands))
	unit := s.unit()
	for i, d := range s.demands {
		limit := s.relaxed.least[i] + slack
		if !coverer.every(d, s.relaxed.price, limit, most, func(mix []int) { s.relaxed.remember(i, mix) }) {
			all = false
			s.enlargeNear(coverer, i, limit, most)
		}
		s.lists[i] = options(s.rows, s.relaxed.columns[i], drop)
		for j := range s.lists[i] {
			o := &s.lists[i][j]
			o.excess = (s.costs(o.mix) - s.relaxed.least[i]) / unit
		}
	}
	return all
}

// costs returns the cost of a mix at the relaxation's prices.
func (s *search) costs(mix []int32) (sum float64) {
	for k, n := range mix {
		sum += s.relaxed.price[k] * float64(n)
	}
	return sum
}

// enlargeNear adds mixes of a demand that differ from the relaxation's solution by few segments. It
// keeps all but the last nearSegments of each item. It covers the rest of the rate in every way
// within the limit.
func (s *search) enlargeNear(coverer *coverer, demand int, limit float64, most int) {
	solution := make([]float64, s.items)
	for _, c := range s.relaxed.columns[demand] {
		for k, n := range c.mix {
			solution[k] += c.weight * float64(n)
		}
	}
	d := s.demands[demand]
	rest := d
	kept := make([]int, s.items)
	for k, x := range solution {
		kept[k] = max(0, int(x)-nearSegments)
		rest.rate -= float64(kept[k]) * d.gives[k]
		limit -= float64(kept[k]) * s.relaxed.price[k]
	}
	if rest.rate <= 0 || rest.rate == d.rate {
		return
	}
	whole := make([]int, s.items)
	coverer.every(rest, s.relaxed.price, limit, most, func(mix []int) {
		for k, n := range mix {
			whole[k] = kept[k] + n
		}
		s.relaxed.remember(demand, whole)
	})
}

// nearSegments is how many segments of each item enlargeNear may replace.
const nearSegments = 3

// bound adds the relaxation's bound as a row: an answer of the given cost may not exceed it.
func (s *search) bound(cost float64) {
	s.rows = append(s.rows, row{of: cutRow, price: s.relaxed.price, target: cost + s.relaxed.offset})
	for i := range s.lists {
		for j := range s.lists[i] {
			o := &s.lists[i][j]
			o.loads = append(slices.Clip(o.loads), s.costs(o.mix))
		}
	}
}

// options turns mixes into options. If drop is set, it removes options that are not better than
// another one in any row. An A100 has four rules and the GPCs as rows, so few options are left.
func options(rows []row, columns []column, drop bool) []option {
	list := make([]option, len(columns))
	flat := make([]float64, len(columns)*len(rows))
	for i, c := range columns {
		loads := flat[i*len(rows) : (i+1)*len(rows)]
		for r := range rows {
			price := rows[r].price
			for k, n := range c.mix {
				if n != 0 {
					loads[r] += price[k] * float64(n)
				}
			}
		}
		list[i] = option{mix: c.mix, weight: c.weight, loads: loads}
	}
	if drop {
		return undominated(list)
	}
	return list
}

// undominated removes options that are not better than another one in any row, and adds their
// weights to that one.
func undominated(list []option) []option {
	kept := make([]option, 0, len(list))
	instead := make([]int, len(list)) // index in list of the option that replaces it
	for i, a := range list {
		instead[i] = i
		for j, b := range list {
			if i != j && dominated(b.loads, a.loads) && (!dominated(a.loads, b.loads) || j < i) {
				instead[i] = j
				break
			}
		}
	}
	place := make([]int, len(list))
	for i, a := range list {
		if instead[i] == i {
			place[i] = len(kept)
			kept = append(kept, a)
		}
	}
	for i, a := range list {
		at := i
		for instead[at] != at {
			at = instead[at]
		}
		if at != i {
			kept[place[at]].weight += a.weight
		}
	}
	return kept
}

// choice is one option per demand, and the sum of their loads.
type choice struct {
	options []int32
	loads   []float64
}

// state is a choice for the first demands.
type state struct {
	loads  []float64
	excess float64
	score  float64
	parent int32 // its index in the previous layer
	option int32
}

// even is how far rounding may push a load above its target.
const even = 1e-6

// beam chooses an option for each demand, one demand after another in the search's order. It keeps
// at most width states. The score of a state has three parts. First, beam assumes that all
// remaining demands take their relaxed, fractional mixes, and squares what the sum exceeds the
// rows' targets by. Second, it adds what the state's options cost beyond the min, which no later
// choice can regain. Third, it adds a small weight for the GPCs. Each choice therefore compensates
// for the rounding of the previous ones. beam drops a state if its loads exceed a target even if
// all remaining demands take the min of every row. hard means that this applies to the GPCs, too.
//
// It returns the final states that keep all targets, the fewest GPCs first. whole means that no
// state was dropped because of width. If there are then no choices, these options have none.
func (s *search) beam(width int, hard bool) (choices []choice, whole bool) {
	if slices.ContainsFunc(s.lists, func(list []option) bool { return len(list) == 0 }) {
		return nil, true
	}
	R := len(s.rows)
	minLoadsByDemand, minLoads, future := s.outlook()
	layers := [][]state{{{loads: make([]float64, R), parent: -1, option: -1}}}
	whole = true
	var next []state
	var flat []float64 // the loads of next
	for _, demand := range s.order {
		list := s.lists[demand]
		for r := range future {
			minLoads[r] -= minLoadsByDemand[demand][r]
			for _, o := range list {
				future[r] -= o.weight * o.loads[r]
			}
		}
		last := layers[len(layers)-1]
		if need := len(last) * len(list) * R; cap(flat) < need {
			flat = make([]float64, need)
		}
		next = s.extend(next[:0], flat, last, list, outlook{minLoads, future, hard})
		kept, all := s.best(next, width)
		whole = whole && all
		layers = append(layers, kept)
	}
	return s.choices(layers), whole
}

// outlook describes the remaining demands: their min loads, and those of the relaxed mixes. hard is
// beam's parameter.
type outlook struct {
	minLoads, future []float64
	hard             bool
}

// extend appends each possible combination of a state and an option to next. flat holds the loads
// of these.
func (s *search) extend(next []state, flat []float64, last []state, list []option, ahead outlook) []state {
	R, used := len(s.rows), 0
	for i, st := range last {
		for j, o := range list {
			loads := flat[used : used+R : used+R]
			for r := range loads {
				loads[r] = st.loads[r] + o.loads[r]
			}
			if !s.possible(loads, ahead.minLoads, ahead.hard) {
				continue
			}
			used += R
			excess := st.excess + o.excess
			next = append(next, state{loads: loads, excess: excess, score: excess + s.overshoot(loads, ahead.future),
				parent: int32(i), option: int32(j)})
		}
	}
	return next
}

// outlook computes the outlook before the first choice. It returns the min of every row per demand,
// the sum of these, and the sum of the relaxed mixes.
func (s *search) outlook() (minLoadsByDemand [][]float64, minLoads, future []float64) {
	R := len(s.rows)
	minLoadsByDemand, minLoads, future = make([][]float64, len(s.lists)), make([]float64, R), make([]float64, R)
	for d, list := range s.lists {
		minLoadsByDemand[d] = slices.Clone(list[0].loads)
		for _, o := range list {
			for r, load := range o.loads {
				future[r] += o.weight * load
				minLoadsByDemand[d][r] = min(minLoadsByDemand[d][r], load)
			}
		}
		for r := range minLoads {
			minLoads[r] += minLoadsByDemand[d][r]
		}
	}
	return minLoadsByDemand, minLoads, future
}

// possible reports whether loads can still keep the targets.
func (s *search) possible(loads, minLoads []float64, hard bool) bool {
	for r := range loads {
		if loads[r]+minLoads[r] > s.rows[r].target+even && (s.rows[r].of != gpcRow || hard) {
			return false
		}
	}
	return true
}

// overshoot scores where loads lead. GPUs come first. GPCs only decide between states that are
// equal in GPUs. They weigh a little more above their target, which is the min.
func (s *search) overshoot(loads, future []float64) (score float64) {
	for r := range loads {
		over := loads[r] + future[r] - s.rows[r].target
		switch {
		case s.rows[r].of == gpcRow:
			score += 1e-4*over + 1e-2*max(0, over)
		case s.rows[r].of == gpuRow && over > 1e-9:
			score += over*over + 1e-3*over
		}
	}
	return score
}

// best keeps the width best states. It keeps only the best of several states with the same loads.
// all means that it dropped no other states. It copies the loads of the states that it keeps.
func (s *search) best(next []state, width int) (kept []state, all bool) {
	distinct := len(s.rows) // cut rows do not distinguish states
	for s.rows[distinct-1].of == cutRow {
		distinct--
	}
	ranks := make([]int32, len(next))
	for i := range ranks {
		ranks[i] = int32(i)
	}
	slices.SortFunc(ranks, func(a, b int32) int { return cmp.Or(cmp.Compare(next[a].score, next[b].score), cmp.Compare(a, b)) })
	kept = make([]state, 0, min(width, len(next)))
	seen := make(map[uint64]int, min(width, len(next)))
	for _, at := range ranks {
		st := next[at]
		key := fingerprint(st.loads[:distinct])
		if twin, ok := seen[key]; ok && near(kept[twin].loads[:distinct], st.loads[:distinct]) {
			continue
		}
		if len(kept) == width {
			return kept, false
		}
		seen[key] = len(kept)
		st.loads = slices.Clone(st.loads)
		kept = append(kept, st)
	}
	return kept, true
}

// choices follows each final state back through the layers.
func (s *search) choices(layers [][]state) []choice {
	last := layers[len(layers)-1]
	choices := make([]choice, len(last))
	for i := range last {
		choices[i] = choice{options: make([]int32, len(s.order)), loads: last[i].loads}
		at := int32(i)
		for l := len(s.order); l > 0; l-- {
			st := layers[l][at]
			choices[i].options[s.order[l-1]] = st.option
			at = st.parent
		}
	}
	gpc := slices.IndexFunc(s.rows, func(r row) bool { return r.of == gpcRow })
	slices.SortStableFunc(choices, func(a, b choice) int { return cmp.Compare(a.loads[gpc], b.loads[gpc]) })
	return choices
}

// fingerprint is equal for loads that are equal up to rounding. If such loads are on both sides of
// a step, it differs: a state is then kept twice, which only costs time.
func fingerprint(loads []float64) uint64 {
	h := uint64(14695981039346656037) // FNV-1a over rounded loads
	for _, x := range loads {
		h = (h ^ uint64(int64(math.Round(x*1e5)))) * 1099511628211
		h ^= h >> 29
	}
	return h
}

func near(a, b []float64) bool {
	for r := range a {
		if math.Abs(a[r]-b[r]) > 1e-7 {
			return false
		}
	}
	return true
}
