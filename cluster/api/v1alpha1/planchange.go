package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// PlanChange is a list of steps that change a fleet's plan. While the operator takes them, each function keeps the throughput
// that it had or shall have, whichever is less (planner/change).
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,path=planchanges,shortName=pch,categories=penstock
// +kubebuilder:printcolumn:name="Fleet",type=string,JSONPath=`.spec.fleet`
// +kubebuilder:printcolumn:name="Number",type=integer,JSONPath=`.spec.number`
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Done",type=integer,JSONPath=`.status.done`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.message`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type PlanChange struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec PlanChangeSpec `json:"spec"`
	// +optional
	Status PlanChangeStatus `json:"status,omitzero"`
}

// PlanChangeSpec is what to change. It does not change itself.
//
// +kubebuilder:validation:XValidation:rule="self.fleet == oldSelf.fleet && self.number == oldSelf.number && size(self.steps) == size(oldSelf.steps) && has(self.more) == has(oldSelf.more)",message="a PlanChange does not change: make a new one"
type PlanChangeSpec struct {
	// Fleet is the name of the Fleet.
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Fleet string `json:"fleet"`
	// Number orders the changes of a fleet.
	//
	// +required
	// +kubebuilder:validation:Minimum=1
	Number int64 `json:"number"`
	// Steps change one segment each, in this order.
	//
	// +required
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=200
	// +listType=atomic
	Steps []Step `json:"steps"`
	// More says that the change with the next number has further steps to the same plan. If there is no such change, the operator
	// stopped before it wrote one, and plans again.
	//
	// +optional
	// +kubebuilder:validation:Enum=true
	More bool `json:"more,omitempty"`
}

// StepOp is what a Step does.
type StepOp string

const (
	// Create starts a segment.
	Create StepOp = "create"
	// Retune changes the batch, processes, port or objective of a segment.
	Retune StepOp = "retune"
	// Destroy drains and ends a segment.
	Destroy StepOp = "destroy"
)

// Step changes one segment.
type Step struct {
	// Op is what to do.
	//
	// +required
	// +kubebuilder:validation:Enum=create;retune;destroy
	Op StepOp `json:"op"`
	// GPUPlan is the name of the GPU's GPUPlan. The first segment of a GPU makes it.
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	GPUPlan string `json:"gpuPlan"`
	// Place says which GPU it is.
	//
	// +required
	Place Place `json:"place"`
	// Segment is the created or destroyed segment, or the new state of a retuned one.
	//
	// +required
	Segment Segment `json:"segment"`
	// Was is the old state of a retuned segment.
	//
	// +optional
	Was *Segment `json:"was,omitempty"`
	// Shadow means that the segment serves only during the change.
	//
	// +optional
	Shadow bool `json:"shadow,omitempty"`
	// Why is a sentence for people.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Why string `json:"why,omitempty"`
}

// Phase is how far a PlanChange came.
type Phase string

const (
	// Pending: an earlier change of the fleet is not finished.
	Pending Phase = "Pending"
	// Running: the operator takes the steps.
	Running Phase = "Running"
	// Done: all steps are in effect.
	Done Phase = "Done"
	// Undoing: a step failed, and the operator undoes those before it.
	Undoing Phase = "Undoing"
	// Failed: a step failed, and those before it are undone.
	Failed Phase = "Failed"
)

// Finished reports whether the operator is done with a change.
func (p Phase) Finished() bool { return p == Done || p == Failed }

// PlanChangeStatus is how far the operator came.
type PlanChangeStatus struct {
	// Done is the number of steps in effect. They are the first ones.
	//
	// +optional
	Done int32 `json:"done"`
	// Phase is empty until the operator has seen the change.
	//
	// +optional
	// +kubebuilder:validation:Enum=Pending;Running;Done;Undoing;Failed
	Phase Phase `json:"phase,omitempty"`
	// Message says what the operator waits for, or which step failed and why.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
	// StartedAt is when the first step began.
	//
	// +optional
	StartedAt *metav1.Time `json:"startedAt,omitempty"`
	// ProgressedAt is when Done or Phase last changed. A step that takes two minutes longer fails the change.
	//
	// +optional
	ProgressedAt *metav1.Time `json:"progressedAt,omitempty"`
	// FinishedAt is when Phase became Done or Failed.
	//
	// +optional
	FinishedAt *metav1.Time `json:"finishedAt,omitempty"`
}

// PlanChangeList is a list of PlanChanges.
//
// +kubebuilder:object:root=true
type PlanChangeList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []PlanChange `json:"items"`
}
