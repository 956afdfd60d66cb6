// Package history keeps what a node did in the last hours: one Point per function and interval,
// in three resolutions, the marks between them, and single requests that were slow, late or
// failed. It has no clock and no network: it learns from samples of the manager.
package history

import "github.com/penstock/penstock/wire"

// The sizes of a Point. The manager has that many latency buckets and stages.
const (
	Buckets = 33
	Stages  = 7
)

// Point is what happened to a function in an interval. Counters are sums over the interval, the
// others means.
type Point struct {
	// Known is false for an interval in which the manager gave no sample.
	Known bool
	// Latency is the number of answered requests by bucket, Results that of all by status.
	Latency [Buckets]uint32
	Results [wire.NumStatuses]uint32
	// StageMillis are sums over the Ran requests that were inferred. BatchSum is the sum of
	// their batches' sizes.
	StageMillis [Stages]float32
	Ran         uint32
	BatchSum    float32
	// InFlight is the number of requests that wait or run. The others are percent of the device.
	InFlight, Guarantee, Need, Use, Demoted float32
}

// add merges another interval into p. p has merged n known intervals before.
func (p *Point) add(o *Point, n int) {
	if !o.Known {
		return
	}
	p.Known = true
	for i, v := range o.Latency {
		p.Latency[i] += v
	}
	for i, v := range o.Results {
		p.Results[i] += v
	}
	for i, v := range o.StageMillis {
		p.StageMillis[i] += v
	}
	p.Ran += o.Ran
	p.BatchSum += o.BatchSum
	mean := func(to *float32, v float32) { *to += (v - *to) / float32(n+1) }
	mean(&p.InFlight, o.InFlight)
	mean(&p.Guarantee, o.Guarantee)
	mean(&p.Need, o.Need)
	mean(&p.Use, o.Use)
	mean(&p.Demoted, o.Demoted)
}

// Quantile returns a quantile of the latency in milliseconds, interpolated within its bucket. ok is
// false without answers. boundsMillis are the buckets' upper bounds.
func (p *Point) Quantile(boundsMillis []float64, q float64) (millis float64, ok bool) {
	total := 0.0
	for _, n := range p.Latency {
		total += float64(n)
	}
	if total == 0 || len(boundsMillis) == 0 {
		return 0, false
	}

	rank, last := q*total, boundsMillis[len(boundsMillis)-1]
	for i, count := range p.Latency {
		n := float64(count)
		if n > 0 && rank <= n {
			low, high := 0.0, last
			if i > 0 {
				low = boundsMillis[min(i, len(boundsMillis))-1]
			}
			if i < len(boundsMillis) {
				high = boundsMillis[i]
			}
			return low + (high-low)*rank/n, true
		}
		rank -= n
	}
	return last, true
}

// Level is a resolution.
type Level struct {
	StepMillis int64 `json:"step_ms"`
	Points     int   `json:"points"`
}

// Levels are the resolutions of a Series: 2 minutes, 15 minutes and 6 hours.
var Levels = [...]Level{{250, 480}, {1000, 900}, {10_000, 2160}}

// Series is the history of one function. The zero value is empty.
type Series struct {
	rings [len(Levels)]ring
}

type ring struct {
	points []Point
	merged int   // intervals in the newest point
	newest int64 // its number: time / step
}

// Add adds a point to the interval that contains a time, in milliseconds since 1970. Times must
// not fall.
func (s *Series) Add(millis int64, p *Point) {
	for i, level := range Levels {
		s.rings[i].add(millis/level.StepMillis, level.Points, p)
	}
}

func (r *ring) add(number int64, size int, p *Point) {
	if r.points == nil {
		r.points, r.newest = make([]Point, size), number
	}
	for ; r.newest < number; r.merged = 0 {
		if number-r.newest > int64(size) { // longer silence than is kept
			clear(r.points)
			r.newest = number - 1
		}
		r.newest++
		*r.at(r.newest) = Point{}
	}
	newest := r.at(r.newest)
	newest.add(p, r.merged)
	if p.Known {
		r.merged++
	}
}

func (r *ring) at(number int64) *Point { return &r.points[number%int64(len(r.points))] }

// Points returns the points of a level, oldest first, and the time of the first in
// milliseconds.
func (s *Series) Points(level int) (points []Point, millis int64) {
	r, size := &s.rings[level], int64(Levels[level].Points)
	if r.points == nil {
		return nil, 0
	}
	first := r.newest - size + 1
	for n := first; n <= r.newest; n++ {
		points = append(points, *r.at(n))
	}
	return points, first * Levels[level].StepMillis
}
