package v1alpha1

import (
	"context"
	"os"
	"regexp"
	"strings"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	crdvalidation "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"sigs.k8s.io/yaml"
)

// admission does with an object what an API server does: defaults, schema, CEL rules.
type admission struct {
	structural *schema.Structural
	schema     validation.SchemaValidator
	rules      *cel.Validator
}

// newAdmission reads a custom resource definition, and checks it as an API server does. That includes the cost of its rules.
func newAdmission(t *testing.T, plural string) admission {
	t.Helper()
	data, err := os.ReadFile("../../chart/crds/penstock.io_" + plural + ".yaml")
	ok(t, err)
	var v1 apiextensionsv1.CustomResourceDefinition
	ok(t, yaml.UnmarshalStrict(data, &v1))
	apiextensionsv1.SetDefaults_CustomResourceDefinition(&v1)
	apiextensionsv1.SetDefaults_CustomResourceDefinitionSpec(&v1.Spec)
	v1.Status.StoredVersions = []string{GroupVersion.Version}
	var crd apiextensions.CustomResourceDefinition
	ok(t, apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(&v1, &crd, nil))
	ok(t, crdvalidation.ValidateCustomResourceDefinition(t.Context(), &crd).ToAggregate())

	props := crd.Spec.Validation.OpenAPIV3Schema
	structural, err := schema.NewStructural(props)
	ok(t, err)
	validator, _, err := validation.NewSchemaValidator(props)
	ok(t, err)
	return admission{structural, validator, cel.NewValidator(structural, true, celconfig.PerCallLimit)}
}

// admit returns what is wrong with an object. old is nil for a new one. The object gets its defaults.
func (a admission) admit(object, old map[string]any) error {
	pruning.Prune(object, a.structural, true)
	defaulting.Default(object, a.structural)

	var errs field.ErrorList
	if old == nil {
		errs = validation.ValidateCustomResource(nil, object, a.schema)
	} else {
		errs = validation.ValidateCustomResourceUpdate(nil, object, old, a.schema)
	}
	for _, err := range errs {
		switch err.Type {
		case field.ErrorTypeNotSupported, field.ErrorTypeRequired, field.ErrorTypeTooLong, field.ErrorTypeTooMany, field.ErrorTypeTypeInvalid:
			return errs.ToAggregate() // an API server evaluates no rules then
		}
	}
	// A nil interface, not a nil map, means that there is no old object.
	var before any
	if old != nil {
		before = old
	}
	more, _ := a.rules.Validate(context.Background(), nil, a.structural, object, before, celconfig.RuntimeCELCostBudget)
	return append(errs, more...).ToAggregate()
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func parse(t *testing.T, text string) map[string]any {
	t.Helper()
	var object map[string]any
	ok(t, yaml.Unmarshal([]byte(text), &object))
	return runtime.DeepCopyJSON(integers(object).(map[string]any))
}

// integers makes int64 of whole numbers, as decoders of Kubernetes do.
func integers(value any) any {
	switch v := value.(type) {
	case map[string]any:
		for key := range v {
			v[key] = integers(v[key])
		}
	case []any:
		for i := range v {
			v[i] = integers(v[i])
		}
	case float64:
		if v == float64(int64(v)) {
			return int64(v)
		}
	}
	return value
}

const (
	goodFunction = `
metadata: {name: faces, namespace: shop}
spec: {model: face, slo: 25ms, port: 5001, rate: {min: 100, max: 2k}}`

	goodProfile = `
metadata: {name: face-a100}
spec: {model: face, gpu: a100-80, csv: "Mig instance,Batch size"}`

	goodFleet = `
metadata: {name: pool}
spec: {node: {image: penstock:1}}`

	goodPlan = `
metadata: {name: gpu-1}
spec:
  {fleet: pool, node: n1, pool: n1, gpu: GPU-1, table: a100-80, number: 0, segments: [{name: faces-1, namespace: shop, function: faces, model: face,
   slo: 25ms, port: 5001, device: gpu-0-mig-19-0-1, gpcs: 1, slot: 0, processes: 1, batch: 4, throughput: 120}]}`

	goodChange = `
metadata: {name: pool-1}
spec:
  {fleet: pool, number: 1, steps: [{op: create, gpuPlan: gpu-1, place: {node: n1, pool: n1, gpu: GPU-1, table: a100-80, number: 0}, segment: {name: faces-1,
   namespace: shop, function: faces, model: face, slo: 25ms, port: 5001, device: d, gpcs: 1, processes: 1, batch: 4, throughput: 120}}]}`
)

// TestAdmission changes one field of a good object.
func TestAdmission(t *testing.T) {
	const (
		name     = "a name has at most 50 characters"
		rate     = "a rate is above 0 and at most 1e9 requests per second, such as 250 or '0.5'"
		oneRate  = "a rate has either fixed, or both min and max"
		slo      = "an objective is a duration from 1us to 1h, such as 25ms"
		damping  = "upAfter, downAfter and between are durations above 0s and up to 24h"
		shrink   = "a plan would shrink as soon as it has grown"
		volume   = "a model volume has either claimName or hostPath"
		hostPath = "hostPath is an absolute path without '..', and not '/'"
	)
	kinds := []struct {
		plural, good string
		tests        []struct{ path, value, want string } // "": admitted
	}{
		{"functions", goodFunction, []struct{ path, value, want string }{
			{"metadata.name", strings.Repeat("a", 50), ""},
			{"metadata.name", strings.Repeat("a", 51), name},
			{"metadata.name", "a.b", name},
			{"metadata.name", "1a", name},
			{"spec.model", "face_v2.1", ""},
			{"spec.model", "''", "spec.model"},
			{"spec.model", "../face", "spec.model"},
			{"spec.model", strings.Repeat("m", 65), "may not be more than 64"},
			{"spec.model", "null", "must be of type string"},
			{"spec.slo", "1us", ""},
			{"spec.slo", "1µs", ""},
			{"spec.slo", "1m30.5s", ""},
			{"spec.slo", "0s", slo},
			{"spec.slo", "-5ms", slo},
			{"spec.slo", "1ns", slo},
			{"spec.slo", "2h", slo},
			{"spec.slo", "1 day", slo},
			{"spec.slo", "999999999h999999999h", slo},
			{"spec.slo", "NaN", slo},
			{"spec.slo", "25", "must be of type string"},
			{"spec.port", "1024", ""},
			{"spec.port", "65535", ""},
			{"spec.port", "0", "spec.port"},
			{"spec.port", "-1", "spec.port"},
			{"spec.port", "1023", "should be greater than or equal to 1024"},
			{"spec.port", "65536", "should be less than or equal to 65535"},
			{"spec.port", "5001.5", "must be of type integer"},
			{"spec.priority", "-5", ""},
			{"spec.priority", "3000000000", "spec.priority"},
			{"spec.rate", "{fixed: 250}", ""},
			{"spec.rate", "{fixed: '0.5'}", ""},
			{"spec.rate", "{fixed: 100u}", ""},
			{"spec.rate", "{fixed: 1e9}", ""},
			{"spec.rate", "{fixed: '1e9'}", ""},
			{"spec.rate", "{fixed: 1G}", ""},
			{"spec.rate", "{min: 5, max: 5}", ""},
			{"spec.rate", "{}", oneRate},
			{"spec.rate", "{min: 5}", oneRate},
			{"spec.rate", "{max: 5}", oneRate},
			{"spec.rate", "{fixed: 5, min: 5}", oneRate},
			{"spec.rate", "{fixed: 5, min: 5, max: 5}", oneRate},
			{"spec.rate", "{fixed: 0}", rate},
			{"spec.rate", "{fixed: '0'}", rate},
			{"spec.rate", "{fixed: -1}", rate},
			{"spec.rate", "{fixed: 1000000001}", rate},
			{"spec.rate", "{fixed: '1e300'}", rate},
			{"spec.rate", "{fixed: 1e300}", "must be of type integer,string"},
			{"spec.rate", "{fixed: 0.5}", "must be of type integer,string"},
			{"spec.rate", "{fixed: NaN}", rate},
			{"spec.rate", "{fixed: Inf}", rate},
			{"spec.rate", "{fixed: '1e1.5'}", rate},
			{"spec.rate", "{fixed: 5Gi}", rate},
			{"spec.rate", "{fixed: fast}", rate},
			{"spec.rate", "{min: 0, max: 5}", rate},
			{"spec.rate", "{min: 5, max: '1e-2000000000'}", rate}, // Quantity takes minutes to read it
			{"spec.rate", "{min: 6, max: 5}", "min is above max"},
			{"spec.rate", "{min: 1k, max: '999.5'}", "min is above max"},
		}},
		{"profiles", goodProfile, []struct{ path, value, want string }{
			{"spec.csv", strings.Repeat("x", 102400), ""},
			{"spec.csv", strings.Repeat("x", 102401), "may not be more than 102400"},
			{"spec.csv", "''", "spec.csv"},
			{"spec.gpu", "''", "spec.gpu"},
			{"spec.model", "''", "spec.model"},
		}},
		{"fleets", goodFleet, []struct{ path, value, want string }{
			{"metadata.name", strings.Repeat("a", 51), name},
			{"spec.driver", strings.Repeat("d", 64), "may not be more than 63"},
			{"spec.nodeSelector", "{gpu: a100}", ""},
			{"spec.nodeSelector", "{gpu: 5}", "must be of type string"},
			{"spec.damping", "{headroom: 50, step: 20, downBelow: 55}", ""},
			{"spec.damping", "{headroom: 50, step: 20, downBelow: 56}", shrink},
			{"spec.damping", "{downBelow: 80}", shrink},
			{"spec.damping", "{headroom: 0}", "spec.damping.headroom"},
			{"spec.damping", "{step: -1}", "spec.damping.step"},
			{"spec.damping", "{upAfter: 0s}", damping},
			{"spec.damping", "{downAfter: -1m}", damping},
			{"spec.damping", "{between: 25h}", damping},
			{"spec.damping", "{between: soon}", damping},
			{"spec.namespaces", "[{name: shop}, {name: lab, maxGPCs: 7}]", ""},
			{"spec.namespaces", "[{name: shop, maxGPCs: 0}]", "spec.namespaces[0].maxGPCs"},
			{"spec.node", "{}", "spec.node.image: Required"},
			{"spec.node.image", "'a b'", "spec.node.image"},
			{"spec.node.models", "{claimName: models}", ""},
			{"spec.node.models", "{hostPath: /srv/models}", ""},
			{"spec.node.models", "{}", volume},
			{"spec.node.models", "{claimName: models, hostPath: /srv/models}", volume},
			{"spec.node.models", "{hostPath: /}", hostPath},
			{"spec.node.models", "{hostPath: models}", hostPath},
			{"spec.node.models", "{hostPath: /srv/../etc}", hostPath},
		}},
		{"gpuplans", goodPlan, []struct{ path, value, want string }{
			{"spec.number", "-1", "spec.number"},
			{"spec.segments", "[]", ""},
		}},
		{"planchanges", goodChange, []struct{ path, value, want string }{
			{"spec.steps", "[]", "should have at least 1 items"},
			{"spec.number", "0", "spec.number"},
			{"spec.more", "true", ""},
			{"spec.more", "false", "spec.more"},
			{"status.phase", "Running", ""},
			{"status.phase", "Lost", `supported values: "Pending"`},
		}},
	}
	for _, kind := range kinds {
		t.Run(kind.plural, func(t *testing.T) {
			admission := newAdmission(t, kind.plural)
			ok(t, admission.admit(parse(t, kind.good), nil))
			for _, test := range kind.tests {
				object := parse(t, kind.good)
				ok(t, unstructured.SetNestedField(object, parse(t, "value: "+test.value)["value"], strings.Split(test.path, ".")...))
				err := admission.admit(object, nil)
				if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
					t.Errorf("%s = %.60s: got error %v, want %q", test.path, test.value, err, test.want)
				}
			}
		})
	}
}

// TestUpdate changes one field of an object that exists.
func TestUpdate(t *testing.T) {
	tests := []struct{ plural, good, path, value, want string }{
		{"functions", goodFunction, "spec.rate", "{fixed: 5}", ""},
		{"functions", goodFunction, "spec.rate", "{fixed: 0}", "a rate is above 0"},
		{"gpuplans", goodPlan, "spec.segments", "[]", ""},
		{"gpuplans", goodPlan, "spec.gpu", "GPU-2", "a GPUPlan stays with its fleet and GPU"},
		{"gpuplans", goodPlan, "spec.number", "1", "a GPUPlan stays with its fleet and GPU"},
		{"planchanges", goodChange, "status.done", "1", ""},
		{"planchanges", goodChange, "spec.number", "2", "a PlanChange does not change: make a new one"},
		{"planchanges", goodChange, "spec.more", "true", "a PlanChange does not change: make a new one"},
	}
	for _, test := range tests {
		t.Run(test.plural+" "+test.path, func(t *testing.T) {
			admission := newAdmission(t, test.plural)
			old, object := parse(t, test.good), parse(t, test.good)
			ok(t, unstructured.SetNestedField(object, parse(t, "value: "+test.value)["value"], strings.Split(test.path, ".")...))
			err := admission.admit(object, old)
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("got error %v, want %q", err, test.want)
			}
		})
	}
}

// TestDefaults reads an admitted object as the operator does.
func TestDefaults(t *testing.T) {
	object := parse(t, goodFleet)
	ok(t, newAdmission(t, "fleets").admit(object, nil))
	var fleet Fleet
	ok(t, runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(object, &fleet, true))
	got, err := yaml.Marshal(fleet.Spec)
	ok(t, err)
	want := `damping:
  between: 30s
  downAfter: 10m0s
  downBelow: 70
  headroom: 15
  step: 10
  upAfter: 10s
driver: gpu.nvidia.com
node:
  image: penstock:1
`
	if string(got) != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
}

// TestPage admits the objects of this package in docs/kubernetes.md.
func TestPage(t *testing.T) {
	page, err := os.ReadFile("../../../docs/kubernetes.md")
	ok(t, err)
	plurals := map[string]string{"Fleet": "fleets", "Function": "functions"}
	for _, block := range regexp.MustCompile("(?ms)^ *```yaml\n(.*?)^ *```").FindAllStringSubmatch(string(page), -1) {
		if !strings.Contains(block[1], "apiVersion: "+GroupVersion.String()) {
			continue
		}
		object := parse(t, block[1])
		kind, _ := object["kind"].(string)
		plural, found := plurals[kind]
		if !found {
			t.Errorf("the page has a second or unknown object %q:\n%s", kind, block[1])
			continue
		}
		delete(plurals, kind)
		before := runtime.DeepCopyJSON(object)
		ok(t, newAdmission(t, plural).admit(object, nil))
		for key := range before["spec"].(map[string]any) {
			if _, kept := object["spec"].(map[string]any)[key]; !kept {
				t.Errorf("%s of the page has an unknown key %s", kind, key)
			}
		}
	}
	if len(plurals) > 0 {
		t.Errorf("the page has no example of %v", plurals)
	}
}
