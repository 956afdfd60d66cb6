package chart

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

const full = `
image: {registry: "registry.test:5000/team", tag: v1, pullPolicy: Always, pullSecrets: [mine]}
replicas: 3
resources: {requests: {cpu: 2, memory: 1Gi}, limits: {memory: 4Gi}}
nodeSelector: {pool: system}
tolerations: [{key: system, operator: Exists}]
affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: gpu, operator: DoesNotExist}]}]}}}
priorityClassName: ""
networkPolicy: {enabled: true}
prometheus: {namespace: monitoring, podLabels: {app.kubernetes.io/name: prometheus}}
admissionPolicy: {enabled: true}
guests: {enabled: true, perGPU: 4, nodeSelector: {gpus: penstock}, tolerations: [{key: nvidia.com/gpu, operator: Exists}]}
serviceMonitor: {enabled: true, interval: 10s, labels: {release: prometheus}}
prometheusRule: {enabled: true, labels: {release: prometheus}}
`

// render returns the chart's objects by kind and name. Those of Kubernetes have their Go type, and no field that the type lacks.
func render(t *testing.T, values string) (map[string]client.Object, error) {
	t.Helper()
	c, err := loader.Load(".")
	ok(t, err)
	var parsed map[string]any
	ok(t, yaml.Unmarshal([]byte(values), &parsed))
	release := common.ReleaseOptions{Name: "mine", Namespace: "penstock-system", Revision: 1, IsInstall: true}
	all, err := util.ToRenderValues(c, parsed, release, nil)
	if err != nil {
		return nil, err
	}
	files, err := engine.Render(c, all)
	ok(t, err)

	objects := map[string]client.Object{}
	decoder := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	for name, text := range files {
		if filepath.Ext(name) != ".yaml" {
			continue
		}
		documents := utilyaml.NewYAMLReader(bufio.NewReader(strings.NewReader(text)))
		for {
			document, err := documents.Read()
			if errors.Is(err, io.EOF) {
				break
			}
			ok(t, err)
			if len(bytes.TrimSpace(document)) == 0 {
				continue
			}
			object, _, err := decoder.Decode(document, nil, nil)
			if runtime.IsNotRegisteredError(err) { // of the Prometheus operator
				other := &unstructured.Unstructured{}
				err = yaml.UnmarshalStrict(document, &other.Object)
				object = other
			}
			if err != nil {
				t.Fatalf("decode object of %s: %v\n%s", name, err, document)
			}
			o := object.(client.Object)
			key := o.GetObjectKind().GroupVersionKind().Kind + "/" + o.GetName()
			if objects[key] != nil {
				t.Errorf("%s: a second %s", name, key)
			}
			objects[key] = o
		}
	}
	return objects, nil
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func get[T client.Object](t *testing.T, objects map[string]client.Object, key string) T {
	t.Helper()
	o, found := objects[key].(T)
	if !found {
		t.Fatalf("rendered no %s: %v", key, slices.Sorted(maps.Keys(objects)))
	}
	return o
}

func TestRender(t *testing.T) {
	always := []string{
		"ClusterRole/penstock-agent", "ClusterRole/penstock-edit", "ClusterRole/penstock-operator", "ClusterRole/penstock-view",
		"ClusterRoleBinding/penstock-operator", "Deployment/penstock-operator", "DeviceClass/segment.penstock.io",
		"NetworkPolicy/penstock-operator", "PodDisruptionBudget/penstock-operator", "Role/penstock-operator",
		"RoleBinding/penstock-operator", "ServiceAccount/penstock-operator",
		"ValidatingAdmissionPolicy/penstock-claims", "ValidatingAdmissionPolicyBinding/penstock-claims",
	}
	monitoring := []string{"PodMonitor/penstock", "PrometheusRule/penstock", "Service/penstock-operator", "ServiceMonitor/penstock-operator"}
	guests := []string{"ClusterRole/penstock-guests", "ClusterRoleBinding/penstock-guests", "DaemonSet/penstock-guests", "DeviceClass/guest.penstock.io",
		"ServiceAccount/penstock-guests"}
	for _, policy := range []string{"penstock-guest-claims", "penstock-guest-pods", "penstock-guest-slices"} {
		guests = append(guests, "ValidatingAdmissionPolicy/"+policy, "ValidatingAdmissionPolicyBinding/"+policy)
	}
	tests := []struct {
		name, values, image string
		replicas            int32
		want                []string
	}{
		{"default", "", "penstock-operator:0.1.0", 2, always},
		{"full", full, "registry.test:5000/team/penstock-operator:v1", 3, slices.Concat(always, monitoring, guests)},
		{"small", "{replicas: 1, networkPolicy: {enabled: false}, admissionPolicy: {enabled: false}}", "penstock-operator:0.1.0", 1, slices.DeleteFunc(slices.Clone(always),
			func(key string) bool {
				return strings.HasPrefix(key, "NetworkPolicy") || strings.HasPrefix(key, "PodDisruptionBudget") || strings.HasPrefix(key, "Validating")
			})},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			objects, err := render(t, test.values)
			ok(t, err)
			if got, want := slices.Sorted(maps.Keys(objects)), slices.Sorted(slices.Values(test.want)); !slices.Equal(got, want) {
				t.Errorf("rendered %v\nwant %v", got, want)
			}
			for key, o := range objects {
				if o.GetLabels()["app.kubernetes.io/instance"] != "mine" {
					t.Errorf("%s has no label of its release: %v", key, o.GetLabels())
				}
			}

			deployment := get[*appsv1.Deployment](t, objects, "Deployment/penstock-operator")
			pod := deployment.Spec.Template
			if *deployment.Spec.Replicas != test.replicas || pod.Spec.Containers[0].Image != test.image {
				t.Errorf("deployment has %d replicas of %s", *deployment.Spec.Replicas, pod.Spec.Containers[0].Image)
			}
			selectors := map[string]*metav1.LabelSelector{"Deployment": deployment.Spec.Selector}
			if budget, ok := objects["PodDisruptionBudget/penstock-operator"].(*policyv1.PodDisruptionBudget); ok {
				selectors["PodDisruptionBudget"] = budget.Spec.Selector
			}
			if policy, ok := objects["NetworkPolicy/penstock-operator"].(*networkingv1.NetworkPolicy); ok {
				selectors["NetworkPolicy"] = &policy.Spec.PodSelector
			}
			if service, ok := objects["Service/penstock-operator"].(*corev1.Service); ok {
				selectors["Service"] = &metav1.LabelSelector{MatchLabels: service.Spec.Selector}
			}
			for kind, selector := range selectors {
				s, err := metav1.LabelSelectorAsSelector(selector)
				ok(t, err)
				if !s.Matches(labels.Set(pod.Labels)) || s.Empty() {
					t.Errorf("%s selects %v, but pods have %v", kind, s, pod.Labels)
				}
			}
		})
	}
}

// TestConfined checks what the restricted Pod Security Standard asks for.
func TestConfined(t *testing.T) {
	objects, err := render(t, "")
	ok(t, err)
	spec := get[*appsv1.Deployment](t, objects, "Deployment/penstock-operator").Spec.Template.Spec
	s := spec.Containers[0].SecurityContext
	if !*spec.SecurityContext.RunAsNonRoot || spec.SecurityContext.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault ||
		*s.AllowPrivilegeEscalation || !*s.ReadOnlyRootFilesystem || !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) {
		t.Errorf("the operator's pod is not confined: %+v, %+v", spec.SecurityContext, s)
	}
}

// TestAgentRole checks that the operator may do all that agents may. Kubernetes lets it bind their role only then.
func TestAgentRole(t *testing.T) {
	objects, err := render(t, "")
	ok(t, err)
	allowed := map[string]bool{}
	for _, rule := range get[*rbacv1.ClusterRole](t, objects, "ClusterRole/penstock-operator").Rules {
		for _, r := range rule.Resources {
			for _, verb := range rule.Verbs {
				allowed[strings.Join(rule.APIGroups, ",")+"/"+r+" "+verb+strings.Join(rule.ResourceNames, ",")] = true
			}
		}
	}
	if !allowed["rbac.authorization.k8s.io/clusterroles bindpenstock-agent"] {
		t.Error("the operator may not bind ClusterRole penstock-agent")
	}
	for rule := range allowed {
		if strings.Contains(rule, "*") {
			t.Errorf("rule with a wildcard: %s", rule)
		}
	}
}

func TestBadValues(t *testing.T) {
	tests := []struct{ name, values, want string }{
		{"unknown", "{replica: 2}", "additional properties 'replica' not allowed"},
		{"unknown below", "{image: {name: x}}", "additional properties 'name' not allowed"},
		{"no replica", "{replicas: 0}", "at '/replicas'"},
		{"too many replicas", "{replicas: 6}", "at '/replicas'"},
		{"half a replica", "{replicas: 1.5}", "at '/replicas'"},
		{"registry ends with a slash", "{image: {registry: registry.test/}}", "at '/image/registry'"},
		{"bad tag", "{image: {tag: 'a b'}}", "at '/image/tag'"},
		{"bad pull policy", "{image: {pullPolicy: Sometimes}}", "at '/image/pullPolicy'"},
		{"negative memory", "{resources: {limits: {memory: -1Gi}}}", "at '/resources/limits/memory'"},
		{"bad resources", "{resources: {limit: {memory: 1Gi}}}", "additional properties 'limit' not allowed"},
		{"number as label", "{nodeSelector: {pool: 5}}", "at '/nodeSelector/pool'"},
		{"bad interval", "{serviceMonitor: {interval: 0s}}", "at '/serviceMonitor/interval'"},
		{"no guests on a GPU", "{guests: {perGPU: 0}}", "at '/guests/perGPU'"},
		{"bad kind of GPU", "{guests: {gpuKind: gpu}}", "at '/guests/gpuKind'"},
		{"folder is relative", "{guests: {cdiFolder: run/cdi}}", "at '/guests/cdiFolder'"},
		{"bad namespace", "{prometheus: {namespace: A}}", "at '/prometheus/namespace'"},
		{"labels without a namespace", "{prometheus: {podLabels: {app: prometheus}}}", "at '/prometheus/podLabels'"},
		{"text as switch", "{networkPolicy: {enabled: 'yes'}}", "at '/networkPolicy/enabled'"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if _, err := render(t, test.values); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got error %v, want %q", err, test.want)
			}
		})
	}
}

// TestSchemaIsComplete checks that the schema describes all of values.yaml, and that objects with fixed keys refuse others.
func TestSchemaIsComplete(t *testing.T) {
	c, err := loader.Load(".")
	ok(t, err)
	var schema map[string]any
	ok(t, yaml.Unmarshal(c.Schema, &schema))
	var compare func(path string, values, schema map[string]any)
	compare = func(path string, values, schema map[string]any) {
		properties, fixed := schema["properties"].(map[string]any)
		if !fixed {
			return
		}
		if schema["additionalProperties"] != false {
			t.Errorf("%s: the schema allows additional properties", path)
		}
		for key, value := range values {
			property, found := properties[key].(map[string]any)
			if !found {
				t.Errorf("%s.%s is not in the schema", path, key)
			} else if below, isObject := value.(map[string]any); isObject {
				compare(path+"."+key, below, property)
			}
		}
	}
	compare("values", c.Values, schema)
}

func TestAlerts(t *testing.T) {
	path, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("not on this machine: promtool is missing (apt-get install prometheus; .ci/run installs it)")
	}
	for _, arguments := range [][]string{{"check", "rules", "alerts.yaml"}, {"test", "rules", "alerts_test.yaml"}} {
		run := exec.Command(path, arguments...)
		run.Dir = "files"
		if out, err := run.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(arguments, " "), err, out)
		}
	}
}

// TestFlags starts the operator with the chart's flags. It knows them all, and then misses an API server.
func TestFlags(t *testing.T) {
	for name, values := range map[string]string{"default": "", "full": full} {
		t.Run(name, func(t *testing.T) {
			objects, err := render(t, values)
			ok(t, err)
			container := get[*appsv1.Deployment](t, objects, "Deployment/penstock-operator").Spec.Template.Spec.Containers[0]
			operator := exec.Command("go", append([]string{"run", "../cmd/penstock-operator"}, container.Args...)...)
			operator.Env = append(os.Environ(), "KUBECONFIG="+filepath.Join(t.TempDir(), "none"))
			for _, e := range container.Env {
				operator.Env = append(operator.Env, e.Name+"=penstock-system")
			}
			if out, err := operator.CombinedOutput(); err == nil || !strings.Contains(string(out), "find the API server") {
				t.Errorf("run penstock-operator %v: %v\n%s", container.Args, err, out)
			}
		})
	}
}
