package pack

import (
	"math"
	"slices"

	"github.com/penstock/penstock/plan"
)

// A pattern is a set of segments that one GPU holds, as a count for each size.
type pattern []int

// A bin is one GPU as filled, or several filled alike.
type bin struct {
	counts pattern
	times  int
}

// A cut is how one model of GPU may be filled. All methods speak of sizes by their index in the sizes that the cut
// was made with. A cut is read only once made.
type cut interface {
	// dearest returns the pattern of the highest value at the given prices, and its value.
	dearest(price []float64) (float64, pattern)
	// common are patterns that a program of prices begins with; where there are few, all.
	common() []pattern
	// lift raises prices as far as no pattern becomes worth more than budget; prices under which none does are
	// left valid and never fall.
	lift(price []float64, budget float64)
	// rules are price vectors under which no pattern is worth more than 1, so that Σ price × count is a lower
	// bound of the GPUs that counts need. whole says that they are all that matter: the largest of the bounds is
	// then the linear optimum of packing.
	rules() (prices [][]float64, whole bool)
	// pack fills as few GPUs as it can with counts. exact says that fewer cannot hold them.
	pack(counts []int) (bins []bin, exact bool)
	// slots lays one GPU's counts out: a size and its slot for each segment, by slot.
	slots(counts pattern) []place
}

// place is where one segment lies on its GPU.
type place struct{ size, slot int }

// below says whether a fits where b does, size by size.
func below(a, b []int) bool {
	for k := range a {
		if a[k] > b[k] {
			return false
		}
	}
	return true
}

func worth(price []float64, counts []int) float64 {
	sum := 0.0
	for k, n := range counts {
		sum += price[k] * float64(n)
	}
	return sum
}

// ceilGPUs rounds a bound up to whole GPUs, forgiving what floating point adds to a whole number.
func ceilGPUs(bound float64) int { return int(math.Ceil(bound - 1e-6)) }

// partitioned is the cut of a GPU with MIG: its placement table, turned into the list of maximal patterns. There are
// few: twelve on an A100, from {7} and {4,3} to {1,1,1,1,1,1,1}. {3,3} is one of them and no better than {3,2,1}:
// size 3 in slot 0 takes four memory slices for three GPCs, and no other pattern without {7} wastes a GPC.
type partitioned struct {
	patterns []pattern
	layouts  [][]place // of the pattern of the same index
	prices   [][]float64
	whole    bool
}

// newPartitioned enumerates what a placement table allows for the given sizes.
func newPartitioned(gpu plan.GPU, sizes []plan.Size) *partitioned {
	e := enumeration{gpu: gpu, sizes: sizes, seen: map[string]bool{}, counts: make(pattern, len(sizes))}
	if n := len(sizes); n > 0 {
		e.fill(n-1, len(sizes[n-1].Starts)-1, gpu.GPCs, 0)
	}
	c := &partitioned{patterns: e.patterns, layouts: e.layouts}
	c.keepMaximal()
	c.prices, c.whole = vertices(c.patterns, len(sizes))
	return c
}

// enumeration goes through the ways to fill a GPU. Sizes are gone through from the largest and each from its last
// start, so that the first layout of a pattern has size 3 in slot 4 rather than in slot 0.
type enumeration struct {
	gpu      plan.GPU
	sizes    []plan.Size
	counts   pattern // so far, with their places
	places   []place
	seen     map[string]bool
	patterns []pattern
	layouts  [][]place
}

// fill adds segments of a size, from a start on down, and of the smaller sizes, to what is taken.
func (e *enumeration) fill(size, from, gpcs int, taken uint64) {
	if size < 0 {
		e.keep()
		return
	}
	s := e.sizes[size]
	if gpcs < s.GPCs {
		from = -1
	}
	for i := from; i >= 0; i-- {
		mask := (uint64(1)<<s.Slots - 1) << s.Starts[i]
		if taken&mask != 0 || s.Starts[i]+s.Slots > e.gpu.Slots {
			continue
		}
		e.counts[size]++
		e.places = append(e.places, place{size, s.Starts[i]})
		e.fill(size, i-1, gpcs-s.GPCs, taken|mask)
		e.places = e.places[:len(e.places)-1]
		e.counts[size]--
	}
	next := -1
	if size > 0 {
		next = len(e.sizes[size-1].Starts) - 1
	}
	e.fill(size-1, next, gpcs, taken)
}

// keep notes the pattern and its layout, if it is new.
func (e *enumeration) keep() {
	key := make([]byte, len(e.counts))
	for k, n := range e.counts {
		key[k] = byte(n)
	}
	if !e.seen[string(key)] {
		e.seen[string(key)] = true
		e.patterns = append(e.patterns, slices.Clone(e.counts))
		e.layouts = append(e.layouts, slices.Clone(e.places))
	}
}

func (c *partitioned) keepMaximal() {
	var patterns []pattern
	var layouts [][]place
	for i, a := range c.patterns {
		maximal := true
		for j, b := range c.patterns {
			if i != j && below(a, b) {
				maximal = false
				break
			}
		}
		if maximal {
			patterns = append(patterns, a)
			layouts = append(layouts, c.layouts[i])
		}
	}
	c.patterns, c.layouts = patterns, layouts
}

func (c *partitioned) dearest(price []float64) (float64, pattern) {
	best, at := math.Inf(-1), 0
	for i, p := range c.patterns {
		if value := worth(price, p); value > best {
			best, at = value, i
		}
	}
	return best, c.patterns[at]
}

func (c *partitioned) common() []pattern { return c.patterns }

func (c *partitioned) lift(price []float64, budget float64) {
	for k := range price {
		room := math.Inf(1)
		for _, p := range c.patterns {
			if p[k] > 0 {
				room = math.Min(room, (budget-worth(price, p))/float64(p[k]))
			}
		}
		if room > 0 && !math.IsInf(room, 1) {
			price[k] += room
		}
	}
}

func (c *partitioned) rules() ([][]float64, bool) { return c.prices, c.whole }

// least is the lower bound of the GPUs that counts need.
func (c *partitioned) least(counts []int) int {
	most := 0.0
	for _, price := range c.prices {
		most = math.Max(most, worth(price, counts))
	}
	return ceilGPUs(most)
}

// packSteps ends the search for a packing that meets its lower bound.
const packSteps = 20000

// pack searches for a packing of exactly the lower bound's GPUs, then of one more, and so on: a GPU at a time takes
// the pattern after which what is left has a lower bound one less. On every table with seven GPCs some pattern
// always has it, so that the bound is met without a step back.
func (c *partitioned) pack(counts []int) (bins []bin, exact bool) {
	exact = true
	for gpus := c.least(counts); ; gpus++ {
		search := packing{cut: c, failed: map[string]bool{}}
		if search.fill(slices.Clone(counts), gpus) {
			slices.Reverse(search.bins)
			return search.bins, exact
		}
		exact = exact && search.steps <= packSteps
	}
}

type packing struct {
	cut    *partitioned
	bins   []bin
	failed map[string]bool
	steps  int
}

// fill packs left into gpus GPUs, appending to bins from the last to the first. It takes over left.
func (s *packing) fill(left []int, gpus int) bool {
	if !slices.ContainsFunc(left, func(n int) bool { return n > 0 }) {
		return true
	}
	s.steps++
	if gpus <= 0 || s.steps > packSteps {
		return false
	}
	key := make([]byte, 0, 4*len(left))
	for _, n := range left {
		key = append(key, byte(n), byte(n>>8), byte(n>>16), byte(n>>24))
	}
	if s.failed[string(key)] {
		return false
	}
	rest := make([]int, len(left))
	for _, p := range s.cut.patterns {
		used, most := usable(p, left, gpus)
		if most == 0 || !s.leaves(rest, left, used, 1, gpus) {
			continue
		}
		// As many GPUs alike as the bound allows: each takes at most 1 from it, so "too many" stays too many.
		low, high := 1, most
		for low < high {
			middle := (low + high + 1) / 2
			if s.leaves(rest, left, used, middle, gpus) {
				low = middle
			} else {
				high = middle - 1
			}
		}
		s.leaves(rest, left, used, low, gpus)
		if s.fill(slices.Clone(rest), gpus-low) {
			s.bins = append(s.bins, bin{used, low})
			return true
		}
	}
	s.failed[string(key)] = true
	return false
}

// usable is the part of a pattern that counts fill, and how many GPUs they fill with it, at most gpus; 0 if it is
// empty.
func usable(p pattern, counts []int, gpus int) (used pattern, times int) {
	used, times = make(pattern, len(p)), gpus
	empty := true
	for k := range p {
		if used[k] = min(p[k], counts[k]); used[k] > 0 {
			times, empty = min(times, counts[k]/used[k]), false
		}
	}
	if empty {
		return used, 0
	}
	return used, times
}

// leaves sets rest to what is left after times GPUs of a pattern, and says whether the bound lets the other GPUs
// hold it.
func (s *packing) leaves(rest, left []int, p pattern, times, gpus int) bool {
	for k := range left {
		rest[k] = max(0, left[k]-times*p[k])
	}
	return s.cut.least(rest) <= gpus-times
}

func (c *partitioned) slots(counts pattern) []place {
	for i, p := range c.patterns {
		if !below(counts, p) {
			continue
		}
		left := slices.Clone(counts)
		var places []place
		for _, at := range c.layouts[i] {
			if left[at.size] > 0 {
				left[at.size]--
				places = append(places, at)
			}
		}
		slices.SortFunc(places, func(a, b place) int { return a.slot - b.slot })
		return places
	}
	return nil
}

// vertices enumerates the corners of { price ≥ 0 : no pattern is worth more than 1 } that no other price vector is
// above everywhere. By duality the largest of the bounds they give is the linear optimum of packing any counts into
// the patterns. whole is false where there are too many corners to go through; what is returned is then only the
// patterns' common rule, in proportion to each size's share of its fullest pattern.
func vertices(patterns []pattern, sizes int) (prices [][]float64, whole bool) {
	if sizes == 0 {
		return nil, true
	}
	rows := make([][]float64, 0, len(patterns)+sizes)
	right := make([]float64, 0, len(patterns)+sizes)
	for _, p := range patterns {
		row := make([]float64, sizes)
		for k, n := range p {
			row[k] = float64(n)
		}
		rows, right = append(rows, row), append(right, 1)
	}
	for k := range sizes {
		row := make([]float64, sizes)
		row[k] = 1
		rows, right = append(rows, row), append(right, 0)
	}
	corners := corners{rows: rows, right: right, sizes: sizes, patterns: patterns}
	corners.choose(0, nil)
	for i, a := range corners.found {
		maximal := true
		for j, b := range corners.found {
			if i != j && dominated(a, b) && (!dominated(b, a) || j < i) {
				maximal = false
				break
			}
		}
		if maximal {
			prices = append(prices, a)
		}
	}
	return prices, corners.steps <= cornerSteps
}

// dominated says that b is at least a everywhere.
func dominated(a, b []float64) bool {
	for k := range a {
		if a[k] > b[k]+1e-9 {
			return false
		}
	}
	return true
}

// cornerSteps is far above the few thousand of a table of five sizes.
const cornerSteps = 400000

// corners goes through the sets of constraints that can be tight together, eliminating one variable with each.
type corners struct {
	rows     [][]float64
	right    []float64
	sizes    int
	patterns []pattern
	found    [][]float64
	steps    int
}

// reduced is a constraint with the variables of those chosen before eliminated, and the variable it eliminates.
type reduced struct {
	row   []float64
	right float64
	lead  int
}

func (c *corners) choose(from int, chosen []reduced) {
	c.steps++
	if c.steps > cornerSteps {
		return
	}
	if len(chosen) == c.sizes {
		c.keep(chosen)
		return
	}
	for i := from; i < len(c.rows); i++ {
		if len(c.rows)-i < c.sizes-len(chosen) {
			return
		}
		if r, ok := c.reduce(i, chosen); ok {
			c.choose(i+1, append(chosen, r))
		}
	}
}

// reduce eliminates the variables of those chosen from a constraint; ok is false if nothing is left of it.
func (c *corners) reduce(i int, chosen []reduced) (r reduced, ok bool) {
	row := slices.Clone(c.rows[i])
	right := c.right[i]
	for _, r := range chosen {
		if factor := row[r.lead]; factor != 0 {
			for k := range row {
				row[k] -= factor * r.row[k]
			}
			right -= factor * r.right
		}
	}
	lead := -1
	for k := range row {
		if math.Abs(row[k]) > 1e-9 && (lead < 0 || math.Abs(row[k]) > math.Abs(row[lead])) {
			lead = k
		}
	}
	if lead < 0 {
		return r, false
	}
	scale := 1 / row[lead]
	for k := range row {
		row[k] *= scale
	}
	return reduced{row, right * scale, lead}, true
}

// keep solves for the corner and keeps it where it is one of the region.
func (c *corners) keep(chosen []reduced) {
	price := make([]float64, c.sizes)
	for i := len(chosen) - 1; i >= 0; i-- {
		r := chosen[i]
		value := r.right
		for k := range price {
			if k != r.lead {
				value -= r.row[k] * price[k]
			}
		}
		price[r.lead] = value
	}
	for k, p := range price {
		if p < -1e-9 {
			return
		}
		price[k] = max(0, p)
	}
	for _, p := range c.patterns {
		if worth(price, p) > 1+1e-9 {
			return
		}
	}
	for _, other := range c.found {
		if dominated(price, other) && dominated(other, price) {
			return
		}
	}
	c.found = append(c.found, price)
}
