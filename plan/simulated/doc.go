// Package simulated is the policy "penstock-sim": as "penstock" (plan/pack), but
// what it leaves for queueing is learnt from the replay (plan/replay) instead of
// being half of every objective.
//
// Half is too much for most services, whose batches are short beside their
// objective once they fill, and too little for a few: where one batch takes nearly
// half, or segments run near their throughput. Two things can be changed, and the
// policy learns both, a service at a time:
//
//   - the latency bound of a batch, as a part of the objective (levels), and
//   - headroom: the part of the rate that the segments must reach beyond it
//     (headrooms), since no bound keeps a queue short at full load.
//
// The way of a plan:
//
//  1. Each service alone: of all pairs of level and headroom, the one whose plan
//     takes the least of a GPU and whose replay has violations of at most
//     Threshold, at the upper end of its 95 % interval. A looser bound never costs
//     more and neither does less headroom, so the pairs are tried from the
//     cheapest on, and the first that does is taken.
//  2. All services together: pack plans them with what was learnt. It may cut a
//     service otherwise than alone, and what has passed by luck should not pass
//     again: so the plan is replayed, with other chance (the next seed).
//  3. A service that then violates is not done with its pair: it takes the next
//     one of step 1, and step 2 comes again. It ends when no service violates, or
//     when one has no pair left (Unmet). Pairs are finite, so it ends.
//  4. The plan with half of each objective is replayed too, and taken if it does
//     with no more GPUs, and on as many GPUs with no more GPCs.
//
// The threshold holds for the replay's routing and rule (replay.ByLoad and
// replay.Deadline where Policy.Replay does not say otherwise). Learning and the
// replays take about a tenth of a second of one CPU a service, so this is no
// policy for thousands of services in a hurry. It is deterministic.
package simulated
