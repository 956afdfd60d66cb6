// Package change makes a new plan from an old one, and the steps to it, while
// all services are served (ParvaGPU, section III-F).
//
// The paper plans the changed service again, takes its segments out of the
// deployment map and relocates them. All other services stay in place. Shadow
// processes on spare GPUs serve during the reconfiguration. This package does
// the same, but also keeps what it can of the changed service:
//
//  1. From checks the old plan (planner/verify). It separates services that stay
//     (same model, rate and objective) from those that change, are new or are
//     removed. Segments of services that stay keep GPU, slot, size, batch and
//     processes.
//  2. It places the others one after the other (place), around the existing
//     segments. The fewest GPUs come first. A service that needs more
//     throughput then keeps as many of its segments as possible and adds the
//     fewest GPCs. A service whose own segments suffice creates as few segments
//     as possible and drops the excess. Nothing moves only to save GPCs, unless
//     that saves a GPU (cost has the order). If the fleet is too small for
//     that, services that would stay make room (placeAround).
//  3. It orders the steps (steps): create before destroy if there is room, and
//     otherwise a shadow on spare slots. After every step, each service of both
//     plans has at least the throughput of its old rate or of its new one,
//     whichever is less.
//
// A GPU always keeps its number, because --apply uses it. An emptied GPU leaves
// a gap (Plan.IdleGPUs), which the next plan that needs a GPU fills.
//
// The search is exact for one service with at most labelLimit labels, which
// holds for changes of a few dozen GPUs. Several services are placed in turn:
// first those that need less than before, then the others by their need. That
// order is a heuristic. The plan never needs more GPUs than the old one plus,
// for each changed or new service, those that it would need alone.
//
// The package is pure and deterministic.
package change
