// Package replay feeds a plan with requests that come when they like, and says
// how many of them are answered within their objective.
//
// A plan leaves half of the objective for queueing (plan.HalfSLO) and runs its
// segments near their throughput. Whether that half is enough is a question of
// queues, and the replay answers it by discrete events:
//
//  1. Requests of a service arrive open loop, by a Poisson process at its rate:
//     nobody waits for an answer before asking again.
//  2. Each is sent to one of the service's segments (Routing) and waits there,
//     in one queue, first come first served.
//  3. When one of the segment's processes is free it starts a batch at once of
//     what is there (Rule), never more than the segment's batch.
//  4. The batch takes as long as the profile says for its size: the next
//     measured batch size up, at the segment's size and number of processes, as
//     if all processes were busy. With fewer busy it would be faster, so the
//     replay errs on the slow side.
//  5. A request that ends after its objective, or is given up since it could no
//     longer make it, is a violation.
//
// Services do not meet: a segment serves one service, and MIG keeps segments
// apart. So each service is replayed by itself, from random numbers of its own
// that depend on the seed and the service's name alone. On GPUs without MIG
// segments do disturb each other; the replay knows of that only what the policy
// wrote into a segment's latency (see ladder).
//
// Profiles give latencies in whole milliseconds where ParvaGPU published them,
// which is half of a short batch. A process in a closed loop takes batch ×
// processes / throughput a batch; where that agrees with the written latency to
// half a millisecond, it is the time that the replay uses, otherwise the written
// one.
//
// The package is pure and deterministic: the same plan, profiles and Config
// give the same Report, whatever the number of CPUs.
package replay
