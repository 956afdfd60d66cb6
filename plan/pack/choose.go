package pack

import (
	"cmp"
	"math"
	"slices"
)

// option is one mix that a demand may take in a search, with what it adds to each row.
type option struct {
	mix    []int32
	loads  []float64 // by row
	weight float64   // in the relaxation's solution
}

// row is one linear rule that a choice of mixes must keep: Σ price × items ≤ target.
type row struct {
	of     rowKind
	price  []float64
	target float64
}

type rowKind int

const (
	// gpuRow is one of the rules of a kind's cut; its target is the GPUs that the kind may use.
	gpuRow rowKind = iota
	// gpcRow counts GPCs.
	gpcRow
	// cutRow is a bound that a relaxation proved. It cuts off states that cannot end well, no more.
	cutRow
)

// rows lists the rules of a task for the GPUs that each kind may use, and then the row of GPCs.
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

// search is a choice to be made: for each demand one of its options.
type search struct {
	*task
	relaxed relaxation
	rows    []row
	lists   [][]option
	order   []int
}

// search prepares one, of split GPUs of each kind and a target of GPCs. Its demands come in the order of what they
// cost: small ones make up best for what is left over.
func (t *task) search(relaxed relaxation, split []int, gpcs float64) *search {
	s := &search{task: t, relaxed: relaxed, rows: t.rows(split, gpcs), order: make([]int, len(t.demands))}
	for i := range s.order {
		s.order[i] = i
	}
	slices.SortStableFunc(s.order, func(a, b int) int { return cmp.Compare(relaxed.least[b], relaxed.least[a]) })
	return s
}

// enlarge adds to the relaxation's mixes those that cost at most slack more than a demand's least, at its prices,
// and makes options of them all. It returns whether no such mix is missing: there may be most for a demand.
func (s *search) enlarge(slack float64, most int, drop bool) (all bool) {
	coverer := &coverer{}
	all = true
	s.lists = make([][]option, len(s.demands))
	for i, d := range s.demands {
		if !coverer.every(d, s.relaxed.price, s.relaxed.least[i]+slack, most, func(mix []int) { s.relaxed.remember(i, mix) }) {
			all = false
		}
		s.lists[i] = options(s.rows, s.relaxed.columns[i], drop)
	}
	return all
}

// bound adds the relaxation's bound as a row: an answer of the given cost may not exceed it.
func (s *search) bound(cost float64) {
	s.rows = append(s.rows, row{of: cutRow, price: s.relaxed.price, target: cost + s.relaxed.offset})
	for i := range s.lists {
		for j := range s.lists[i] {
			o := &s.lists[i][j]
			load := 0.0
			for k, n := range o.mix {
				load += s.relaxed.price[k] * float64(n)
			}
			o.loads = append(slices.Clip(o.loads), load)
		}
	}
}

// options turns mixes into options. Where drop is set, those go that another is no worse than in every row: for an
// A100 that is four rules and the GPCs, and few are left.
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
	if !drop {
		return list
	}
	kept := make([]option, 0, len(list))
	instead := make([]int, len(list)) // index in list of what stands in for it
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

// choice is one option for each demand and what they add up to.
type choice struct {
	options []int32
	loads   []float64
}

// state is a choice for the demands so far.
type state struct {
	loads  []float64
	score  float64
	parent int32
	option int32
}

// beam chooses an option for every demand, one demand after another in the given order, keeping at most width
// states. A state is as good as where it would end if all demands that are left took their relaxed, fractional
// mixes: what that overshoots the rows' targets by, squared, and then its GPCs; so each choice makes up for what
// rounding the last ones did. A state whose loads exceed a target even if all demands that are left take the least
// of every row is dropped; hard says that this goes for GPCs too.
//
// It returns the final states that keep all targets, fewest GPCs first. whole says that no state was dropped for
// want of room: if there are then no choices, these options have none.
func (s *search) beam(width int, hard bool) (choices []choice, whole bool) {
	const even = 1e-6
	rows, lists, order := s.rows, s.lists, s.order
	if slices.ContainsFunc(lists, func(list []option) bool { return len(list) == 0 }) {
		return nil, true
	}
	R := len(rows)
	distinct := R
	for distinct > 0 && rows[distinct-1].of == cutRow {
		distinct--
	}
	future, floor := make([]float64, R), make([]float64, R)
	floors := make([][]float64, len(lists))
	for s, list := range lists {
		floors[s] = make([]float64, R)
		for r := range floors[s] {
			floors[s][r] = math.Inf(1)
			for _, o := range list {
				future[r] += o.weight * o.loads[r]
				floors[s][r] = min(floors[s][r], o.loads[r])
			}
			floor[r] += floors[s][r]
		}
	}
	layers := make([][]state, 0, len(order)+1)
	layers = append(layers, []state{{loads: make([]float64, R), parent: -1, option: -1}})
	whole = true
	var next []state
	var flat []float64
	for _, demand := range order {
		list := lists[demand]
		for r := range future {
			floor[r] -= floors[demand][r]
			for _, o := range list {
				future[r] -= o.weight * o.loads[r]
			}
		}
		last := layers[len(layers)-1]
		next = next[:0]
		if need := len(last) * len(list) * R; cap(flat) < need {
			flat = make([]float64, need)
		}
		used := 0
		for i := range last {
		options:
			for j := range list {
				loads := flat[used : used+R : used+R]
				score := 0.0
				for r := range loads {
					loads[r] = last[i].loads[r] + list[j].loads[r]
					if loads[r]+floor[r] > rows[r].target+even && (rows[r].of != gpcRow || hard) {
						continue options
					}
					over := loads[r] + future[r] - rows[r].target
					switch {
					case rows[r].of == gpcRow:
						score += 1e-4 * over
						if over > 0 {
							score += 1e-2 * over
						}
					case rows[r].of == gpuRow && over > 1e-9:
						score += over*over + 1e-3*over
					}
				}
				used += R
				next = append(next, state{loads: loads, score: score, parent: int32(i), option: int32(j)})
			}
		}
		slices.SortStableFunc(next, func(a, b state) int { return cmp.Compare(a.score, b.score) })
		kept := make([]state, 0, min(width, len(next)))
		seen := make(map[uint64]int, min(width, len(next)))
		for _, candidate := range next {
			key := fingerprint(candidate.loads[:distinct])
			if at, ok := seen[key]; ok && near(kept[at].loads[:distinct], candidate.loads[:distinct]) {
				continue
			}
			if len(kept) == width {
				whole = false
				break
			}
			seen[key] = len(kept)
			candidate.loads = slices.Clone(candidate.loads)
			kept = append(kept, candidate)
		}
		layers = append(layers, kept)
	}
	last := layers[len(layers)-1]
	for i := range last {
		c := choice{options: make([]int32, len(order)), loads: last[i].loads}
		at := int32(i)
		for l := len(order); l > 0; l-- {
			st := layers[l][at]
			c.options[order[l-1]] = st.option
			at = st.parent
		}
		choices = append(choices, c)
	}
	gpc := slices.IndexFunc(rows, func(r row) bool { return r.of == gpcRow })
	slices.SortStableFunc(choices, func(a, b choice) int { return cmp.Compare(a.loads[gpc], b.loads[gpc]) })
	return choices, whole
}

// fingerprint is equal for loads that are equal up to rounding (but where they straddle a step; then a state is
// kept twice, which costs only time).
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
