package sharesim

import "math"

// kept is the part of its requests that a function must have in time to count as kept.
const kept = 0.99

// Share returns which part of the requests was in time; 1 of none.
func (r *Result) Share() float64 {
	if r.Requests == 0 {
		return 1
	}
	return float64(r.Good) / float64(r.Requests)
}

// worth is the goodput weighted by device time.
func (r *Result) worth() float64 { return float64(r.Good) * r.Function.Weight().Seconds() }

// grid is how finely a fixed division divides the device.
const grid = 40

// BestDivision returns the weighted goodput of the best fixed division of the device. Each
// function has a part to itself and runs at that part of the device's speed. Functions for which keep is true
// have at least 99 % in time. possible is false if their parts exceed the device.
func BestDivision(c Config, keep []bool) (worth float64, possible bool, err error) {
	best := make([]float64, grid+1) // with that many parts handed out; all of them
	first := true
	left := float64(grid)
	var open []int
	for i := range c.Functions {
		if !keep[i] {
			open = append(open, i)
			continue
		}
		// The smallest part that keeps 99 %, to a fifth of a grid step.
		low, high := 0.0, 1.0
		r, err := alone(c, i, 1)
		if err != nil {
			return 0, false, err
		}
		if r.Share() < kept {
			return 0, false, nil
		}
		for high-low > 0.2/grid {
			middle := (low + high) / 2
			if low == 0 && high > 0.02 {
				middle = high / 2
			}
			s, err := alone(c, i, middle)
			if err != nil {
				return 0, false, err
			}
			if s.Share() >= kept {
				high, r = middle, s
			} else {
				low = middle
			}
		}
		left -= high * grid
		worth += r.worth()
	}
	if left < 0 {
		return 0, false, nil
	}
	parts := int(left)
	for _, i := range open {
		of := make([]float64, parts+1)
		for n := 1; n <= parts; n++ {
			// Every open function gets the rest of a grid step: more than any division
			// can hand out, so that the reference is not too low.
			r, err := alone(c, i, (float64(n)+left-float64(parts))/grid)
			if err != nil {
				return 0, false, err
			}
			of[n] = max(of[n-1], r.worth())
			if r.Requests == r.Good {
				for m := n + 1; m <= parts; m++ {
					of[m] = of[n]
				}
				break
			}
		}
		if first {
			copy(best, of)
			first = false
			continue
		}
		next := make([]float64, parts+1)
		for n := range next {
			next[n] = math.Inf(-1)
			for m := range n + 1 {
				next[n] = max(next[n], best[n-m]+of[m])
			}
		}
		copy(best, next)
	}
	if len(open) > 0 {
		worth += best[parts]
	}
	return worth, true, nil
}
