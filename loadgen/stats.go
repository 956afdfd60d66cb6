package loadgen

import (
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/loadgen/answer"
	"github.com/penstock/penstock/wire"
)

// functionStats counts one function's requests. The ledger's lock guards it.
type functionStats struct {
	// offered counts all requests since the start; sent those of the measured
	// time.
	offered, sent uint64
	// givenUp counts those of sent that the client gave up without an answer.
	// unsent counts those of givenUp of which no byte left. gaveUp is why the
	// client gave up the first.
	givenUp, unsent uint64
	gaveUp          error
	// dropped counts those of sent that the client never sent because they were
	// late.
	dropped  uint64
	statuses [client.StatusFailed + 1]uint64
	// within counts ok answers within the objective.
	within uint64
	// latency covers ok answers only: a refusal is quick and would improve the
	// figure.
	latency histogram
	lag     histogram
	stages  [len(wire.StageNames)]histogram
	// batched counts ok answers that report their batch size. batches is the sum
	// of 1/size over them, which is the number of batches.
	batched uint64
	batches float64

	checked, wrong uint64
	differences    []string
	// first is the first ok answer to each picture. Its payload is nil if there
	// was none.
	first []answer.Answer
}

func newFunctionStats(pictures int) functionStats {
	t := functionStats{first: make([]answer.Answer, pictures), latency: newHistogram(3), lag: newHistogram(2)}
	for i := range t.stages {
		t.stages[i] = newHistogram(2)
	}
	return t
}

func (t *functionStats) reply(r *client.Result, latency, slo time.Duration) {
	status := r.Status
	if status == client.StatusUnanswered || status > client.StatusFailed {
		status = client.StatusFailed // an unknown status is not a success
	}
	t.statuses[status]++
	if status != client.StatusOK {
		return
	}
	t.latency.record(latency)
	if latency <= slo {
		t.within++
	}
	for i, took := range r.Stages.Times() {
		t.stages[i].record(took)
	}
	if r.Batch > 0 {
		t.batched++
		t.batches += 1 / float64(r.Batch)
	}
}

func (t *functionStats) giveUp(err error, unsent bool) {
	t.givenUp++
	if t.gaveUp == nil {
		t.gaveUp = err
	}
	if unsent {
		t.unsent++
	}
}

func (t *functionStats) answered() uint64 {
	n := uint64(0)
	for _, count := range t.statuses {
		n += count
	}
	return n
}

// meanBatch is the mean size of the batches, each batch counted once. (The mean
// over requests would count a batch of eight eight times.)
func (t *functionStats) meanBatch() float64 {
	if t.batched == 0 {
		return 0
	}
	return float64(t.batched) / t.batches
}

// histogram records durations from a microsecond to ten minutes; longer ones count
// as ten minutes.
type histogram struct{ *hdrhistogram.Histogram }

const longest = 10 * time.Minute

func newHistogram(digits int) histogram {
	return histogram{hdrhistogram.New(int64(time.Microsecond), int64(longest), digits)}
}

func (h histogram) record(d time.Duration) {
	if err := h.RecordValue(int64(min(max(d, 0), longest))); err != nil {
		panic("loadgen: " + err.Error()) // the value is in range
	}
}

// millis returns a percentile in milliseconds, 0 if nothing was recorded.
func (h histogram) millis(percentile float64) float64 {
	return float64(h.ValueAtPercentile(percentile)) / float64(time.Millisecond)
}
