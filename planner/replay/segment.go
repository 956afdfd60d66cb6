package replay

import (
	"math"
	"slices"

	"github.com/penstock/penstock/batching"
	"github.com/penstock/penstock/plan"
)

// roundingMS is the max rounding error of a latency written in whole
// milliseconds.
const roundingMS = 0.5 + 1e-6

// A ladder has the times of batches. sizes[i] requests, or any number of them
// above sizes[i-1], take seconds[i]. Sizes ascend; the last is the segment's
// batch.
type ladder struct {
	sizes   []int
	seconds []float64
}

// steps returns the ladder of a segment whose model has a profile. A segment's
// latency may differ from the profile's: a policy that predicts interference
// writes its own. It then stretches all steps alike. If the profile has nothing
// at the segment's size and processes, every batch takes the segment's latency.
func steps(s plan.Segment, profile plan.Profile) ladder {
	var l ladder
	stretch := 1.0
	for _, pt := range profile.Points {
		if pt.GPCs != s.GPCs || pt.Processes != s.Processes || pt.Batch > s.Batch || pt.ThroughputRPS <= 0 {
			continue
		}
		l.sizes = append(l.sizes, pt.Batch)
		l.seconds = append(l.seconds, seconds(pt))
		if pt.Batch == s.Batch && pt.LatencyMS > 0 {
			stretch = s.LatencyMS / pt.LatencyMS
		}
	}
	if len(l.sizes) == 0 || l.sizes[len(l.sizes)-1] != s.Batch {
		return ladder{[]int{s.Batch}, []float64{seconds(s.Point())}}
	}
	for i := range l.seconds {
		l.seconds[i] *= stretch
	}
	return l
}

// seconds returns the time of a batch at a point; see the package doc.
func seconds(pt plan.Point) float64 {
	loopMS := 1000 * float64(pt.Batch*pt.Processes) / pt.ThroughputRPS
	if math.Abs(loopMS-pt.LatencyMS) <= roundingMS {
		return loopMS / 1000
	}
	return pt.LatencyMS / 1000
}

// takes returns the time of a batch of n, 1 ≤ n ≤ the last size.
func (l ladder) takes(n int) float64 {
	i, _ := slices.BinarySearch(l.sizes, n)
	return l.seconds[i]
}

// A server is a segment during a replay. Its queue holds the arrival times of
// the waiting requests, in ascending order.
type server struct {
	ladder
	share float64 // of the service's load
	idle  int     // processes
	queue queue
	busy  float64 // process-seconds within the measured time
}

func (v *server) limit() int { return v.sizes[len(v.sizes)-1] }

// pick chooses the batch that starts now, by Penstock's rule (batching.Choose). The
// first late requests of the queue are to be given up; the n requests after them
// run. All requests have one objective, so the order of arrival is the order of
// deadlines. Late requests are those that would miss their objective in the batch
// that starts now.
func (v *server) pick(now, slo float64) (n, late int) {
	waiting := v.queue.len()
	takes := func(n int) float64 { return v.takes(n) }
	missed := func(t float64) int { return v.queue.before(now + t - slo) }
	if n = batching.Choose(waiting, v.limit(), false, takes, missed); n == 0 {
		return 0, waiting
	}
	return n, missed(v.takes(n))
}

// A queue is a FIFO of ascending times in a slice. Its contents are moved to
// the front when half of the slice is consumed.
type queue struct {
	times []float64
	head  int
}

func (q *queue) len() int         { return len(q.times) - q.head }
func (q *queue) push(at float64)  { q.times = append(q.times, at) }
func (q *queue) front() []float64 { return q.times[q.head:] }

// before returns how many of the waiting requests arrived before a time.
func (q *queue) before(at float64) int {
	i, _ := slices.BinarySearch(q.front(), at)
	return i
}

func (q *queue) drop(n int) {
	q.head += n
	if q.head > 64 && 2*q.head > len(q.times) {
		q.times = q.times[:copy(q.times, q.front())]
		q.head = 0
	}
}
