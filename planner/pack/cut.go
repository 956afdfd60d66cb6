package pack

import (
	"math"
	"slices"

	"github.com/penstock/penstock/plan"
)

// A pattern is a set of segments on one GPU, as one count per size.
type pattern []int

// A bin is one filled GPU, or several with the same filling.
type bin struct {
	counts pattern
	times  int
}

// A cut describes how one model of GPU can be filled. All methods identify sizes by their index in
// the sizes that the cut was made with. A cut is read-only once made.
type cut interface {
	// dearest returns the pattern of the highest value at the given prices, and its value.
	dearest(price []float64) (float64, pattern)
	// common returns patterns for the start of a program of prices: all, if there are few.
	common() []pattern
	// lift raises prices as far as possible without making a pattern worth more than budget. If the
	// given prices are valid, it keeps them valid and lowers none.
	lift(price []float64, budget float64)
	// rules are price vectors under which no pattern is worth more than 1. Σ price × count is
	// therefore a lower bound of the GPUs that counts need. whole means that no other rules matter:
	// the max of the bounds is then the linear optimum of packing.
	rules() (prices [][]float64, whole bool)
	// pack fills as few GPUs as it can with counts.
	pack(counts []int) []bin
	// slots lays out one GPU's counts: the size and slot of each segment, ordered by slot.
	slots(counts pattern) []place
}

// place is the position of one segment on its GPU.
type place struct{ size, slot int }

// below reports whether a fits where b does, size by size.
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

// ceilGPUs rounds a bound up to whole GPUs. It ignores what floating-point rounding adds to a whole
// number.
func ceilGPUs(bound float64) int { return int(math.Ceil(bound - 1e-6)) }

// partitioned is the cut of a GPU with MIG: its placement table as the list of maximal patterns.
// There are few: twelve on an A100, from {7} and {4,3} to {1,1,1,1,1,1,1}. {3,3} is one of them but
// no better than {3,2,1}. Size 3 in slot 0 takes four memory slices for three GPCs, and no other
// pattern without {7} wastes a GPC.
type partitioned struct {
	patterns []pattern
	layouts  [][]place // of the pattern with the same index
	prices   [][]float64
	whole    bool
}

// newPartitioned enumerates the patterns that a placement table allows for the given sizes.
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

// enumeration visits the ways to fill a GPU. It visits sizes from the largest and their starts from
// the last. The first layout of a pattern therefore has size 3 in slot 4 rather than in slot 0.
type enumeration struct {
	gpu      plan.GPU
	sizes    []plan.Size
	counts   pattern // so far, with their places
	places   []place
	seen     map[string]bool
	patterns []pattern
	layouts  [][]place
}

// fill adds segments of a size, from a start downwards, and of the smaller sizes. taken has the
// slots in use.
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

// keep stores the pattern and its layout, if it is new.
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

// minGPUs returns the lower bound of the GPUs that counts need.
func (c *partitioned) minGPUs(counts []int) int {
	most := 0.0
	for _, price := range c.prices {
		most = math.Max(most, worth(price, counts))
	}
	return ceilGPUs(most)
}

// packSteps limits the search for a packing that meets its lower bound.
const packSteps = 20000

// pack searches for a packing with as many GPUs as the lower bound, then with one more, and so on.
// For one GPU at a time, it chooses a pattern after which the lower bound of the rest is one less.
// On every table with seven GPCs such a pattern always exists, so that the search meets the bound
// without a step back.
func (c *partitioned) pack(counts []int) []bin {
	for gpus := c.minGPUs(counts); ; gpus++ {
		search := packing{cut: c, failed: map[string]bool{}}
		if search.fill(slices.Clone(counts), gpus) {
			slices.Reverse(search.bins)
			return search.bins
		}
	}
}

type packing struct {
	cut    *partitioned
	bins   []bin
	failed map[string]bool
	steps  int
}

// fill packs left into gpus GPUs, appending to bins from the last to the first. It takes ownership
// of left.
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
		// As many equal GPUs as the bound allows: each lowers it by at most 1, so "too many" stays
		// too many.
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

// usable returns the part of a pattern that counts fill, and how many GPUs they fill with it, at
// most gpus. The number is 0 if that part is empty.
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

// leaves sets rest to what is left after times GPUs of a pattern. It reports whether, by the lower
// bound, the other GPUs can hold it.
func (s *packing) leaves(rest, left []int, p pattern, times, gpus int) bool {
	for k := range left {
		rest[k] = max(0, left[k]-times*p[k])
	}
	return s.cut.minGPUs(rest) <= gpus-times
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

// vertices enumerates corners of { price ≥ 0 : no pattern is worth more than 1 }. It omits a corner
// if another price vector is at least as high everywhere. By duality, the max of the corners'
// bounds is the linear optimum of packing any counts into the patterns. whole is false if there are
// too many corners. The result is then only the patterns' common rule, in proportion to each size's
// share of its fullest pattern.
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

// dominated reports whether b is at least a everywhere.
func dominated(a, b []float64) bool {
	for k := range a {
		if a[k] > b[k]+1e-9 {
			return false
		}
	}
	return true
}

// cornerSteps is far above the few thousand steps of a table with five sizes.
const cornerSteps = 400000

// corners visits the sets of constraints that can be tight together, and eliminates one variable
// with each.
type corners struct {
	rows     [][]float64
	right    []float64
	sizes    int
	patterns []pattern
	found    [][]float64
	steps    int
}

// reduced is a constraint without the variables of the constraints chosen before. lead is the
// variable that it eliminates.
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

// reduce eliminates the variables of the chosen constraints from another one. ok is false if
// nothing is left of it.
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

// keep solves for the corner and keeps it if it belongs to the region.
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
