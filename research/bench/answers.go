package bench

import (
	"time"

	"github.com/penstock/penstock/client"
)

// latenciesOf returns the latencies of the ok answers.
func latenciesOf(all []Answered) (out []time.Duration) {
	for _, a := range all {
		if a.Status == client.StatusOK {
			out = append(out, time.Duration(a.Latency))
		}
	}
	return out
}

// meanBatch returns the mean size of the batches of the ok answers. It is a mean over
// batches, so a batch of 8 counts once.
func meanBatch(all []Answered) float64 {
	images, batches := 0.0, 0.0
	for _, a := range all {
		if a.Status == client.StatusOK && a.Batch > 0 {
			images++
			batches += 1 / float64(a.Batch)
		}
	}
	if batches == 0 {
		return 0
	}
	return images / batches
}
