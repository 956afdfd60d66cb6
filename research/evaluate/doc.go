// Package evaluate measures the figures of the paper's evaluation. GSLICE measured its
// figures on a V100; this package measures them on the GPU of this machine, with every
// way of sharing it in one call.
//
//	Figure (data) ── plan ──> steps: (case, variant, run), interleaved
//	                             │  1 capacity of each model, once
//	                             │  2 one node per step, its traffic, its result
//	                             └> OUT/FIGURE.json after each (Report)
//
// A figure is data (figures.go): cases (a model, or a mix of models with objectives) and
// variants (time slicing, default MPS, fixed percentages, Penstock, ...). A step starts
// one node with one variant's configuration (variant.go), sends one case's traffic
// (traffic.go) and writes the result. Run 1 of all variants comes before run 2 of any
// variant, so that slow changes of the machine affect all variants alike. The variant
// names what differs between two variants of a case. All else is the same: models, batch
// sizes, objectives, rates, seeds, ports and CPUs, and the receivers and client sockets
// per function (intake.go).
//
// Traffic is an open loop (package loadgen) over loopback. This process sends it, and
// keeps to CPUs that the node does not use. Latency counts from the intended send to the
// reply. A miss is any outcome except an ok answer within the objective.
package evaluate
