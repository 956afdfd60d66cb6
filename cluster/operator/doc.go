// Package operator makes Kubernetes follow the plans of fleets.
//
// Its controllers, in the order in which a change reaches a GPU:
//
//  1. The planning controller compares functions, GPUs and rates with the GPUPlans. It writes a PlanChange if they differ.
//  2. The change controller (change.go) takes the steps of a fleet's oldest PlanChange. A step edits the spec of a GPUPlan,
//     and is in effect when the GPUPlan's status says so.
//  3. The GPU controller (gpu.go) makes a GPUPlan true. It makes a claim and a pod for each segment, and writes the status.
//  4. The function controller (function.go) gives each Function a Service.
//  5. The fleet controller (fleet.go) keeps others off a fleet's GPUs, and prepares the namespaces that the fleet serves.
//
// # One writer per field
//
// The planning controller writes the status of Functions, Fleets and Profiles. The change controller writes the spec of
// GPUPlans and the status of PlanChanges. The GPU controller writes the status of GPUPlans. Thus controllers never disagree.
//
// The labels that put pods into Services have two writers. The GPU controller writes them while the pod's node answers, and
// Silence (silence.go) takes them away while it does not.
//
// # Who owns what
//
// Each object that the operator makes has an owner reference, so that the garbage collector deletes it with its owner:
//
//	Fleet     its GPUPlans, PlanChanges and DeviceTaintRules;
//	          in each namespace with segments a ServiceAccount with its binding, a NetworkPolicy, a PodDisruptionBudget
//	GPUPlan   its ResourceClaims and Pods (a cluster-scoped object may own namespaced ones)
//	Function  its Service
//
// Labels (v1alpha1) are for people and for selectors. The controllers find what they own by its owner reference.
//
// # Writes and reads
//
// The controllers read from the manager's cache, which may be old. Three rules make that safe:
//
//   - Names are derived from the plan. An operator that has forgotten that it made an object fails to make it again.
//   - An update fails if the object has changed since it was read. The controller then starts over.
//   - A write is followed by no other write that relies on it, until the cache shows it.
//
// So an operator may stop after any write, and another one goes on.
package operator
