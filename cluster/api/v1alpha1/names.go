package v1alpha1

import (
	"math"

	"k8s.io/apimachinery/pkg/api/resource"
)

const (
	// FleetLabel is on what serves a fleet: its GPUPlans, PlanChanges, claims and pods. The value is the fleet's name.
	FleetLabel = "penstock.io/fleet"
	// GPUPlanLabel is on claims and pods. The value is the name of their GPUPlan.
	GPUPlanLabel = "penstock.io/gpuplan"
	// SegmentLabel is on claims, and on pods of one segment. The value is the segment's name.
	SegmentLabel = "penstock.io/segment"
	// FunctionLabel is on Services. The value is the name of their Function.
	FunctionLabel = "penstock.io/function"

	// ServingPrefix and a function's name are a pod's label while the pod takes new requests of the function. It is what the
	// function's Service selects. A pod of a GPU without MIG serves several functions, and so has several of these labels.
	ServingPrefix = "functions.penstock.io/"
	// Serving is the value of a ServingPrefix label.
	Serving = "serving"

	// InUseFinalizer keeps a Profile while a Function needs it.
	InUseFinalizer = "penstock.io/in-use"

	// RuntimeVolume is the volume of a functions' pod. The pod's containers see its PrivateFolder, which has the node's runtime
	// folder, NodeFolder. The volume itself belongs to root, and all may write to it. A node does not trust such a folder.
	RuntimeVolume = "runtime"
	PrivateFolder = "private"
	NodeFolder    = "node"

	// PoolTaint is the key of the device taint that keeps others off a fleet's GPUs. The value is the fleet's name.
	PoolTaint = "penstock.io/pool"

	// MaxFunctionName is the max length of a Function's name. The name is part of segment names and of label keys, which
	// have at most 63 characters.
	MaxFunctionName = 50
	// MaxSteps is the max number of steps of a PlanChange, so that none exceeds 100 KB.
	MaxSteps = 200
	// MaxPeers is the max number of peers in the status of a segment.
	MaxPeers = 16
)

// ServingLabel returns the label that a pod has while it takes new requests of a function.
func ServingLabel(function string) string { return ServingPrefix + function }

// Rate returns a rate, rounded to the nearest thousandth of a request per second.
func Rate(perSecond float64) resource.Quantity {
	return *resource.NewMilliQuantity(int64(math.Round(perSecond*1000)), resource.DecimalSI)
}
