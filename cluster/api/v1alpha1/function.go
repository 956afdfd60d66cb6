package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Function asks for a model at a rate, within a latency objective. It gets a Service of its own name and port, which answers
// requests over UDP (docs/wire.md).
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=fn,categories=penstock
// +kubebuilder:printcolumn:name="Model",type=string,JSONPath=`.spec.model`
// +kubebuilder:printcolumn:name="SLO",type=string,JSONPath=`.spec.slo`
// +kubebuilder:printcolumn:name="Planned",type=string,JSONPath=`.status.plannedRate`
// +kubebuilder:printcolumn:name="Observed",type=string,JSONPath=`.status.observedRate`
// +kubebuilder:printcolumn:name="Assigned",type=string,JSONPath=`.status.assignedRate`
// +kubebuilder:printcolumn:name="Segments",type=integer,JSONPath=`.status.segments`
// +kubebuilder:printcolumn:name="Serving",type=integer,JSONPath=`.status.readySegments`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Plan",type=string,JSONPath=`.status.conditions[?(@.type=="Planned")].reason`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Planned")].message`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.metadata.name.matches('^[a-z]([-a-z0-9]{0,48}[a-z0-9])?$')",message="a name has at most 50 characters, lower case letters, digits and '-', and begins with a letter: a Service and labels contain it"
type Function struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec FunctionSpec `json:"spec"`
	// +optional
	Status FunctionStatus `json:"status,omitzero"`
}

// FunctionSpec is what a Function's owner asks for.
type FunctionSpec struct {
	// Model is the name of a model: that of a Profile, and of a model that the node's image or model volume has.
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9][A-Za-z0-9._-]*$`
	Model string `json:"model"`
	// SLO is the latency objective of a request, from its arrival at the node to the answer.
	//
	// +required
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,9}([.][0-9]{1,9})?(us|µs|ms|s|m|h))+$') && duration(self) >= duration('1us') && duration(self) <= duration('1h')",message="an objective is a duration from 1us to 1h, such as 25ms"
	SLO metav1.Duration `json:"slo"`
	// Rate is how many requests per second to plan for.
	//
	// +required
	Rate RateSpec `json:"rate"`
	// Priority decides which functions are served if the fleet is too small: those with the highest.
	//
	// +optional
	Priority int32 `json:"priority,omitempty"`
	// Port is the UDP port of the function's Service. It is unique in the namespace, because functions share nodes.
	//
	// +required
	// +kubebuilder:validation:Minimum=1024
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port"`
}

// The rules of rates match numbers before they compare them: an API server needs minutes for a quantity such as
// 1e-2000000000.

// RateSpec is a fixed rate, or a range in which the planned rate follows the observed one.
//
// +kubebuilder:validation:XValidation:rule="has(self.fixed) ? !has(self.min) && !has(self.max) : has(self.min) && has(self.max)",message="a rate has either fixed, or both min and max"
// +kubebuilder:validation:XValidation:rule="!has(self.min) || !has(self.max) || !string(self.min).matches('^[0-9.]{1,20}([numkMG]|e[0-9])?$') || !string(self.max).matches('^[0-9.]{1,20}([numkMG]|e[0-9])?$') || !quantity(string(self.min)).isGreaterThan(quantity(string(self.max)))",message="min is above max"
type RateSpec struct {
	// Fixed is the rate to plan for, whatever is observed.
	//
	// +optional
	// +kubebuilder:validation:XValidation:rule="string(self).matches('^[0-9.]{1,20}([numkMG]|e[0-9])?$') && isQuantity(string(self)) && quantity(string(self)).isGreaterThan(quantity('0')) && !quantity(string(self)).isGreaterThan(quantity('1G'))",message="a rate is above 0 and at most 1e9 requests per second, such as 250 or '0.5'"
	Fixed *resource.Quantity `json:"fixed,omitempty"`
	// Min is planned for even if there are no requests.
	//
	// +optional
	// +kubebuilder:validation:XValidation:rule="string(self).matches('^[0-9.]{1,20}([numkMG]|e[0-9])?$') && isQuantity(string(self)) && quantity(string(self)).isGreaterThan(quantity('0')) && !quantity(string(self)).isGreaterThan(quantity('1G'))",message="a rate is above 0 and at most 1e9 requests per second, such as 250 or '0.5'"
	Min *resource.Quantity `json:"min,omitempty"`
	// Max is the most that is planned for.
	//
	// +optional
	// +kubebuilder:validation:XValidation:rule="string(self).matches('^[0-9.]{1,20}([numkMG]|e[0-9])?$') && isQuantity(string(self)) && quantity(string(self)).isGreaterThan(quantity('0')) && !quantity(string(self)).isGreaterThan(quantity('1G'))",message="a rate is above 0 and at most 1e9 requests per second, such as 250 or '0.5'"
	Max *resource.Quantity `json:"max,omitempty"`
}

// FunctionStatus is what the operator observed and planned.
type FunctionStatus struct {
	// ObservedGeneration is the generation of the spec that this status describes.
	//
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// PlannedRate is the rate that the plan was made for, with headroom.
	//
	// +optional
	PlannedRate *resource.Quantity `json:"plannedRate,omitempty"`
	// ObservedRate is the measured rate of requests, including those that nodes refused.
	//
	// +optional
	ObservedRate *resource.Quantity `json:"observedRate,omitempty"`
	// AssignedRate is the throughput of all the function's segments.
	//
	// +optional
	AssignedRate *resource.Quantity `json:"assignedRate,omitempty"`
	// Segments is the number of segments in the plan.
	//
	// +optional
	Segments int32 `json:"segments"`
	// ReadySegments is the number of segments that serve.
	//
	// +optional
	ReadySegments int32 `json:"readySegments"`
	// Conditions are Planned and Ready.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// FunctionList is a list of Functions.
//
// +kubebuilder:object:root=true
type FunctionList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Function `json:"items"`
}
