package evaluate

import (
	"slices"
	"time"

	"github.com/penstock/penstock/wire"
)

// The stages of a request: five in the node, and what the node does not see.
const (
	stageAggregate = iota
	stageQueue
	stageGather
	stageInfer
	stageReply
	inNode
)

// stageTimes is how long a request was in each of the node's stages.
type stageTimes [inNode]time.Duration

func stagesOf(r *wire.Result) stageTimes {
	return stageTimes{r.Aggregate, r.Queue, r.Gather, r.Infer, r.Reply}
}

// spentTimes are those of many requests: latencies, their batches' times (gather and
// infer), and each stage's, the way last.
type spentTimes struct {
	latencies, batches []time.Duration
	of                 [inNode + 1][]time.Duration
}

func (s *spentTimes) add(latency time.Duration, in *stageTimes) {
	s.latencies = append(s.latencies, latency)
	s.batches = append(s.batches, in[stageGather]+in[stageInfer])
	way := latency
	for i, d := range in {
		s.of[i] = append(s.of[i], d)
		way -= d
	}
	s.of[inNode] = append(s.of[inNode], way)
}

// sort comes before quantiles are taken.
func (s *spentTimes) sort() {
	slices.Sort(s.latencies)
	slices.Sort(s.batches)
	for _, of := range s.of {
		slices.Sort(of)
	}
}

// stages has a quantile of each stage, by itself.
func (s *spentTimes) stages(q float64) Stages {
	of := func(i int) float64 { return millis(at(s.of[i], q)) }
	return Stages{Aggregate: of(stageAggregate), Queue: of(stageQueue), Gather: of(stageGather), Infer: of(stageInfer), Reply: of(stageReply), Way: of(inNode)}
}
