package control

import (
	"context"
	"time"
)

// SamplePath returns a Sample of the node as JSON.
const SamplePath = "/sample"

// Sample is what a page needs of a node: its status and counters. The counters count since the
// function was added; a page shows the differences between two samples.
type Sample struct {
	At     time.Time `json:"at"`
	Status Status    `json:"status"`
	// BoundsMillis are the upper bounds of the latency buckets. One more bucket is above the
	// last.
	BoundsMillis []float64 `json:"bounds_ms"`
	// Functions are in the order of Status.Functions.
	Functions []FunctionSample `json:"functions"`
}

// FunctionSample has the counters of one function.
type FunctionSample struct {
	Name string `json:"name"`
	// Latency is the number of answered requests by bucket, from the first packet's arrival to
	// the answer.
	Latency []uint64 `json:"latency"`
	// Stages are the times of the requests that ran, in the order of StageNames.
	Stages []StageSample `json:"stages"`
	// Ran is the number of requests that ran, BatchSum the sum of their batches' sizes.
	Ran      uint64  `json:"ran"`
	BatchSum float64 `json:"batch_sum"`
	// Batches is the number of batches of those requests.
	Batches uint64 `json:"batches"`
	// Results is the number of requests by wire.Status.
	Results []uint64 `json:"results"`
	// Outliers are the slowest, late and failed requests of the last 10 to 20 seconds.
	Outliers []Outlier `json:"outliers,omitempty"`
	// Picture is the number of the newest Picture; 0 if there is none.
	Picture uint64 `json:"picture,omitempty"`
}

// StageNames are the stages of a request in the manager and the process, in order.
var StageNames = []string{"socket", "aggregate", "queue", "gather", "infer", "reply", "release"}

// StageSample is the sum of a stage's times and their number.
type StageSample struct {
	Seconds float64 `json:"seconds"`
	Count   uint64  `json:"count"`
}

// Outlier is a request that was slow, late or failed.
type Outlier struct {
	Request uint32 `json:"request"`
	// Status is a wire.Status as text.
	Status string `json:"status"`
	// Began is when the first packet arrived.
	Began time.Time `json:"began"`
	// StagesMicros has a time for each of StageNames. They are 0 for stages that it did not
	// reach.
	StagesMicros []float64 `json:"stages_us"`
	Batch        int       `json:"batch"`
}

// ReadSample asks the manager whose runtime folder is dir.
func ReadSample(ctx context.Context, dir string) (Sample, error) {
	return read[Sample](ctx, dir, SamplePath)
}
