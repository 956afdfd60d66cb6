package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Fleet is a pool of GPUs that follows one plan.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=fl,categories=penstock
// +kubebuilder:printcolumn:name="GPUs",type=integer,JSONPath=`.status.gpus`
// +kubebuilder:printcolumn:name="Used",type=integer,JSONPath=`.status.usedGPUs`
// +kubebuilder:printcolumn:name="Functions",type=integer,JSONPath=`.status.functions`
// +kubebuilder:printcolumn:name="Segments",type=integer,JSONPath=`.status.segments`
// +kubebuilder:printcolumn:name="Planned",type=string,JSONPath=`.status.conditions[?(@.type=="Planned")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Planned")].reason`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Planned")].message`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.metadata.name.matches('^[a-z]([-a-z0-9]{0,48}[a-z0-9])?$')",message="a name has at most 50 characters, lower case letters, digits and '-', and begins with a letter: labels contain it"
type Fleet struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec FleetSpec `json:"spec"`
	// +optional
	Status FleetStatus `json:"status,omitzero"`
}

// FleetSpec is what a cluster's operator decides about a pool.
//
// +kubebuilder:validation:XValidation:rule="self.damping.downBelow * (100 + self.damping.headroom) * (100 + self.damping.step) < 1000000",message="a plan would shrink as soon as it has grown: choose a lower downBelow, headroom or step",fieldPath=".damping"
// +kubebuilder:validation:XValidation:rule="[self.damping.upAfter, self.damping.downAfter, self.damping.between].all(d, d.matches('^([0-9]{1,9}([.][0-9]{1,9})?(ms|s|m|h))+$') && duration(d) > duration('0s') && duration(d) <= duration('24h'))",message="upAfter, downAfter and between are durations above 0s and up to 24h, such as 10s",fieldPath=".damping"
type FleetSpec struct {
	// NodeSelector has the labels of the fleet's nodes. An older fleet keeps a node that both select.
	//
	// +optional
	// +kubebuilder:validation:MaxProperties=16
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`
	// Driver is the DRA driver that publishes the GPUs.
	//
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:default="gpu.nvidia.com"
	Driver string `json:"driver,omitempty"`
	// Damping is how fast the plan follows observed rates.
	//
	// +optional
	// +kubebuilder:default={}
	Damping Damping `json:"damping,omitzero"`
	// Namespaces are those that the fleet serves. An empty list means all, without limits.
	//
	// +optional
	// +kubebuilder:validation:MaxItems=1000
	// +listType=map
	// +listMapKey=name
	Namespaces []NamespaceLimit `json:"namespaces,omitempty"`
	// Node is what runs on the fleet's GPUs.
	//
	// +required
	Node NodeTemplate `json:"node"`
}

// Damping keeps a plan from following each burst. Failures of GPUs and changes of a spec do not wait for it.
type Damping struct {
	// Headroom is what to plan for above the observed rate, in percent.
	//
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=400
	// +kubebuilder:default=15
	Headroom int32 `json:"headroom,omitempty"`
	// Step is the ratio of neighbouring planned rates, in percent above 100.
	//
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	// +kubebuilder:default=10
	Step int32 `json:"step,omitempty"`
	// UpAfter is how long a rate must be above the planned one before the plan grows.
	//
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:default="10s"
	UpAfter metav1.Duration `json:"upAfter,omitzero"`
	// DownAfter is how long a rate must be below DownBelow before the plan shrinks.
	//
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:default="10m"
	DownAfter metav1.Duration `json:"downAfter,omitzero"`
	// DownBelow is the rate below which the plan shrinks, in percent of the planned rate.
	//
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=99
	// +kubebuilder:default=70
	DownBelow int32 `json:"downBelow,omitempty"`
	// Between is the min time from one change of the plan to the next.
	//
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:default="30s"
	Between metav1.Duration `json:"between,omitzero"`
}

// NamespaceLimit is a namespace that a fleet serves.
type NamespaceLimit struct {
	// Name is the namespace's name.
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`
	// MaxGPCs is the max size of all the namespace's segments together, in GPCs. Without it there is no
	// limit.
	//
	// +optional
	// +kubebuilder:validation:Minimum=1
	MaxGPCs int32 `json:"maxGPCs,omitempty"`
}

// NodeTemplate is what pods on the fleet's GPUs run.
type NodeTemplate struct {
	// Image has penstock (cluster/image).
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^\S+$`
	Image string `json:"image"`
	// Models is a volume with models. The node reads it only. Without one, the image has the models.
	//
	// +optional
	Models *ModelVolume `json:"models,omitempty"`
	// Resources are those of the container, without the GPU.
	//
	// +optional
	Resources corev1.ResourceRequirements `json:"resources,omitzero"`
}

// ModelVolume is a folder of a node, or a claim of each namespace with functions. It has exactly one of them.
//
// +kubebuilder:validation:XValidation:rule="has(self.claimName) != has(self.hostPath)",message="a model volume has either claimName or hostPath"
type ModelVolume struct {
	// ClaimName is a PersistentVolumeClaim of this name in the namespace of the function.
	//
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	ClaimName string `json:"claimName,omitempty"`
	// HostPath is a folder on each of the fleet's nodes.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="self.matches('^/[^/]') && !self.split('/').exists(p, p == '..')",message="hostPath is an absolute path without '..', and not '/'"
	HostPath string `json:"hostPath,omitempty"`
}

// FleetStatus is what the operator observed and planned.
type FleetStatus struct {
	// ObservedGeneration is the generation of the spec that this status describes.
	//
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// GPUs is the number of GPUs that can serve.
	//
	// +optional
	GPUs int32 `json:"gpus"`
	// UsedGPUs is the number of GPUs with segments.
	//
	// +optional
	UsedGPUs int32 `json:"usedGPUs"`
	// Segments is the number of segments in the plan.
	//
	// +optional
	Segments int32 `json:"segments"`
	// Functions is the number of functions in the plan.
	//
	// +optional
	Functions int32 `json:"functions"`
	// Conditions are Planned and Overlap.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// FleetList is a list of Fleets.
//
// +kubebuilder:object:root=true
type FleetList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Fleet `json:"items"`
}
