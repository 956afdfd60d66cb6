package pack

import (
	"slices"

	"github.com/penstock/penstock/plan"
)

// outcome is what is known of a problem: a plan's segments, if one was found, and what is proved.
type outcome struct {
	// answer is that of the beam, with minGPCs if known. It is the zero value if the segments are
	// not the beam's.
	answer
	segments []plan.Segment
	gpus     int
	minGPUs  int  // no plan has fewer GPUs
	none     bool // there is no plan on the available GPUs
}

func (o *outcome) ok() bool { return o.segments != nil }

// take replaces the outcome's segments if the given ones use fewer GPUs.
func (o *outcome) take(a answer, segments []plan.Segment, gpus int) {
	if !o.ok() || gpus < o.gpus {
		o.answer, o.segments, o.gpus = a, segments, gpus
	}
}

// stock returns the total number of GPUs; −1 if unlimited.
func (t *task) stock() int {
	sum := 0
	for _, k := range t.kinds {
		if k.limit < 0 {
			return -1
		}
		sum += k.limit
	}
	return sum
}

// descentRounds is the max number of services that share memory for which the beam, which packs by steps
// first, also plans. In a fleet (mixedDescentRounds), the beam runs for every way to divide the GPUs
// between the models.
const (
	descentRounds      = 150
	mixedDescentRounds = 12
)

// shared reports whether segments share memory, or clients, on some kind of GPU.
func (in *instance) shared() (memory, clients bool) {
	return slices.ContainsFunc(in.kinds, func(k kind) bool { return k.memory > 0 }),
		slices.ContainsFunc(in.kinds, func(k kind) bool { return k.clients > 0 })
}

// settle looks for a plan on the fewest GPUs, and proves what it can. If memory is shared, it takes
// the best of the greedy plans. It adds the beam only if that is cheap enough and a gap to the
// bound remains.
func (in *instance) settle() outcome {
	var got outcome
	stock := in.stock()
	if memory, clients := in.shared(); memory || clients {
		first := in.relax(goal{gpu: 1, item: make([]float64, in.items), gpus: -1}, rounds)
		got.minGPUs = ceilGPUs(first.value)
		in.settleShared(in.share(first), &got, memory)
	} else {
		a, ok := in.solve()
		if ok {
			got.take(a, in.segments(a), a.gpus)
		}
		got.minGPUs = a.minGPUs
	}
	if !got.ok() && stock < 0 {
		in.divide(&got)
	}
	got.none = got.none || stock >= 0 && got.minGPUs > stock
	return got
}

// settleShared is settle's search if memory or clients are shared.
func (in *instance) settleShared(sh *shares, got *outcome, memory bool) {
	n, stock := len(in.demands), in.stock()
	enough := func() bool { return got.ok() && got.gpus <= got.minGPUs || stock >= 0 && got.minGPUs > stock }
	if !memory {
		if a, ok := in.solve(); ok {
			got.take(a, in.segments(a), a.gpus)
		}
		if enough() {
			return
		}
	}
	boards, gpus, least := sh.greedy()
	got.minGPUs = max(got.minGPUs, least)
	if boards != nil {
		var segments []plan.Segment
		at := 0
		for m := range boards {
			segments = append(segments, in.segmentsOf(m, at, boards[m])...)
			at += len(boards[m])
		}
		got.take(answer{}, segments, gpus)
	}
	if !memory {
		return
	}

	few := descentRounds
	if len(in.kinds) > 1 {
		few = mixedDescentRounds
	}
	if enough() || n > few {
		return
	}
	most := stock
	if got.ok() {
		most = got.gpus - 1
	}
	if a, ok := in.solveFrom(got.minGPUs, most, true); ok {
		a.minGPUs, a.minGPCs = 0, 0 // by steps alone: nothing is proved
		got.take(a, in.segments(a), a.gpus)
	}
}

// divide handles fleets with some unlimited kinds of GPU. Services that run on an unlimited kind
// fit in any case. The fleet is therefore too small exactly if its limited kinds are too small for
// the other services. divide plans the two parts separately.
func (in *instance) divide(got *outcome) {
	bound, free := *in.problem, *in.problem
	bound.Services, free.Services, bound.Fleet, free.Fleet = nil, nil, nil, nil
	for _, stock := range in.stocks {
		if stock.Count < 0 {
			free.Fleet = append(free.Fleet, stock)
		} else {
			bound.Fleet = append(bound.Fleet, stock)
		}
	}
	for s, service := range in.problem.Services {
		if in.unlimited(s) {
			free.Services = append(free.Services, service)
		} else {
			bound.Services = append(bound.Services, service)
		}
	}
	var segments []plan.Segment
	gpus := 0
	for _, part := range []*plan.Problem{&bound, &free} {
		if len(part.Services) == 0 {
			continue
		}
		points, err := build(part)
		if err != nil {
			return // each service has a point on its part of the fleet
		}
		one := points.settle()
		if !one.ok() {
			got.none = one.none
			return
		}
		for _, s := range one.segments {
			s.GPU += gpus
			segments = append(segments, s)
		}
		gpus += one.gpus
	}
	got.take(answer{}, segments, gpus)
}

// unlimited reports whether a service runs on a kind of GPU that is unlimited.
func (in *instance) unlimited(s int) bool {
	return slices.ContainsFunc(in.kinds, func(k kind) bool {
		return k.limit < 0 && slices.ContainsFunc(k.of(in.demands[s].gives), func(gives float64) bool { return gives > 0 })
	})
}

// found reports whether there is a plan, without looking for the best.
func (in *instance) found() bool {
	memory, clients := in.shared()
	if !memory && !clients {
		_, ok := in.solve()
		return ok
	}
	got := in.settle()
	return got.ok()
}
