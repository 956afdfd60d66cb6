// Package v1alpha1 has the objects of Penstock on Kubernetes, in the API group penstock.io.
//
// People write three of them:
//
//   - a [Function] asks for a model at a rate, within a latency objective
//   - a [Profile] says how fast a model is on a model of GPU
//   - a [Fleet] says which nodes' GPUs serve functions, and how fast plans follow rates
//
// The operator writes the other two:
//
//   - a [GPUPlan] is what one GPU runs. All plans together are the fleet's plan. There is one object per GPU, so that
//     none grows with the fleet, and an agent reads only what concerns it.
//   - a [PlanChange] is a list of steps from one plan to the next. It says how far the operator came, so that another
//     operator can continue.
//
// Rates are requests per second. A [resource.Quantity] holds them, because an object of Kubernetes has no floating-point
// numbers. [Rate] makes one.
//
// CEL rules in the types' markers refuse bad objects at admission. A check that needs other objects gives a condition instead
// (conditions.go).
//
// +kubebuilder:object:generate=true
// +groupName=penstock.io
package v1alpha1

//go:generate go tool controller-gen object crd paths=. output:crd:dir=../../chart/crds
