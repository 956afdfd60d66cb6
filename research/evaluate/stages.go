package evaluate

import (
	"slices"
	"time"

	"github.com/penstock/penstock/loadgen"
	"github.com/penstock/penstock/wire"
)

// The stages of a batch among wire.StageNames, and the name of the part that the
// node does not see.
const (
	stageGather, stageInfer = 2, 3
	stageWay                = "way"
)

// spentTimes collects times of many requests: their latencies, the times of their
// batches (gather and infer), of each stage, and outside the node ("way").
type spentTimes struct {
	latencies, batches, way []time.Duration
	byStage                 [len(wire.StageNames)][]time.Duration
}

// add adds the times of an ok answer.
func (s *spentTimes) add(answered *sample) {
	latency := answered.latency()
	s.latencies = append(s.latencies, latency)
	s.batches = append(s.batches, answered.stages[stageGather]+answered.stages[stageInfer])
	way := latency
	for i, d := range answered.stages {
		s.byStage[i] = append(s.byStage[i], d)
		way -= d
	}
	s.way = append(s.way, way)
}

// sort must be called before quantiles are taken.
func (s *spentTimes) sort() {
	slices.Sort(s.latencies)
	slices.Sort(s.batches)
	slices.Sort(s.way)
	for _, times := range s.byStage {
		slices.Sort(times)
	}
}

// stages returns a report per stage, or nil if there were no answers.
func (s *spentTimes) stages() map[string]loadgen.StageReport {
	if len(s.latencies) == 0 {
		return nil
	}
	report := func(sorted []time.Duration) loadgen.StageReport {
		return loadgen.StageReport{P50: millis(at(sorted, 0.5)), P99: millis(at(sorted, 0.99))}
	}
	all := map[string]loadgen.StageReport{stageWay: report(s.way)}
	for i, name := range wire.StageNames {
		all[name] = report(s.byStage[i])
	}
	return all
}
