// Package livetest runs the operator's program on a real API server, as the service account of the chart. Nodes and pods are
// kwok's, so pods become ready at once. Their addresses are those of the test program, which answers for their agents.
package livetest

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/penstock/penstock/cluster/api/v1alpha1"
	"github.com/penstock/penstock/cluster/chart"
	"github.com/penstock/penstock/cluster/kubetest"
	"github.com/penstock/penstock/cluster/operator"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/wait"
)

// streamLists is the variable that says whether informers get lists by their watches. If an API server does not do that,
// informers need the verb list.
const streamLists = "KUBE_FEATURE_WatchListClient"

func TestMain(m *testing.M) {
	os.Setenv(streamLists, "false") // of the agent in TestOperator
	os.Exit(kubetest.Isolated(m.Run))
}

// namespace is the operator's.
const namespace = "penstock-system"

// A cluster is an API server with the chart's objects, agents, and programs of the operator.
type cluster struct {
	*kubetest.Cluster
	t         *testing.T    // whose end ends the operators
	api       client.Client // the administrator's
	agents    *agents
	operators []*container
	threads   sync.WaitGroup // that supervise operators
	program   string
}

// A container is a program of the operator, which is started again whenever it ends, as a kubelet does.
type container struct {
	log  string
	down atomic.Bool // it stays down when it has ended
	kill chan struct{}
}

// The pause before a program starts again doubles each time. The first time there is none.
const (
	firstPause = 10 * time.Second
	maxPause   = 5 * time.Minute
)

// supervise owns the program until ctx ends.
func (c *container) supervise(ctx context.Context, p *kubetest.Process, failed func(error)) {
	var pause time.Duration
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
			return
		case <-c.kill:
			p.Kill()
			continue
		case <-time.After(50 * time.Millisecond):
		}
		if !p.Ended() || c.down.Load() {
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		if err := p.Start(); err != nil {
			failed(err)
			return
		}
		pause = min(max(firstPause, 2*pause), maxPause)
	}
}

// start starts a cluster without nodes. reviews may be nil.
func start(t *testing.T, reviews func(authorizationv1.SubjectAccessReviewSpec)) *cluster {
	t.Helper()
	c := &cluster{t: t, program: filepath.Join(t.TempDir(), "penstock-operator")}
	build := exec.Command("go", "build", "-o", c.program, "../cmd/penstock-operator")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the operator: %v\n%s", err, out)
	}

	c.Cluster = kubetest.Start(t, kubetest.Options{
		Scheduler: true, Controllers: true, Kwok: true, Reviews: reviews,
		Manifests: []string{"../chart/crds", installation(t)},
	})
	if l, err := net.Listen("tcp", "10.64.0.1:0"); err != nil {
		t.Skipf("not on this machine: agents of simulated pods need a network namespace, and that needs root: %v", err)
	} else {
		l.Close()
	}
	api, err := client.New(c.Admin(), client.Options{Scheme: operator.Scheme()})
	must.OK(t, err)
	c.api = api
	c.agents = serveAgents(t, c.Admin())
	t.Cleanup(func() {
		c.threads.Wait()
		for _, p := range c.operators {
			if t.Failed() {
				log := must.Get(os.ReadFile(p.log))(t)
				lines := strings.Split(strings.TrimSpace(string(log)), "\n")
				t.Logf("the end of %s:\n%s", filepath.Base(p.log), strings.Join(lines[max(0, len(lines)-30):], "\n"))
			}
		}
	})
	return c
}

// render returns what the chart's templates become, by their names.
func render(t *testing.T) map[string]string {
	t.Helper()
	return must.Get(chart.Render("../chart", namespace, nil))(t)
}

// installation is a file with what the chart has, without the Deployment: the test runs the operator itself.
func installation(t *testing.T) string {
	t.Helper()
	files := render(t)
	text := "apiVersion: v1\nkind: Namespace\nmetadata: {name: " + namespace + "}\n---\n" + files["rbac.yaml"] + "\n---\n" + files["deviceclass.yaml"]
	path := filepath.Join(t.TempDir(), "installation.yaml")
	must.OK(t, os.WriteFile(path, []byte(text), 0o644))
	return path
}

// runOperator starts an operator with the rights of the chart. It runs until the test of the cluster ends.
func (c *cluster) runOperator(env []string, flags ...string) {
	t := c.t
	t.Helper()
	config, err := c.ServiceAccount(namespace, "penstock-operator")
	must.OK(t, err)
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	must.OK(t, kubetest.WriteKubeconfig(config, kubeconfig))
	command := append([]string{c.program, "--kubeconfig", kubeconfig, "--namespace", namespace, "--agent-image", "penstock-agent:1",
		"--health-address", "0"}, flags...)
	p, err := c.Run(fmt.Sprintf("operator-%d", len(c.operators)+1), env, command...)
	must.OK(t, err)
	one := &container{log: p.Log(), kill: make(chan struct{})}
	c.operators = append(c.operators, one)
	c.threads.Go(func() { one.supervise(t.Context(), p, func(err error) { t.Error(err) }) })
}

// await polls until nothing is wrong any more.
func await(t testing.TB, what string, wrong func() string) {
	t.Helper()
	last := ""
	if !wait.Until(func() bool {
		time.Sleep(100 * time.Millisecond)
		last = wrong()
		return last == ""
	}) {
		t.Fatalf("waited %s for %s: %s", wait.Patience, what, last)
	}
}

// add creates objects.
func (c *cluster) add(t *testing.T, objects ...client.Object) {
	t.Helper()
	for _, o := range objects {
		must.OK(t, c.api.Create(t.Context(), o))
	}
}

// edit changes an object, however many others do.
func edit[T client.Object](t testing.TB, c *cluster, key string, o T, change func(T)) {
	t.Helper()
	await(t, fmt.Sprintf("an edit of %T %s", o, key), func() string {
		err := c.api.Get(t.Context(), keyOf(key), o)
		if err == nil {
			change(o)
			err = c.api.Update(t.Context(), o)
		}
		if err != nil {
			return err.Error()
		}
		return ""
	})
}

// keyOf reads NAMESPACE/NAME, or NAME.
func keyOf(key string) client.ObjectKey {
	namespace, name, ok := strings.Cut(key, "/")
	if !ok {
		return client.ObjectKey{Name: key}
	}
	return client.ObjectKey{Namespace: namespace, Name: name}
}

func get[T client.Object](t testing.TB, c *cluster, key string, o T) T {
	t.Helper()
	must.OK(t, c.api.Get(t.Context(), keyOf(key), o))
	return o
}

// state is what the API server has.
type state struct {
	functions v1alpha1.FunctionList
	plans     v1alpha1.GPUPlanList
	changes   v1alpha1.PlanChangeList
	claims    resourceapi.ResourceClaimList
	pods      corev1.PodList
	slices    resourceapi.ResourceSliceList
}

func (c *cluster) state(t testing.TB) *state {
	t.Helper()
	s := &state{}
	for _, list := range []client.ObjectList{&s.functions, &s.plans, &s.changes, &s.claims, &s.pods, &s.slices} {
		must.OK(t, c.api.List(t.Context(), list))
	}
	return s
}

// wrong says why functions are not served as planned; empty: they are. A function must exist.
func (s *state) wrong(names ...string) string {
	for _, name := range names {
		i := slices.IndexFunc(s.functions.Items, func(f v1alpha1.Function) bool { return f.Namespace+"/"+f.Name == name })
		if i < 0 {
			return name + " does not exist"
		}
		f := s.functions.Items[i]
		for _, condition := range []string{v1alpha1.Planned, v1alpha1.Ready} {
			now := meta.FindStatusCondition(f.Status.Conditions, condition)
			if now == nil || now.Status != metav1.ConditionTrue || f.Status.ObservedGeneration != f.Generation || f.Status.Segments == 0 {
				return fmt.Sprintf("%s: %s is %+v, %d segments", name, condition, now, f.Status.Segments)
			}
		}
	}
	for _, change := range s.changes.Items {
		if !change.Status.Phase.Finished() {
			return fmt.Sprintf("change %s: %d of %d: %s", change.Name, change.Status.Done, len(change.Spec.Steps), change.Status.Message)
		}
	}
	for _, p := range s.plans.Items {
		for _, segment := range p.Spec.Segments {
			if wrong := s.unbound(&p, &segment); wrong != "" {
				return wrong
			}
		}
	}
	return ""
}

// unbound says why a segment's claim or pod is not as planned.
func (s *state) unbound(p *v1alpha1.GPUPlan, segment *v1alpha1.Segment) string {
	key := segment.Namespace + "/" + segment.Name
	claim, pod := s.claim(key), s.pod(key)
	switch {
	case claim == nil || claim.Status.Allocation == nil:
		return "claim " + key + " is not allocated"
	case claim.Status.Allocation.Devices.Results[0].Device != segment.Device || claim.Status.Allocation.Devices.Results[0].Pool != p.Spec.Pool:
		return fmt.Sprintf("claim %s has device %+v, want %s of %s", key, claim.Status.Allocation.Devices.Results[0], segment.Device, p.Spec.Pool)
	case pod == nil || pod.Spec.NodeName != p.Spec.Node:
		return "pod " + key + " is not on node " + p.Spec.Node
	case len(claim.Status.ReservedFor) != 1 || claim.Status.ReservedFor[0].UID != pod.UID:
		return fmt.Sprintf("claim %s is reserved for %+v, want pod %s", key, claim.Status.ReservedFor, pod.UID)
	case pod.Labels[v1alpha1.ServingLabel(segment.Function)] != v1alpha1.Serving:
		return "pod " + key + " is not in the Service"
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
			return ""
		}
	}
	return "pod " + key + " is not ready"
}

func (s *state) claim(key string) *resourceapi.ResourceClaim {
	for i := range s.claims.Items {
		if c := &s.claims.Items[i]; c.Namespace+"/"+c.Name == key {
			return c
		}
	}
	return nil
}

func (s *state) pod(key string) *corev1.Pod {
	for i := range s.pods.Items {
		if p := &s.pods.Items[i]; p.Namespace+"/"+p.Name == key {
			return p
		}
	}
	return nil
}

// shared names a part of a GPU that two claims have; empty: there is none.
func (s *state) shared() string {
	consumed := map[string][]string{} // counters with a memory slice, by device
	for _, slice := range s.slices.Items {
		for _, d := range slice.Spec.Devices {
			for _, use := range d.ConsumesCounters {
				for name := range use.Counters {
					if strings.HasPrefix(name, "memory-slice") {
						device := slice.Spec.Pool.Name + "/" + d.Name
						consumed[device] = append(consumed[device], slice.Spec.Pool.Name+"/"+use.CounterSet+"/"+name)
					}
				}
			}
		}
	}
	owner := map[string]string{}
	for _, c := range s.claims.Items {
		if c.Status.Allocation == nil || len(c.Status.ReservedFor) == 0 {
			continue
		}
		result := c.Status.Allocation.Devices.Results[0]
		for _, part := range consumed[result.Pool+"/"+result.Device] {
			if other := owner[part]; other != "" {
				return fmt.Sprintf("claims %s and %s both have %s", other, c.Name, part)
			}
			owner[part] = c.Name
		}
	}
	return ""
}

// uids are those of a function's pods, by name.
func (s *state) uids(function string) map[string]types.UID {
	all := map[string]types.UID{}
	namespace, name, _ := strings.Cut(function, "/")
	for _, p := range s.pods.Items {
		if p.Namespace == namespace && functionOf(p.Name) == name && p.DeletionTimestamp == nil {
			all[p.Name] = p.UID
		}
	}
	return all
}

// functionOf returns the function of a pod FUNCTION-HASH.
func functionOf(pod string) string { return pod[:max(0, strings.LastIndex(pod, "-"))] }

// serving waits until functions are served as planned, and checks that no part of a GPU is used twice.
func (c *cluster) serving(t testing.TB, functions ...string) *state {
	t.Helper()
	var s *state
	await(t, strings.Join(functions, ", ")+" to be served", func() string {
		s = c.state(t)
		return s.wrong(functions...)
	})
	if twice := s.shared(); twice != "" {
		t.Fatal(twice)
	}
	return s
}

func testFleet(nodes string) *v1alpha1.Fleet {
	second := metav1.Duration{Duration: time.Second}
	return &v1alpha1.Fleet{
		ObjectMeta: metav1.ObjectMeta{Name: "pool"},
		Spec: v1alpha1.FleetSpec{
			NodeSelector: map[string]string{"gpus": nodes},
			Damping:      v1alpha1.Damping{UpAfter: second, Between: second},
			Node:         v1alpha1.NodeTemplate{Image: "penstock:1"},
		},
	}
}

// testProfile is a published measurement of a model.
func testProfile(t *testing.T, model string) *v1alpha1.Profile {
	csv := must.Get(os.ReadFile("../../plan/testdata/parvagpu/prof_data/" + model + ".csv"))(t)
	return &v1alpha1.Profile{
		ObjectMeta: metav1.ObjectMeta{Name: model},
		Spec:       v1alpha1.ProfileSpec{Model: model, GPU: "a100-80", CSV: string(csv)},
	}
}

// testFunction is a function of model resnet50. Rates are fixed or a range.
func testFunction(key string, port int32, rates ...string) *v1alpha1.Function {
	k := keyOf(key)
	f := &v1alpha1.Function{
		ObjectMeta: metav1.ObjectMeta{Namespace: k.Namespace, Name: k.Name},
		Spec:       v1alpha1.FunctionSpec{Model: "resnet50", SLO: metav1.Duration{Duration: 200 * time.Millisecond}, Port: port},
	}
	first := resource.MustParse(rates[0])
	if f.Spec.Rate.Fixed = &first; len(rates) > 1 {
		last := resource.MustParse(rates[1])
		f.Spec.Rate = v1alpha1.RateSpec{Min: &first, Max: &last}
	}
	return f
}

func (c *cluster) kubectl(t *testing.T, arguments ...string) string {
	t.Helper()
	out, err := c.Kubectl(context.WithoutCancel(t.Context()), nil, arguments...)
	must.OK(t, err)
	return string(bytes.TrimSpace(out))
}
