// Package evaluate measures the figures of the paper's evaluation: GSLICE's on its V100,
// ours on the GPU that is there, every way of sharing it within one call.
//
//	Figure (data) ── plan ──> steps: (case, variant, run), interleaved
//	                             │  1 capacity of each model, once
//	                             │  2 one node a step, its traffic, its result
//	                             └> OUT/FIGURE.json after each (Report)
//
// A figure is data (figures.go): cases (a model, or a mix of models with objectives) and
// variants (time slicing, default MPS, fixed percentages, Penstock, ...). A step starts
// one node with one variant's configuration (variant.go), sends one case's traffic
// (traffic.go) and writes what came of it. Run 1 of all variants comes before run 2 of
// any, so that a machine that changes in time changes for all. What differs between two
// variants of a case is named in the variant; all else is the same: models, batch sizes,
// objectives, rates, seeds, ports, CPUs, and how many receivers and client sockets a
// function has (intake.go).
//
// Traffic is an open loop (package loadgen) over loopback, from this process, which keeps
// to CPUs that the node does not use. Latency counts from the intended send to the reply.
// A miss is everything but an ok answer within the objective.
package evaluate
