package replay

import (
	"cmp"
	"math/rand/v2"
	"slices"
)

// A run is one replay of one service.
type run struct {
	rate, slo float64 // requests per second, seconds
	servers   []server
	route     router
	arrivals  *rand.Rand

	warm, measured int // requests to send before counting, and to count
	from, to       float64

	ending schedule
	result outcome
}

// outcome is what one run counted, for the measured requests only.
type outcome struct {
	latencies []float64 // seconds, of those that ran, in order of completion
	givenUp   int       // did not run
}

// simulate plays the events in order: the next arrival, or the next batch that
// ends. If both happen at the same time, the end goes first.
func (r *run) simulate() outcome {
	arrivals := make([]float64, r.warm+r.measured)
	at := 0.0
	for i := range arrivals {
		at += r.arrivals.ExpFloat64() / r.rate
		arrivals[i] = at
	}
	r.from, r.to = arrivals[r.warm], arrivals[len(arrivals)-1]
	r.result.latencies = make([]float64, 0, r.measured)
	for _, now := range arrivals {
		r.finish(now)
		i := r.route.next(r.servers)
		r.servers[i].queue.push(now)
		r.begin(i, now)
	}
	// No more requests arrive; the waiting ones are served.
	for len(r.ending) > 0 {
		r.finish(r.ending[0].at)
	}
	return r.result
}

// finish ends the batches that end until now, and begins the next ones.
func (r *run) finish(now float64) {
	for len(r.ending) > 0 && r.ending[0].at <= now {
		e := r.ending.pop()
		v := &r.servers[e.server]
		v.idle++
		r.begin(e.server, e.at)
	}
}

// begin starts batches on a segment's idle processes.
func (r *run) begin(server int, now float64) {
	v := &r.servers[server]
	for v.idle > 0 && v.queue.len() > 0 {
		n, late := v.pick(now, r.slo)
		for _, came := range v.queue.front()[:late] {
			if came >= r.from {
				r.result.givenUp++
			}
		}
		v.queue.drop(late)
		if n == 0 {
			continue
		}
		end := now + v.takes(n)
		for _, came := range v.queue.front()[:n] {
			if came >= r.from {
				r.result.latencies = append(r.result.latencies, end-came)
			}
		}
		v.queue.drop(n)
		v.idle--
		r.ending.push(ending{end, server})
		v.busy += max(0, min(end, r.to)-max(now, r.from))
	}
}

// ending is when a process of a server ends its batch.
type ending struct {
	at     float64
	server int
}

// schedule has the endings in order, the earliest first.
type schedule []ending

func (s *schedule) push(e ending) {
	i, _ := slices.BinarySearchFunc(*s, e, func(a, b ending) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.server, b.server))
	})
	*s = slices.Insert(*s, i, e)
}

func (s *schedule) pop() ending {
	first := (*s)[0]
	*s = slices.Delete(*s, 0, 1)
	return first
}
