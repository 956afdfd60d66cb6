package gslice

import "time"

// A window needs this many answers, or this much time and a few answers. Fewer would be too
// noisy.
const (
	enoughAnswers = 64
	enoughTime    = 5 * time.Second
	minAnswers    = 4
)

// The first window of a share still has the old share's caches, queues and rates. Two more make
// an average.
const (
	settlingWindows = 1
	minWindows      = settlingWindows + 2
)

// Window sums up the requests of an IF in a part of time.
type Window struct {
	Arrived, Answered int
	// Aggregation adds up the times from the first fragment to the complete request.
	Aggregation time.Duration
	Tail        time.Duration // latency, as in Observation
	Throughput  float64       // requests per busy second; 0 if nothing ran
}

// Measurement is the performance of an IF since its share last changed. The zero value has no
// share. It is not safe for concurrent use.
type Measurement struct {
	percent float64 // the share that is measured
	since   time.Duration
	windows int

	tail, throughput, rate, aggregation ewma

	observed Observation
	known    bool
}

// Restart forgets what was measured, and measures another share from now on.
func (m *Measurement) Restart(percent float64, now time.Duration) {
	*m = Measurement{percent: percent, since: now}
}

// Measures reports whether m measures a share.
func (m *Measurement) Measures(percent float64) bool { return percent == m.percent }

// Enough reports whether a window with so many requests is large enough for Add.
func (m *Measurement) Enough(arrived, answered int, now time.Duration) bool {
	return answered >= enoughAnswers || now-m.since >= enoughTime && (answered >= minAnswers || arrived == 0)
}

// Add adds the window that ends now. within is the part of the objective slo that the node may
// use. A window without a value of some kind leaves the average of that kind unchanged.
func (m *Measurement) Add(w Window, now time.Duration, slo, within time.Duration) {
	elapsed := now - m.since
	m.since = now
	if w.Arrived == 0 && w.Answered == 0 {
		m.known = false
		return
	}
	if m.windows++; m.windows <= settlingWindows {
		return
	}
	m.rate.add(float64(w.Arrived) / elapsed.Seconds())
	if w.Arrived > 0 {
		m.aggregation.add(w.Aggregation.Seconds() / float64(w.Arrived))
	}
	if w.Answered > 0 {
		m.tail.add(w.Tail.Seconds())
	}
	if w.Throughput > 0 {
		m.throughput.add(w.Throughput)
	}
	m.observe(slo, within)
}

// observe evaluates the averages.
func (m *Measurement) observe(slo, within time.Duration) {
	aggregation := m.aggregation.mean
	m.observed = Observation{
		Latency: duration(m.tail.mean), Throughput: m.throughput.mean, ArrivalRate: m.rate.mean,
		// A share can only shorten the time after the last fragment.
		SLO: max(within-duration(aggregation), slo/10),
		// Paper 3.2.1: whichever part takes longer is the bottleneck.
		AggregationBound: aggregation > m.tail.mean && aggregation+m.tail.mean > within.Seconds(),
	}
	m.known = m.tail.known && m.throughput.known && m.windows >= minWindows
}

// Observation returns the last result. known is false while there is too little data for a
// decision.
func (m *Measurement) Observation() (o Observation, known bool) { return m.observed, m.known }

func duration(seconds float64) time.Duration { return time.Duration(seconds * float64(time.Second)) }

// ewma is the exponentially weighted moving average that the paper keeps of latency and
// throughput. The zero value has no values.
type ewma struct {
	mean  float64
	known bool
}

// ewmaWeight is the weight of the newest value. The mean covers about 2/weight - 1 = 9 values.
// After 11 values it has followed nine tenths of a step.
const ewmaWeight = 0.2

// add adds a value to the mean. The first value becomes the mean.
func (e *ewma) add(v float64) {
	if !e.known {
		*e = ewma{mean: v, known: true}
		return
	}
	e.mean += ewmaWeight * (v - e.mean)
}
