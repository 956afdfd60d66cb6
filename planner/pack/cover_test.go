package pack

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// mixes visits all minimal mixes of a demand, one item after another, without prices.
func mixes(d demand, found func(mix []int)) {
	mix := make([]int, len(d.gives))
	var choose func(k int, left float64)
	choose = func(k int, left float64) {
		if left <= 1e-9 {
			for i, n := range mix {
				if n > 0 && left+d.gives[i] <= 1e-9 {
					return // one could be left out
				}
			}
			found(mix)
			return
		}
		if k == len(mix) {
			return
		}
		choose(k+1, left)
		if d.gives[k] > 0 {
			mix[k]++
			choose(k, left-d.gives[k])
			mix[k]--
		}
	}
	choose(0, d.rate)
}

func drawnDemand(t *rapid.T) (demand, []float64) {
	n := rapid.IntRange(1, 5).Draw(t, "items")
	d := demand{rate: float64(rapid.IntRange(1, 60).Draw(t, "rate")), gives: make([]float64, n)}
	price := make([]float64, n)
	for k := range n {
		d.gives[k] = float64(rapid.IntRange(0, 40).Draw(t, "gives"))
		price[k] = float64(rapid.IntRange(1, 20).Draw(t, "price"))
	}
	if slices.Max(d.gives) < 4 {
		d.gives[0] = 7
	}
	for k := range d.gives {
		if d.gives[k] < 4 {
			d.gives[k] = 0
		}
	}
	return d, price
}

func TestCheapestMix(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d, price := drawnDemand(t)
		want := math.Inf(1)
		mixes(d, func(mix []int) { want = min(want, worth(price, mix)) })
		mix := make([]int, len(price))
		got := (&coverer{}).cheapest(d, price, mix)
		if math.Abs(got-want) > 1e-9 || math.Abs(worth(price, mix)-want) > 1e-9 {
			t.Fatalf("%v at %v, want %v", got, mix, want)
		}
		if worth(d.gives, mix) < d.rate-1e-6 {
			t.Fatalf("%v serves %v of %v", mix, worth(d.gives, mix), d.rate)
		}
	})
}

func TestEveryMix(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d, price := drawnDemand(t)
		least := (&coverer{}).cheapest(d, price, make([]int, len(price)))
		limit := least + float64(rapid.IntRange(0, 15).Draw(t, "slack"))
		var want, got [][]int
		mixes(d, func(mix []int) {
			if worth(price, mix) <= limit {
				want = append(want, slices.Clone(mix))
			}
		})
		all := (&coverer{}).every(d, price, limit, 1000, func(mix []int) { got = append(got, slices.Clone(mix)) })
		slices.SortFunc(want, slices.Compare[[]int])
		slices.SortFunc(got, slices.Compare[[]int])
		if !all || !slices.EqualFunc(want, got, slices.Equal[[]int]) {
			t.Fatalf("all %v: %v, want %v", all, got, want)
		}
	})
}
