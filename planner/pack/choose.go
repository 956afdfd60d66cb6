package pack

import (
	"cmp"
	"math"
	"slices"

	"github.com/penstock/penstock/plan"
)

// effort returns how much of something to spend per service in a task of n services. It divides all
// by n, so that the total stays nearly linear, but stays between least and most.
func effort(n, least, most, all int) int { return max(least, min(most, all/max(1, n))) }

// solve looks for a plan on the fewest GPUs, and with these for the fewest GPCs. It returns no
// segments if it finds none, and a proved lower bound of the GPUs. quick means that any plan will
// do.
//
// The rules may allow fewer GPUs than the segments then take. solve then aims at segments that take
// less memory, at fewer GPUs of each kind that had too few, and at more GPUs in total.
func (t *task) solve(quick bool) (best []plan.Segment, lower int) {
	relaxed := t.relax()
	lower = ceil(relaxed.bound)
	stock := t.stock()
	if stock >= 0 && lower > stock {
		return nil, lower
	}
	n := len(t.services)
	t.enlarge(&relaxed, slack, effort(n, 12, 200, 4000))
	to := aim{gpus: float64(lower), of: make([]float64, len(t.kinds))}
	for m, k := range t.kinds {
		to.of[m] = float64(k.Count)
		if k.Count < 0 {
			to.of[m] = math.Inf(1)
		}
	}
	fewest, lightest := 0, 0.0
	for range tries {
		for _, beam := range []beam{{width: effort(n, 4, 50, 5000)}, {width: effort(n, 4, 200, 10000), lean: true}} {
			short := slices.Repeat([]float64{math.Inf(1)}, len(t.kinds))
			choices := t.choose(&relaxed, to, beam)
			for _, choice := range choices[:min(len(choices), effort(n, 1, packed, 800))] {
				segments, used, lack := t.pack(&relaxed, choice)
				for m := range short {
					short[m] = min(short[m], float64(lack[m]))
				}
				if slices.Max(lack) == 0 && (best == nil || used < fewest || used == fewest && choice.weight < lightest) {
					best, fewest, lightest = segments, used, choice.weight
				}
			}
			if best != nil && (quick || float64(fewest) <= to.gpus) {
				return best, lower
			}
			if best == nil && slices.Max(short) > 0 {
				for m := range to.of {
					to.of[m] -= short[m]
				}
				break
			}
		}
		to.gpus++
	}
	return best, lower
}

// beam is how choose searches: how many states it keeps and whether segments should also take
// little memory and few clients, so that they are easy to pack.
type beam struct {
	width int
	lean  bool
}

// aim is the number of GPUs that a choice may use: in total, and of each kind.
type aim struct {
	gpus float64
	of   []float64
}

const (
	// slack is how much more than the cheapest a mix may cost to be considered, in GPUs: two of
	// seven GPCs.
	slack = 2.0 / 7
	// tries is how many numbers of GPUs solve aims at.
	tries = 3
	// packed is the max number of choices that are packed.
	packed = 8
)

// stock returns the total number of GPUs; −1 if unlimited.
func (t *task) stock() (sum int) {
	for _, k := range t.kinds {
		if k.Count < 0 {
			return -1
		}
		sum += k.Count
	}
	return sum
}

// choice is one option per service.
type choice struct {
	options []int
	loads   []float64
	weight  float64
}

// state is a choice for the first services.
type state struct {
	loads                         []float64
	weight, volume, excess, score float64
	parent, option                int
}

// choose takes an option for one service after another, the most expensive first, and keeps the
// best states. For the score it assumes that all other services have their mean loads. Each
// choice therefore makes up for the rounding of the previous ones. choose returns the best first.
func (t *task) choose(r *relaxation, to aim, by beam) (choices []choice) {
	order := make([]int, len(t.services))
	size := make([]float64, len(t.services))
	future := make([]float64, t.rules)
	for s := range order {
		order[s] = s
		for i, load := range r.mean[s] {
			size[s] += load
			future[i] += load
		}
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(size[b], size[a]) })

	layers := [][]state{{{loads: make([]float64, t.rules)}}}
	loads := make([]float64, t.rules)
	var next []state
	for _, s := range order {
		for i, load := range r.mean[s] {
			future[i] -= load
		}
		next = next[:0]
		from := layers[len(layers)-1]
		for p := range from {
			for i, o := range r.options[s] {
				for k := range loads {
					loads[k] = from[p].loads[k] + o.loads[k] + future[k]
				}
				st := state{weight: from[p].weight + o.weight, volume: from[p].volume + o.volume, excess: from[p].excess + o.excess,
					parent: p, option: i}
				st.score = t.score(loads, to) + max(0, r.bound+st.excess-to.gpus) + 1e-3*st.weight
				if by.lean {
					st.score += 0.03 * st.volume
				}
				next = append(next, st)
			}
		}
		layers = append(layers, kept(next, from, r.options[s], by.width))
	}

	last := layers[len(layers)-1]
	for i := range last {
		c := choice{make([]int, len(order)), last[i].loads, last[i].weight}
		at := i
		for l := len(order); l > 0; l-- {
			c.options[order[l-1]] = layers[l][at].option
			at = layers[l][at].parent
		}
		choices = append(choices, c)
	}
	slices.SortStableFunc(choices, func(a, b choice) int {
		return cmp.Or(cmp.Compare(max(to.gpus, t.least(a.loads)), max(to.gpus, t.least(b.loads))), cmp.Compare(a.weight, b.weight))
	})
	return choices
}

// score is low for loads of few GPUs.
func (t *task) score(loads []float64, to aim) float64 {
	sum, over := 0.0, 0.0
	for m := range t.kinds {
		use := t.kinds[m].use(loads)
		over += max(0, use-to.of[m])
		sum += use
	}
	return over + max(0, sum-to.gpus) + 1e-3*sum
}

// kept returns the best states after from, one of those that are equal.
func kept(states, from []state, options []option, width int) (kept []state) {
	slices.SortFunc(states, func(a, b state) int {
		return cmp.Or(cmp.Compare(a.score, b.score), a.parent-b.parent, a.option-b.option)
	})
	for _, st := range states {
		if len(kept) == width {
			break
		}
		st.loads = slices.Clone(from[st.parent].loads)
		for i, load := range options[st.option].loads {
			st.loads[i] += load
		}
		if last := len(kept) - 1; last < 0 || kept[last].score != st.score || !slices.Equal(kept[last].loads, st.loads) {
			kept = append(kept, st)
		}
	}
	return kept
}

// least returns how many GPUs loads need at least.
func (t *task) least(loads []float64) (sum float64) {
	for m := range t.kinds {
		sum += float64(ceil(t.kinds[m].use(loads)))
	}
	return sum
}
