package evaluate

import (
	"slices"
	"time"

	"github.com/penstock/penstock/loadgen"
	"github.com/penstock/penstock/wire"
)

// Of wire.StageNames, those of a batch; and the name of what the node does not see.
const (
	stageGather, stageInfer = 2, 3
	stageWay                = "way"
)

// spentTimes are those of many requests: latencies, their batches' times (gather and
// infer), each stage's, and the way's.
type spentTimes struct {
	latencies, batches, way []time.Duration
	of                      [len(wire.StageNames)][]time.Duration
}

// add takes in an ok answer.
func (s *spentTimes) add(answered *sample) {
	latency := answered.latency()
	s.latencies = append(s.latencies, latency)
	s.batches = append(s.batches, answered.stages[stageGather]+answered.stages[stageInfer])
	way := latency
	for i, d := range answered.stages {
		s.of[i] = append(s.of[i], d)
		way -= d
	}
	s.way = append(s.way, way)
}

// sort comes before quantiles are taken.
func (s *spentTimes) sort() {
	slices.Sort(s.latencies)
	slices.Sort(s.batches)
	slices.Sort(s.way)
	for _, of := range s.of {
		slices.Sort(of)
	}
}

// stages has each stage by itself; nothing of no answers.
func (s *spentTimes) stages() map[string]loadgen.StageReport {
	if len(s.latencies) == 0 {
		return nil
	}
	report := func(sorted []time.Duration) loadgen.StageReport {
		return loadgen.StageReport{P50: millis(at(sorted, 0.5)), P99: millis(at(sorted, 0.99))}
	}
	all := map[string]loadgen.StageReport{stageWay: report(s.way)}
	for i, name := range wire.StageNames {
		all[name] = report(s.of[i])
	}
	return all
}
