// Package plan says which GPUs, cut into which segments, serve a set of
// services at their rates and latency objectives (ParvaGPU, sections III and
// IV; the policies live in its subfolders).
//
// The way of a plan:
//
//  1. A table (GPU, from gpus.json) says how a model of GPU may be cut.
//  2. A profile (Profile, from models/profile's files) says what a model reaches
//     on a segment: its points.
//  3. A list of services (Service, from a CSV file) says what is wanted.
//  4. The three make a Problem; a Policy turns it into a Plan.
//  5. plan/verify checks the plan against the problem, knowing nothing of the
//     policies.
//
// The package is pure: it has no clock and opens no files; readers take what
// their caller has opened. Everything in it is deterministic: the same problem
// gives the same plan, byte for byte. Values are plain data without locks; a
// Problem may be read from several goroutines and must not be changed while a
// policy plans.
//
// Units: rates and throughputs are requests a second, latencies milliseconds a
// batch, memory MiB. Sizes are GPCs where a GPU has MIG; where it has not, they
// are steps of multiprocessors (see GPU).
package plan
