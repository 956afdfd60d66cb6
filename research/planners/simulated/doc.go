// Package simulated is the policy "penstock-sim". It plans like "penstock"
// (planner/pack), but it learns the reserve for queueing from the replay
// (planner/replay). "penstock" reserves half of every objective instead.
//
// Half is too much for most services, because their full batches are short
// compared with the objective. It is too little for a few: those whose batch takes
// nearly half of the objective, and those whose segments run near their
// throughput. For each service, the policy learns two values:
//
//   - level: the latency bound of a batch, as a fraction of the objective (levels);
//   - headroom: the fraction of the rate that the segments must reach beyond the rate
//     (headrooms). Without it, queues at full load grow under any bound.
//
// A plan is made in four steps:
//
//  1. Each service alone: find the cheapest pair of level and headroom that passes.
//     The cost is the part of a GPU that the plan takes. A pair passes if the upper
//     end of the 95 % interval of the replay's violations is at most Threshold. A
//     looser bound and less headroom never cost more. The policy therefore tries
//     the pairs in the order of cost and takes the first that passes.
//  2. All services together: pack plans them with their pairs. It may cut a service
//     otherwise than alone. A pair that passed by luck must not pass again, so the
//     plan is replayed with other random numbers (the next seed).
//  3. Each service that violates its objective takes its next pair of step 1, and
//     step 2 is repeated. This ends if no service violates, or if a service has no
//     pair left (Unmet). It always ends, because the number of pairs is finite.
//  4. The plan with half of each objective is replayed, too. It is preferred if it
//     passes and takes fewer GPUs, or the same GPUs and no more GPCs.
//
// Learning and replays take about 0.1 s of one CPU per service. The policy is therefore too
// slow for thousands of services. It is deterministic.
package simulated
