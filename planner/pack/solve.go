package pack

import (
	"cmp"
	"math"
	"slices"
)

// answer is a solved task.
type answer struct {
	// boards are the GPUs of each kind, each with its segments by slot.
	boards [][][]segment
	gpus   int
	// gpcs is the sum of the second criterion.
	gpcs float64
	// minGPUs and minGPCs are proved: no answer has fewer GPUs, and none with as many GPUs has
	// fewer GPCs (0 if nothing is proved).
	minGPUs int
	minGPCs float64
}

// segment is an item of a demand in a slot.
type segment struct{ demand, item, slot int }

// effort returns how much of something to spend per demand in a task of n demands. It divides all
// by n, so that the total stays nearly linear, but stays between least and most.
func effort(n, least, most, all int) int { return max(least, min(most, all/max(1, n))) }

const (
	// rounds is the max number of rounds of cutting planes; they converge in ten to forty.
	rounds = 80
	// slack is how much more than the cheapest a mix may cost to be considered, in GPUs: two of
	// seven GPCs.
	slack = 2.0 / 7
)

// solve finds the fewest GPUs, and with them the fewest GPCs. It first tries the lower bound and
// then more, until an answer has no more GPUs than it tried. ok is false if it finds none within
// the kinds' limits; minGPUs is proved even then.
func (t *task) solve() (best answer, ok bool) {
	first := t.relax(goal{gpu: 1, item: make([]float64, t.items), gpus: -1}, rounds)
	return t.solveFrom(ceilGPUs(first.value), t.stock(), false)
}

// solveFrom is solve from a proved bound on, up to most GPUs (<0: as many as necessary). quick
// means that something other than the beam's rules decides the packing, so that the search is not
// worth much. It then tries one width of beam and increases the GPUs in doubling steps.
func (t *task) solveFrom(lower, most int, quick bool) (best answer, ok bool) {
	if most < 0 {
		most = t.needs()
	}
	for gpus, step := lower, 1; gpus <= most; {
		if t.chooseSplit(gpus, quick, &best, &ok) {
			break
		}
		if gpus <= lower+1 {
			a, fits, none := t.exhaust(gpus)
			if fits {
				best, ok = a, true
				break
			}
			if none && gpus == lower {
				lower++
			}
		}
		if gpus == most {
			break
		}
		gpus = min(gpus+step, most)
		if quick || gpus > lower+3 {
			step *= 2
		}
	}
	best.minGPUs = lower
	return best, ok
}

// chooseSplit tries the splits of gpus GPUs until the best answer has no more. ok is set if there
// is a best answer.
func (t *task) chooseSplit(gpus int, quick bool, best *answer, ok *bool) (found bool) {
	for _, split := range t.splits(gpus) {
		a, fits := t.choose(gpus, split, quick)
		if fits && (!*ok || a.gpus < best.gpus || a.gpus == best.gpus && a.gpcs < best.gpcs) {
			*best, *ok = a, true
		}
		if *ok && best.gpus <= gpus {
			return true
		}
	}
	return false
}

// splits proposes how many GPUs of each kind to use, gpus in total. It rounds what the relaxation
// uses in several ways, the nearest first.
func (t *task) splits(gpus int) [][]int {
	if len(t.kinds) == 1 {
		return [][]int{{gpus}}
	}
	use := t.usage(t.relax(goal{gpu: 0, item: t.gpcs, gpus: gpus}, rounds))
	var found [][]int
	split := make([]int, len(t.kinds))
	var round func(m, left int)
	round = func(m, left int) {
		k := t.kinds[m]
		if left < 0 || len(found) >= 256 {
			return
		}
		if m == len(t.kinds)-1 {
			if k.limit < 0 || left <= k.limit {
				split[m] = left
				found = append(found, slices.Clone(split))
			}
			return
		}
		low := int(math.Floor(use[m] + 1e-6))
		for _, n := range []int{low, low + 1, low - 1, low + 2} {
			if n >= 0 && (k.limit < 0 || n <= k.limit) {
				split[m] = n
				round(m+1, left-n)
			}
		}
	}
	round(0, gpus)
	distance := func(split []int) (sum float64) {
		for m, n := range split {
			sum += math.Abs(float64(n) - use[m])
		}
		return sum
	}
	slices.SortStableFunc(found, func(a, b []int) int { return cmp.Compare(distance(a), distance(b)) })
	return found[:min(len(found), 8)]
}

// usage returns how many GPUs of each kind a relaxation's mixes need, by the rules.
func (t *task) usage(r relaxation) []float64 {
	items := make([]float64, t.items)
	for _, columns := range r.columns {
		for _, c := range columns {
			for k, n := range c.mix {
				items[k] += c.weight * float64(n)
			}
		}
	}
	use := make([]float64, len(t.kinds))
	for m := range t.kinds {
		k := &t.kinds[m]
		rules, _ := k.cut.rules()
		for _, rule := range rules {
			sum := 0.0
			for i, n := range k.of(items) {
				sum += rule[i] * n
			}
			use[m] = math.Max(use[m], sum)
		}
	}
	return use
}

// within returns the task with other limits.
func (t *task) within(split []int) *task {
	limited := *t
	limited.kinds = slices.Clone(t.kinds)
	for m := range limited.kinds {
		limited.kinds[m].limit = split[m]
	}
	return &limited
}

// choose looks for an answer with split GPUs of each kind, gpus in total, and few GPCs. If the
// rules are not the only ones that matter, it may return one with more GPUs, within the task's own
// limits.
func (t *task) choose(gpus int, split []int, quick bool) (best answer, ok bool) {
	n := len(t.demands)
	limited := t.within(split)
	relaxed := limited.relax(goal{gpu: 0, item: t.gpcs, gpus: -1}, rounds)
	exact := t.whole()
	search := limited.search(relaxed, split, relaxed.value)
	for _, try := range []struct{ width, options int }{
		{effort(n, 6, 100, 40000), effort(n, 12, 200, 20000)},
		{effort(n, 24, 2000, 200000), effort(n, 24, 1000, 50000)},
	} {
		search.enlarge(slack*search.unit(), try.options, exact)
		choices, _ := search.beam(try.width, false)
		for _, c := range choices[:min(len(choices), 8)] {
			a, fits := t.pack(search.lists, c)
			if fits && (!ok || a.gpus < best.gpus || a.gpus == best.gpus && a.gpcs < best.gpcs) {
				best, ok = a, true
			}
			if ok && best.gpus <= gpus && exact {
				break
			}
		}
		if quick || ok && best.gpus <= gpus {
			break
		}
	}
	if !ok || best.gpus != gpus || len(t.kinds) > 1 {
		return best, ok
	}
	best.minGPCs = math.Ceil(relaxed.value - 1e-6)
	if exact {
		best = t.fewer(best, limited, relaxed)
	}
	return best, ok
}

// fewer looks for an answer with as many GPUs and fewer GPCs, until there is none or it would take
// too long.
func (t *task) fewer(best answer, limited *task, relaxed relaxation) answer {
	n := len(t.demands)
	for best.gpcs > best.minGPCs+1e-6 {
		target := best.gpcs - 1
		search := limited.search(relaxed, []int{best.gpus}, target)
		search.relaxed.columns = make([][]column, n)
		all := search.enlarge(target-relaxed.value+1e-6, effort(n, 12, 400, 20000), true)
		search.bound(target)
		choices, whole := search.beam(effort(n, 0, 20000, 400000), true)
		found := false
		for _, c := range choices[:min(len(choices), 8)] {
			if a, fits := t.pack(search.lists, c); fits && a.gpus == best.gpus && a.gpcs < best.gpcs {
				a.minGPCs = best.minGPCs
				best, found = a, true
				break
			}
		}
		if found {
			continue
		}
		if all && whole && len(choices) == 0 {
			best.minGPCs = best.gpcs
		}
		break
	}
	return best
}

// exhaust visits everything that may have gpus GPUs, if little effort is enough. That is every split
// of them between the kinds, and all mixes that are not too expensive at the split's prices. It
// returns an answer if it finds one. none means that there is provably none.
func (t *task) exhaust(gpus int) (best answer, ok, none bool) {
	n := len(t.demands)
	if !t.whole() {
		return best, false, false
	}
	splits := t.everySplit(gpus, effort(n, 1, 300, 3000))
	none = splits != nil
	for _, split := range splits {
		limited := t.within(split)
		relaxed := limited.relax(goal{gpu: 1, item: make([]float64, t.items), gpus: -1}, rounds)
		room := float64(gpus) - relaxed.value + 1e-6
		if room < 0 {
			continue
		}
		search := limited.search(relaxed, split, 0)
		search.relaxed.columns = make([][]column, n)
		all := search.enlarge(room, effort(n, 12, 400, 20000), true)
		search.bound(float64(gpus))
		choices, whole := search.beam(effort(n, 0, 20000, 400000)/len(splits)+1, false)
		for _, c := range choices[:min(len(choices), 8)] {
			if a, fits := t.pack(search.lists, c); fits && a.gpus <= gpus {
				return a, true, false
			}
		}
		none = none && all && whole && len(choices) == 0
	}
	return best, false, none
}

// everySplit lists all ways to divide gpus between the kinds; nil if there are more than most.
func (t *task) everySplit(gpus, most int) [][]int {
	var all [][]int
	split := make([]int, len(t.kinds))
	var share func(m, left int) bool
	share = func(m, left int) bool {
		k := t.kinds[m]
		if m == len(t.kinds)-1 {
			if k.limit < 0 || left <= k.limit {
				split[m] = left
				all = append(all, slices.Clone(split))
			}
			return len(all) <= most
		}
		for used := left; used >= 0; used-- {
			split[m] = used
			if (k.limit < 0 || used <= k.limit) && !share(m+1, left-used) {
				return false
			}
		}
		return true
	}
	if !share(0, gpus) {
		return nil
	}
	return all
}

// whole reports whether the rules of all kinds are the only ones that matter for packing.
func (t *task) whole() bool {
	for _, k := range t.kinds {
		if _, whole := k.cut.rules(); !whole || k.memory > 0 {
			return false
		}
	}
	return true
}

// unit returns the second criterion's sum of the largest GPU.
func (s *search) unit() float64 {
	most := 0.0
	for _, k := range s.kinds {
		value, _ := k.cut.dearest(k.of(s.gpcs))
		most = math.Max(most, value)
	}
	return most
}

// pack turns a choice into an answer, if the task has enough GPUs.
func (t *task) pack(lists [][]option, c choice) (answer, bool) {
	a := answer{}
	owners := make([][]int, t.items) // demands that have a segment of the item, one entry per segment
	for s, o := range c.options {
		for k, n := range lists[s][o].mix {
			a.gpcs += t.gpcs[k] * float64(n)
			for range n {
				owners[k] = append(owners[k], s)
			}
		}
	}
	for m := range t.kinds {
		boards := t.board(&t.kinds[m], owners)
		if limit := t.kinds[m].limit; limit >= 0 && len(boards) > limit {
			return answer{}, false
		}
		a.boards = append(a.boards, boards)
		a.gpus += len(boards)
	}
	return a, true
}

// board packs a kind's segments into GPUs.
func (t *task) board(k *kind, owners [][]int) [][]segment {
	counts := make([]int, len(k.gpcs))
	for i := range counts {
		counts[i] = len(owners[k.first+i])
	}
	bins := k.cut.pack(counts)
	taken := make([]int, len(counts))
	var boards [][]segment
	fits := true
	for _, b := range bins {
		places := k.cut.slots(b.counts)
		for range b.times {
			board := make([]segment, 0, len(places))
			memory, clients := 0.0, 0
			for _, at := range places {
				item := k.first + at.size
				s := owners[item][taken[at.size]]
				taken[at.size]++
				board = append(board, segment{s, item, at.slot})
				memory += t.demands[s].memory[item]
				clients += t.demands[s].clients[item]
			}
			fits = fits && (k.memory == 0 || memory <= k.memory) && (k.clients == 0 || clients <= k.clients)
			boards = append(boards, board)
		}
	}
	if fits {
		return boards
	}
	return t.boardShared(k, owners)
}

// boardShared packs segments that share their GPU's memory and clients (stow).
func (t *task) boardShared(k *kind, owners [][]int) [][]segment {
	full, _ := k.cut.dearest(k.gpcs)
	var list []parcel
	for i, steps := range k.gpcs {
		for _, s := range owners[k.first+i] {
			p := parcel{stowed: stowed{service: s, item: i}, width: int(steps)}
			if k.memory > 0 {
				p.memory = t.demands[s].memory[k.first+i] / k.memory
			}
			p.clients = t.demands[s].clients[k.first+i]
			list = append(list, p)
		}
	}
	loads := stow(list, int(full+0.5), k.clients)
	boards := make([][]segment, len(loads))
	for i, load := range loads {
		counts := make(pattern, len(k.gpcs))
		bySize := make([][]segment, len(k.gpcs))
		for _, p := range load {
			counts[p.item]++
			bySize[p.item] = append(bySize[p.item], segment{p.service, k.first + p.item, 0})
		}
		for _, at := range k.cut.slots(counts) {
			g := bySize[at.size][0]
			bySize[at.size] = bySize[at.size][1:]
			g.slot = at.slot
			boards[i] = append(boards[i], g)
		}
	}
	return boards
}
