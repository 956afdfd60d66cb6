package pack

import (
	"math"
	"slices"
)

// kind is one model of GPU in a problem and the items that are its sizes: items first to first+len(gpcs)−1.
type kind struct {
	cut    cut
	first  int
	gpcs   []float64
	limit  int     // how many there are; <0: no end
	memory float64 // MiB that the segments of one GPU share; 0 where each has its own
}

func (k *kind) of(items []float64) []float64 { return items[k.first : k.first+len(k.gpcs)] }
func (k *kind) counts(items []int) []int     { return items[k.first : k.first+len(k.gpcs)] }

// task is the problem without names: demands for items, and GPUs that items are packed into.
type task struct {
	kinds   []kind
	items   int
	gpcs    []float64 // of each item, as the second criterion counts them
	demands []demand
}

// goal is what a bound is of: the cost of a GPU and of each item, and how many GPUs there may be in all (<0: no
// end).
type goal struct {
	gpu  float64
	item []float64
	gpus int
}

// penalty is what a GPU costs beyond those there are: more than all that a task could need.
func (t *task) penalty() float64 { return 4 * float64(t.needs()) }

// needs is above the GPUs of any answer that leaves out what it can: a minimal mix has no more segments than its
// smallest throughput would need alone, and each could have a GPU of its own.
func (t *task) needs() int {
	sum := 0
	for _, d := range t.demands {
		most := 1.0
		for _, gives := range d.gives {
			if gives > 0 {
				most = math.Max(most, math.Ceil(d.rate/gives))
			}
		}
		sum += int(math.Min(most, 1e9))
	}
	return sum
}

// relaxation is what the linear relaxation of a task says.
type relaxation struct {
	// value is the proved bound: no choice of mixes and no packing costs less.
	value float64
	// price is what an item costs at the prices that prove it, and offset what limits take off again:
	// value = Σ over demands of their cheapest mix at price − offset.
	price  []float64
	offset float64
	// least is each demand's cheapest cost at price.
	least []float64
	// columns are the mixes of each demand that the search met, with the weight of each in the relaxation's
	// solution (a convex combination).
	columns [][]column
}

// column is one mix of a demand.
type column struct {
	mix    []int32
	weight float64
}

// relax computes the lower bound of the package's doc by cutting planes (Kelley): a small linear program proposes
// prices, the knapsacks answer with each demand's cheapest mix, whose total is one more cut. It stops when program
// and answer meet, or after rounds of them; the best answer is the bound either way.
func (t *task) relax(g goal, rounds int) relaxation {
	var limited []int
	for m, k := range t.kinds {
		if k.limit >= 0 {
			limited = append(limited, m)
		}
	}
	// Variables: a price for each item, an extra for each limited kind, one for the limit in all, the value.
	total := t.items + len(limited)
	value := total + 1
	width := value + 1
	objective := make([]float64, width)
	objective[value] = 1
	for i, m := range limited {
		objective[t.items+i] = -float64(t.kinds[m].limit)
	}
	if g.gpus >= 0 {
		objective[total] = -float64(g.gpus)
	}
	var rows [][]float64
	var right []float64
	add := func(row []float64, r float64) { rows, right = append(rows, row), append(right, r) }
	extra := make([]int, len(t.kinds)) // variable of the kind's limit, -1 none
	for m := range t.kinds {
		extra[m] = -1
		if i := slices.Index(limited, m); i >= 0 {
			extra[m] = t.items + i
		}
	}
	addPattern := func(m int, p pattern) {
		row := make([]float64, width)
		for k, n := range p {
			row[t.kinds[m].first+k] = float64(n)
		}
		if extra[m] >= 0 {
			row[extra[m]] = -1
		}
		if g.gpus >= 0 {
			row[total] = -1
		}
		add(row, g.gpu)
	}
	for m := range t.kinds {
		k := &t.kinds[m]
		if c, ok := k.cut.(*partitioned); ok {
			for _, p := range c.patterns {
				addPattern(m, p)
			}
			continue
		}
		for i := range k.gpcs {
			single := make([]float64, len(k.gpcs))
			single[i] = 1
			_, p := k.cut.dearest(single)
			addPattern(m, p)
		}
	}
	for _, v := range append(slices.Clone(limited), -1) {
		row := make([]float64, width)
		if v >= 0 {
			row[extra[v]] = 1
		} else if g.gpus >= 0 {
			row[total] = 1
		} else {
			continue
		}
		add(row, t.penalty())
	}

	best := relaxation{value: math.Inf(-1), columns: make([][]column, len(t.demands))}
	coverer := &coverer{}
	mix := make([]int, t.items)
	var cuts []int // rows that are cuts, in the order of which
	var which [][]int32
	ask := func(solution []float64) float64 {
		price := t.valid(g, solution, extra, total)
		answer := -0.0
		for i, m := range limited {
			answer -= solution[t.items+i] * float64(t.kinds[m].limit)
		}
		if g.gpus >= 0 {
			answer -= solution[total] * float64(g.gpus)
		}
		offset := -answer
		least := make([]float64, len(t.demands))
		sum := make([]float64, t.items)
		chosen := make([]int32, len(t.demands))
		for s, d := range t.demands {
			least[s] = coverer.cheapest(d, price, mix)
			answer += least[s]
			chosen[s] = best.remember(s, mix)
			for k, n := range mix {
				sum[k] += float64(n)
			}
		}
		row := make([]float64, width)
		row[value] = 1
		fixed := 0.0
		for k, n := range sum {
			row[k] = -n
			fixed += g.item[k] * n
		}
		// Divided by its largest number, so that a thousand services and one look alike to the program.
		scale := 1.0
		for _, n := range sum {
			scale = math.Max(scale, n)
		}
		for k := range row {
			row[k] /= scale
		}
		cuts = append(cuts, len(rows))
		which = append(which, chosen)
		add(row, fixed/scale)
		if answer > best.value {
			best.value, best.price, best.offset, best.least = answer, price, offset, least
		}
		return answer
	}
	start := make([]float64, width)
	for m := range t.kinds {
		k := &t.kinds[m]
		for i, n := range k.gpcs {
			start[k.first+i] = n
		}
		if top, _ := k.cut.dearest(k.of(start)); top > 0 {
			for i := range k.gpcs {
				start[k.first+i] *= g.gpu / top
			}
		}
	}
	ask(start)
	var weights []float64
	for range rounds {
		solution, dual, ok := maximize(objective, rows, right)
		if !ok {
			break
		}
		weights = dual
		proposed := 0.0
		for j, c := range objective {
			proposed += c * solution[j]
		}
		if proposed-best.value <= 1e-7*math.Max(1, math.Abs(proposed)) {
			break
		}
		for m := range t.kinds {
			k := &t.kinds[m]
			if _, ok := k.cut.(*partitioned); ok {
				continue
			}
			budget := g.gpu + solution[total]
			if extra[m] >= 0 {
				budget += solution[extra[m]]
			}
			if top, p := k.cut.dearest(k.of(solution)); top > budget+1e-9 {
				addPattern(m, p)
			}
		}
		ask(solution)
	}
	if weights != nil {
		for i, row := range cuts {
			if row >= len(weights) || weights[row] <= 0 {
				continue
			}
			// The row was scaled, so its dual is too.
			w := weights[row] * rows[row][value]
			for s, c := range which[i] {
				best.columns[s][c].weight += w
			}
		}
	} else if len(which) > 0 {
		for s, c := range which[0] {
			best.columns[s][c].weight = 1
		}
	}
	return best
}

// valid turns a program's solution into prices that hold: lifted as far as they go, and scaled down where rounding,
// or a pattern that the program has not met, made one too dear.
func (t *task) valid(g goal, solution []float64, extra []int, total int) []float64 {
	price := slices.Clone(solution[:t.items])
	for m := range t.kinds {
		k := &t.kinds[m]
		budget := g.gpu + solution[total]
		if extra[m] >= 0 {
			budget += solution[extra[m]]
		}
		part := k.of(price)
		if top, _ := k.cut.dearest(part); top > budget {
			for i := range part {
				part[i] *= budget / top
			}
		}
		k.cut.lift(part, budget)
		if top, _ := k.cut.dearest(part); top > budget {
			for i := range part {
				part[i] *= budget / top
			}
		}
	}
	for i := range price {
		price[i] += g.item[i]
	}
	return price
}

// remember keeps a demand's mix as a column once and returns its index.
func (r *relaxation) remember(s int, mix []int) int32 {
	for i, c := range r.columns[s] {
		same := true
		for k, n := range mix {
			if int(c.mix[k]) != n {
				same = false
				break
			}
		}
		if same {
			return int32(i)
		}
	}
	kept := make([]int32, len(mix))
	for k, n := range mix {
		kept[k] = int32(n)
	}
	r.columns[s] = append(r.columns[s], column{mix: kept})
	return int32(len(r.columns[s]) - 1)
}
