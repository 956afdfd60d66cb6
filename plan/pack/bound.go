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
	// clients is how many processes the segments of one GPU may have together; 0 where that is not limited.
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

// program is the linear program of a relaxation. Its variables are a price for each item (what it costs beyond the
// goal's), one for each kind that is limited and one for the limit in all (what a GPU may be worth beyond the
// goal's, because there are no more), and the value. Its rows say that no pattern is worth more than its GPU, and,
// the cuts, that the value is at most what the mixes of an answer cost.
type program struct {
	*task
	goal
	objective []float64
	rows      [][]float64
	right     []float64
	extra     []int // by kind: the variable of its limit, −1 without
	total     int   // the variable of the limit in all
	value     int
	cuts      []cutting
	coverer   coverer
}

// cutting is a cut: its row, and which column of each demand it is made of.
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

// budget is what a pattern of a kind may be worth.
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

// proportional are the first prices: each item by its GPCs.
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

// forbid adds, for each kind, the pattern that a solution makes worth too much.
func (p *program) forbid(solution []float64) {
	for m := range p.kinds {
		k := &p.kinds[m]
		if top, counts := k.cut.dearest(k.of(solution)); top > p.budget(m, solution)+1e-9 {
			p.addPattern(m, counts)
		}
	}
}

// ask takes the demands' cheapest mixes at a solution's prices: a bound, and a cut.
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
	// The cut: value ≤ Σ (goal's cost + price) × items. Divided by its largest number, so that a thousand services
	// and one look alike to the program.
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

// weigh gives the columns their weights: a cut's dual is how much of its mixes is in the solution.
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

// valid turns a program's solution into prices that hold: lifted as far as they go, and scaled down where rounding,
// or a pattern that the program has not met, made one too dear.
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
