// Package change makes a new plan out of an old one, and says how to get there
// while everybody is served (ParvaGPU, section III-F).
//
// The paper plans the changed service anew, takes its segments out of the
// deployment map and relocates them; all other services stay where they are, and
// what must be reconfigured meanwhile runs in shadow processes on spare GPUs. So
// does this package, and it leaves alone what it can of the changed service too:
//
//  1. From checks the old plan (plan/verify), and tells services that stay (same
//     model, rate and objective) from those that change, are new or are removed.
//     Segments of services that stay keep GPU, slot, size, batch and processes.
//  2. The others are placed one after the other (place), beside what lies there.
//     The fewest GPUs come first. Then a service that needs more keeps as many of
//     its segments as it can and takes the fewest GPCs besides; one that its own
//     segments suffice for creates as few as it can and drops what is too much. So
//     nothing moves to save GPCs, unless that saves a GPU (cost has the order).
//     In a fleet that is too small for that, services that would stay make room
//     (placeAround).
//  3. The way there is put into steps (steps): create before destroy wherever
//     there is room, and a shadow on spare slots where there is not. After every
//     step each service that was there and stays there has at least the throughput
//     of its old rate or of its new one, whichever is less.
//
// A GPU keeps its number for good, as --apply goes by it: one that falls empty
// leaves a gap (Plan.IdleGPUs), which the next plan that needs a GPU fills.
//
// The search is exact for one service whose labels are at most labelLimit in
// number, which changes of a few dozen GPUs are. Several services are placed in
// turn, those that need less than before first, then the others by what they
// need; that order is a heuristic. The plan never needs more GPUs than the old
// one and, for each service that changed or is new, those that it would need by
// itself.
//
// The package is pure and deterministic.
package change
