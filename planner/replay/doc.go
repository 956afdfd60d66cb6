// Package replay sends random requests to a plan and reports how many of them
// are answered within their objective.
//
// A plan reserves half of the objective for queueing (plan.HalfSLO) and runs
// its segments near their throughput. Whether that half is enough is a question
// of queues. The replay answers it with a discrete-event simulation:
//
//  1. Requests of a service arrive in an open loop, by a Poisson process at its
//     rate. No client waits for an answer before it sends again.
//  2. Each request goes to one of the service's segments (router) and waits
//     there, in one queue, first come first served.
//  3. When one of the segment's processes is free, it immediately starts a
//     batch of the waiting requests (pick), never more than the segment's
//     batch.
//  4. The batch takes the profile's time for its size: that of the next larger
//     measured batch size, at the segment's size and number of processes. That
//     time assumes that all processes are busy. With fewer busy processes a
//     batch would be faster, so the replay errs on the slow side.
//  5. A request is a violation if it ends after its objective, or if it is
//     given up because it could no longer meet it.
//
// Services do not affect each other: a segment serves one service, and MIG
// isolates segments. The replay therefore simulates each service separately.
// Its random numbers depend only on the seed and the service's name. On GPUs
// without MIG, segments do disturb each other. The replay only knows what the
// policy wrote about that into a segment's latency (see ladder).
//
// The latencies in ParvaGPU's published profiles are rounded to whole
// milliseconds, which can be half of a short batch. A process in a closed loop
// takes batch × processes / throughput per batch. If that agrees with the
// written latency to half a millisecond, the replay uses it, otherwise the
// written latency.
//
// The package is pure and deterministic: the same plan, profiles and Config
// give the same Report, regardless of the number of CPUs.
package replay
