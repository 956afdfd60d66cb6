package pack

import (
	"cmp"
	"math"
	"slices"
)

// option is a mix of a service: how many segments of each offer it has.
type option struct {
	mix    []int
	loads  []float64 // of all rules
	weight float64
	// volume is the sum of the parts of steps, memory and clients that it takes.
	volume float64
	// excess is what it costs more than the cheapest mix, at the prices of the relaxation.
	excess float64
}

// relaxation is a lower bound of a task, and what its search met.
type relaxation struct {
	// bound is the lower bound of the number of GPUs.
	bound float64
	// price of each rule proves the bound.
	price []float64
	// options has each service's mixes, mean the mean loads of those that were cheapest.
	options [][]option
	mean    [][]float64
}

// rounds is the number of prices that relax tries.
const rounds = 60

// relax looks for the prices of the rules that prove the highest bound. Rules whose loads are the
// highest become more expensive (multiplicative weights), and so do kinds of which there are too few.
func (t *task) relax() relaxation {
	r := relaxation{bound: math.Inf(-1), options: make([][]option, len(t.services)), mean: make([][]float64, len(t.services))}
	for s := range r.mean {
		r.mean[s] = make([]float64, t.rules)
	}
	score, scarce := make([]float64, t.rules), make([]float64, len(t.kinds))
	for round := range rounds {
		price := t.prices(score, scarce, 12/math.Sqrt(float64(round+1)))
		loads := make([]float64, t.rules)
		bound := 0.0
		for s := range t.services {
			cheapest, cost := t.cheapest(s, price)
			bound += cost
			o := r.remember(s, t.option(s, cheapest))
			for i, load := range o.loads {
				loads[i] += load
				if round >= rounds/2 {
					r.mean[s][i] += load / (rounds - rounds/2)
				}
			}
		}
		for m := range t.kinds {
			k := &t.kinds[m]
			use := max(1, k.use(loads))
			for i, load := range k.of(loads) {
				score[k.first+i] += load / use
			}
			if k.Count >= 0 {
				bound -= scarce[m] * float64(k.Count)
				priced := 0.0
				for i, load := range k.of(loads) {
					priced += load * k.of(price)[i] / (1 + scarce[m])
				}
				scarce[m] = max(0, scarce[m]+2*(priced-float64(k.Count))/(float64(k.Count)+1)/math.Sqrt(float64(round+1)))
			}
		}
		if bound > r.bound {
			r.bound, r.price = bound, price
		}
	}
	return r
}

// prices divides the price of one GPU of each kind among its rules.
func (t *task) prices(score, scarce []float64, step float64) []float64 {
	price := make([]float64, t.rules)
	for m := range t.kinds {
		k := &t.kinds[m]
		of, scores := k.of(price), k.of(score)
		top, sum := slices.Max(scores), 0.0
		for i, s := range scores {
			of[i] = math.Exp(step * (s - top))
			sum += of[i]
		}
		for i := range of {
			of[i] *= (1 + scarce[m]) / sum
		}
	}
	return price
}

// cost returns the costs of a service's offers.
func (t *task) cost(s int, price []float64) []float64 {
	costs := make([]float64, len(t.services[s].offers))
	for i, o := range t.services[s].offers {
		for r, p := range t.kinds[o.kind].of(price) {
			costs[i] += p * o.loads[r]
		}
	}
	return costs
}

func (t *task) cheapest(s int, price []float64) (mix []int, cost float64) {
	mix = make([]int, len(t.services[s].offers))
	least := math.Inf(1)
	c := cover{service: &t.services[s], price: t.cost(s, price), found: func(found []int, cost float64) {
		if cost < least {
			least = cost
			copy(mix, found)
		}
	}}
	cost = c.search()
	return mix, cost
}

func (t *task) option(s int, mix []int) option {
	o := option{mix: mix, loads: make([]float64, t.rules)}
	for i, n := range mix {
		if n > 0 {
			offer := &t.services[s].offers[i]
			o.weight += float64(n) * offer.weight
			_, volume := t.kinds[offer.kind].parts(offer.point)
			o.volume += float64(n) * volume
			for r, load := range offer.loads {
				o.loads[t.kinds[offer.kind].first+r] += float64(n) * load
			}
		}
	}
	return o
}

// remember keeps an option, unless the service has it.
func (r *relaxation) remember(s int, o option) option {
	if !slices.ContainsFunc(r.options[s], func(old option) bool { return slices.Equal(old.mix, o.mix) }) {
		r.options[s] = append(r.options[s], o)
	}
	return o
}

// enlarge adds the mixes that cost at most slack GPUs more than the cheapest, at most most per
// service, and computes what each option costs more.
func (t *task) enlarge(r *relaxation, slack float64, most int) {
	for s := range t.services {
		c := cover{service: &t.services[s], price: t.cost(s, r.price), slack: slack}
		c.found = func(mix []int, cost float64) {
			if len(r.options[s]) < most {
				r.remember(s, t.option(s, slices.Clone(mix)))
			}
		}
		least := c.search()
		for i := range r.options[s] {
			o := &r.options[s][i]
			o.excess = -least
			for k, load := range o.loads {
				o.excess += r.price[k] * load
			}
		}
		r.options[s] = undominated(r.options[s])
	}
}

// undominated removes options that are no better than another one by any rule.
func undominated(list []option) []option {
	slices.SortStableFunc(list, func(a, b option) int {
		return cmp.Or(cmp.Compare(a.weight, b.weight), slices.Compare(a.loads, b.loads))
	})
	var kept []option
	for _, o := range list {
		if !slices.ContainsFunc(kept, func(k option) bool { return below(k.loads, o.loads) }) {
			kept = append(kept, o)
		}
	}
	return kept
}
