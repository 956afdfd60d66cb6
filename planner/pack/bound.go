package pack

import (
	"math"
	"slices"
)

// kind is one model of GPU in a problem. Its sizes are the items first to first+len(gpcs)−1.
type kind struct {
	cut    cut
	first  int
	gpcs   []float64
	limit  int     // how many there are; <0: unlimited
	memory float64 // MiB that the segments of one GPU share; 0 if each segment has its own memory
	// clients is the max number of processes of all segments on one GPU; 0 if it is not limited.
	clients int
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

// goal is the objective of a bound: the cost of a GPU and of each item, and the max number of GPUs
// (<0: unlimited).
type goal struct {
	gpu  float64
	item []float64
	gpus int
}

// penalty is the cost of each GPU beyond the available ones: more than everything that a task could
// need.
func (t *task) penalty() float64 { return 4 * float64(t.needs()) }

// needs returns more GPUs than any minimal answer uses. A minimal mix has no more segments than the
// item with its smallest throughput would need alone, and each segment could have its own GPU.
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

// relaxation is the result of a task's linear relaxation.
type relaxation struct {
	// value is the proved bound: no choice of mixes and no packing costs less.
	value float64
	// price is the cost of each item at the prices that prove the bound. offset is what the limits
	// subtract again: value = Σ over demands of their cheapest mix at price − offset.
	price  []float64
	offset float64
	// least is each demand's min cost at price.
	least []float64
	// columns are the mixes of each demand that the search met. Each has its weight in the
	// relaxation's solution (a convex combination).
	columns [][]column
}

// column is one mix of a demand.
type column struct {
	mix    []int32
	weight float64
}

// relax computes the lower bound of the package doc by cutting planes (Kelley). A small linear
// program proposes prices. The knapsacks answer with each demand's cheapest mix, and the total of
// these is a new cut. It stops when program and answer meet, or after the given rounds. The best
// answer is the bound either way.
func (t *task) relax(g goal, rounds int) relaxation {
	p := t.program(g)
	best := relaxation{value: math.Inf(-1), columns: make([][]column, len(t.demands))}
	p.ask(p.proportional(), &best)
	var duals []float64
	for range rounds {
		solution, dual, ok := maximize(p.objective, p.rows, p.right)
		if !ok {
			break
		}
		duals = dual
		proposed := 0.0
		for j, c := range p.objective {
			proposed += c * solution[j]
		}
		if proposed-best.value <= 1e-7*math.Max(1, math.Abs(proposed)) {
			break
		}
		p.forbid(solution)
		p.ask(solution, &best)
	}
	p.weigh(duals, &best)
	return best
}

// program is the linear program of a relaxation. It has three sorts of variables besides the value.
// One price per item is what the item costs beyond the goal's cost. There is one variable per
// limited kind, and one for the total limit. Each of these is what a GPU may be worth beyond the
// goal's cost, because there are no more. The first rows state that no pattern is worth more than
// its GPU. The others are the cuts: the value is at most the cost of the mixes of an answer.
type program struct {
	*task
	goal
	objective []float64
	rows      [][]float64
	right     []float64
	extra     []int // by kind: the variable of its limit, −1 without
	total     int   // the variable of the total limit
	value     int
	cuts      []cutting
	coverer   coverer
}

// cutting is a cut: its row, and the column of each demand that it contains.
type cutting struct {
	row    int
	chosen []int32
}

func (t *task) program(g goal) *program {
	p := &program{task: t, goal: g, total: t.items}
	for _, k := range t.kinds {
		p.extra = append(p.extra, -1)
		if k.limit >= 0 {
			p.extra[len(p.extra)-1] = p.total
			p.total++
		}
	}
	p.value = p.total + 1
	p.objective = make([]float64, p.value+1)
	p.objective[p.value] = 1
	limit := func(variable, gpus int) {
		p.objective[variable] = -float64(gpus)
		row := p.row()
		row[variable] = 1
		p.add(row, t.penalty())
	}
	for m, k := range t.kinds {
		if k.limit >= 0 {
			limit(p.extra[m], k.limit)
		}
	}
	if g.gpus >= 0 {
		limit(p.total, g.gpus)
	}
	for m := range t.kinds {
		for _, pattern := range t.kinds[m].cut.common() {
			p.addPattern(m, pattern)
		}
	}
	return p
}

func (p *program) row() []float64 { return make([]float64, p.value+1) }

func (p *program) add(row []float64, right float64) {
	p.rows, p.right = append(p.rows, row), append(p.right, right)
}

func (p *program) addPattern(m int, counts pattern) {
	row := p.row()
	for k, n := range counts {
		row[p.kinds[m].first+k] = float64(n)
	}
	if p.extra[m] >= 0 {
		row[p.extra[m]] = -1
	}
	if p.gpus >= 0 {
		row[p.total] = -1
	}
	p.add(row, p.gpu)
}

// budget returns the max worth of a pattern of a kind.
func (p *program) budget(m int, solution []float64) float64 {
	budget := p.gpu
	if p.extra[m] >= 0 {
		budget += solution[p.extra[m]]
	}
	if p.gpus >= 0 {
		budget += solution[p.total]
	}
	return budget
}

// proportional returns the first prices: each item in proportion to its GPCs.
func (p *program) proportional() []float64 {
	start := p.row()
	for m := range p.kinds {
		k := &p.kinds[m]
		if top, _ := k.cut.dearest(k.gpcs); top > 0 {
			for i, n := range k.gpcs {
				start[k.first+i] = n * p.gpu / top
			}
		}
	}
	return start
}

// forbid adds, for each kind, the pattern that a solution makes worth more than its GPU.
func (p *program) forbid(solution []float64) {
	for m := range p.kinds {
		k := &p.kinds[m]
		if top, counts := k.cut.dearest(k.of(solution)); top > p.budget(m, solution)+1e-9 {
			p.addPattern(m, counts)
		}
	}
}

// ask computes the demands' cheapest mixes at a solution's prices. They give a bound and a cut.
func (p *program) ask(solution []float64, best *relaxation) {
	price := p.valid(solution)
	offset := 0.0
	for m, k := range p.kinds {
		if k.limit >= 0 {
			offset += solution[p.extra[m]] * float64(k.limit)
		}
	}
	if p.gpus >= 0 {
		offset += solution[p.total] * float64(p.gpus)
	}
	answer := -offset
	least := make([]float64, len(p.demands))
	chosen := make([]int32, len(p.demands))
	mix := make([]int, p.items)
	sum := make([]float64, p.items)
	for s, d := range p.demands {
		least[s] = p.coverer.cheapest(d, price, mix)
		answer += least[s]
		chosen[s] = best.remember(s, mix)
		for k, n := range mix {
			sum[k] += float64(n)
		}
	}
	// The cut: value ≤ Σ (goal's cost + price) × items. It is divided by its largest coefficient,
	// so that the numbers of a thousand services have the same scale as those of one.
	scale := 1.0
	for _, n := range sum {
		scale = math.Max(scale, n)
	}
	row := p.row()
	row[p.value] = 1 / scale
	right := 0.0
	for k, n := range sum {
		row[k] = -n / scale
		right += p.item[k] * n / scale
	}
	p.cuts = append(p.cuts, cutting{len(p.rows), chosen})
	p.add(row, right)
	if answer > best.value {
		best.value, best.price, best.offset, best.least = answer, price, offset, least
	}
}

// weigh sets the columns' weights: a cut's dual is how much of its mixes is in the solution.
func (p *program) weigh(duals []float64, best *relaxation) {
	for _, cut := range p.cuts {
		weight := 0.0
		switch {
		case duals == nil && cut.row == p.cuts[0].row:
			weight = 1
		case cut.row < len(duals):
			weight = duals[cut.row] * p.rows[cut.row][p.value]
		}
		for s, c := range cut.chosen {
			best.columns[s][c].weight += weight
		}
	}
}

// valid turns a program's solution into valid prices. It raises them as far as possible. It scales
// them down if one is too high because of rounding or because of a pattern that is not in the
// program.
func (p *program) valid(solution []float64) []float64 {
	price := slices.Clone(solution[:p.items])
	for m := range p.kinds {
		k := &p.kinds[m]
		budget := p.budget(m, solution)
		part := k.of(price)
		scale := func() {
			if top, _ := k.cut.dearest(part); top > budget {
				for i := range part {
					part[i] *= budget / top
				}
			}
		}
		scale()
		k.cut.lift(part, budget)
		scale()
	}
	for i := range price {
		price[i] += p.item[i]
	}
	return price
}

// remember stores a demand's mix as a column, unless it is already there, and returns its index.
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
