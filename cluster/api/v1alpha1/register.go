package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the API group and version of this package's types.
var GroupVersion = schema.GroupVersion{Group: "penstock.io", Version: "v1alpha1"}

var builder = runtime.NewSchemeBuilder(func(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion,
		&Function{}, &FunctionList{},
		&Profile{}, &ProfileList{},
		&Fleet{}, &FleetList{},
		&GPUPlan{}, &GPUPlanList{},
		&PlanChange{}, &PlanChangeList{},
	)
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
})

// AddToScheme registers this package's types, so that clients can read and write them.
var AddToScheme = builder.AddToScheme
