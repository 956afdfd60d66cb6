package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// GPUPlan is what one GPU runs. The change controller writes the spec, one step at a time. The GPU controller makes it true
// and writes the status.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,path=gpuplans,shortName=gp,categories=penstock
// +kubebuilder:printcolumn:name="Fleet",type=string,JSONPath=`.spec.fleet`
// +kubebuilder:printcolumn:name="Node",type=string,JSONPath=`.spec.node`
// +kubebuilder:printcolumn:name="GPU",type=string,JSONPath=`.spec.gpu`
// +kubebuilder:printcolumn:name="Table",type=string,JSONPath=`.spec.table`
// +kubebuilder:printcolumn:name="Functions",type=string,JSONPath=`.spec.segments[*].function`
// +kubebuilder:printcolumn:name="GPCs",type=string,JSONPath=`.spec.segments[*].gpcs`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.segments[*].ready`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.segments[*].message`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type GPUPlan struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec GPUPlanSpec `json:"spec"`
	// +optional
	Status GPUPlanStatus `json:"status,omitzero"`
}

// GPUPlanSpec is the plan of one GPU.
//
// +kubebuilder:validation:XValidation:rule="self.fleet == oldSelf.fleet && self.node == oldSelf.node && self.pool == oldSelf.pool && self.gpu == oldSelf.gpu && self.table == oldSelf.table && self.number == oldSelf.number",message="a GPUPlan stays with its fleet and GPU"
type GPUPlanSpec struct {
	// Fleet is the name of the GPU's Fleet.
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Fleet string `json:"fleet"`
	Place `json:",inline"`
	// Segments are the parts of the GPU.
	//
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +listType=map
	// +listMapKey=name
	Segments []Segment `json:"segments,omitempty"`
}

// Place says which GPU it is.
type Place struct {
	// Node is the name of the GPU's node.
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Node string `json:"node"`
	// Pool is the ResourceSlice pool that has the GPU's devices.
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Pool string `json:"pool"`
	// GPU is the GPU's UUID.
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	GPU string `json:"gpu"`
	// Table is the name of the GPU's placement table (plan.Lookup).
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	Table string `json:"table"`
	// Number is the GPU's number in the fleet's plan. It stays the same as long as the object exists.
	//
	// +required
	// +kubebuilder:validation:Minimum=0
	Number int32 `json:"number"`
}

// Segment is a part of a GPU that serves one function. It is a MIG instance, or an MPS share of a GPU without MIG.
type Segment struct {
	// Name is FUNCTION-HASH. It is unique in the cluster and never used again: a new segment has a new name. The segment's
	// claim has the same name, and so has its pod on a GPU with MIG.
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`
	// Namespace is the Function's namespace.
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace"`
	// Function is the Function's name.
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=50
	Function string `json:"function"`
	// Model is the Function's model.
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	Model string `json:"model"`
	// SLO is the Function's latency objective.
	//
	// +required
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	SLO metav1.Duration `json:"slo"`
	// Port is the Function's port.
	//
	// +required
	// +kubebuilder:validation:Minimum=1024
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port"`
	// Device is the name of the DRA device in the pool: a MIG instance or a whole GPU.
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	Device string `json:"device"`
	// Slot is the first slot that the segment covers in the placement table.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	Slot int32 `json:"slot"`
	// GPCs is the segment's size, in the table's compute slices or steps of multiprocessors.
	//
	// +required
	// +kubebuilder:validation:Minimum=1
	GPCs int32 `json:"gpcs"`
	// SharePercent is the segment's MPS share of a GPU without MIG.
	//
	// +optional
	SharePercent *resource.Quantity `json:"sharePercent,omitempty"`
	// Processes is the number of the segment's processes.
	//
	// +required
	// +kubebuilder:validation:Minimum=1
	Processes int32 `json:"processes"`
	// Batch is the max number of requests per batch.
	//
	// +required
	// +kubebuilder:validation:Minimum=1
	Batch int32 `json:"batch"`
	// Throughput is the rate that the segment can serve within the objective.
	//
	// +required
	Throughput resource.Quantity `json:"throughput"`
	// Draining means that clients leave the segment. It serves until they have left.
	//
	// +optional
	Draining bool `json:"draining,omitempty"`
}

// GPUPlanStatus is what runs on the GPU.
type GPUPlanStatus struct {
	// ObservedGeneration is the generation of the spec that this status describes.
	//
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Segments are the segments that have a pod.
	//
	// +optional
	// +kubebuilder:validation:MaxItems=128
	// +listType=map
	// +listMapKey=name
	Segments []SegmentStatus `json:"segments,omitempty"`
}

// SegmentStatus is how a segment does.
type SegmentStatus struct {
	// Name is the segment's name.
	//
	// +required
	Name string `json:"name"`
	// Pod is the name of the pod that serves the segment, in the segment's namespace.
	//
	// +optional
	Pod string `json:"pod,omitempty"`
	// Address is the pod's IP address.
	//
	// +optional
	Address string `json:"address,omitempty"`
	// Ready means that the segment serves.
	//
	// +optional
	Ready bool `json:"ready"`
	// Drained means that clients have left the segment and it has sent all answers.
	//
	// +optional
	Drained bool `json:"drained,omitempty"`
	// Message says why the segment is not ready.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
	// Peers are other segments of the function that serve, on other nodes. The node sends clients there when the segment
	// drains or is overloaded.
	//
	// +optional
	// +kubebuilder:validation:MaxItems=16
	// +listType=atomic
	Peers []Peer `json:"peers,omitempty"`
}

// Peer is another segment of the same function.
type Peer struct {
	// Address is the IP address and port of the segment's function.
	//
	// +required
	Address string `json:"address"`
	// Weight is the peer's throughput, so that clients spread over nodes as the plan says.
	//
	// +required
	Weight resource.Quantity `json:"weight"`
}

// GPUPlanList is a list of GPUPlans.
//
// +kubebuilder:object:root=true
type GPUPlanList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []GPUPlan `json:"items"`
}
