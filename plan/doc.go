// Package plan decides which GPUs, cut into which segments, serve a set of
// services at their rates and latency objectives (ParvaGPU, sections III and
// IV). The policies are in subfolders.
//
// The steps of a plan:
//
//  1. A table (GPU, from gpus.json) describes how a model of GPU can be cut.
//  2. A profile (Profile, from the files of models/profile) has the measured throughput
//     and latency of a model on each segment size: its points.
//  3. A list of services (Service, from a CSV file) describes the demand.
//  4. The three make a Problem; a Policy turns it into a Plan.
//  5. planner/verify checks the plan against the problem, independently of the policies.
//
// The package is pure: it has no clock and opens no files. Its readers read
// what the caller has opened. Everything is deterministic: the same problem
// gives the same plan, byte for byte. Values are plain data without locks.
// Several goroutines may read a Problem, but it must not change while a policy
// plans.
//
// Units: rates and throughputs are requests per second, latencies milliseconds
// per batch, memory MiB. Sizes are GPCs on a GPU with MIG. On a GPU without
// MIG, they are steps of multiprocessors (see GPU).
package plan
