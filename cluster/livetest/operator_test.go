package livetest

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/penstock/penstock/cluster/agent"
	"github.com/penstock/penstock/cluster/api/v1alpha1"
	"github.com/penstock/penstock/cluster/kubetest"
	"github.com/penstock/penstock/internal/testing/must"
)

// TestOperator is the life of a fleet with three functions. Each step begins with what the one before left.
func TestOperator(t *testing.T) {
	u := &uses{}
	l := &life{cluster: start(t, u.add), uses: u}
	for _, step := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"start", l.start},
		{"kubectl", l.kubectl},
		{"steady", l.steady},
		{"rate doubled", l.rateDoubled},
		{"more requests", l.moreRequests},
		{"conflicts", l.conflicts},
		{"edited by hand", l.edited},
		{"pod deleted by hand", l.podDeleted},
		{"claim deleted by hand", l.claimDeleted},
		{"pod failed", l.podFailed},
		{"operator killed", l.operatorKilled},
		{"API server stopped", l.serverStopped},
		{"GPU tainted", l.tainted},
		{"GPU gone", l.gone},
		{"agent silent", l.silent},
		{"fleet too small", l.tooSmall},
		{"node removed", l.nodeRemoved},
		{"service exists", l.serviceExists},
		{"agent", l.agent},
		{"profile in use", l.profileInUse},
		{"old changes", l.oldChanges},
		{"end", l.end},
	} {
		if !t.Run(step.name, step.run) {
			return
		}
	}

	rights := granted(t, "ClusterRole", operatorAccount)
	maps.Copy(rights, granted(t, "Role", operatorAccount))
	u.check(t, operatorAccount, rights)
	u.check(t, agentAccount, granted(t, "ClusterRole", agentAccount))
}

type life struct {
	*cluster
	uses *uses
}

// all are the functions that are served at all times.
var all = []string{"shop/faces", "shop/plates", "lab/scan"}

func (l *life) start(t *testing.T) {
	must.OK(t, l.AddFakeNodes(t.Context(), 3, map[string]string{"gpus": "penstock"}, kubetest.GPU{}, kubetest.GPU{}))
	for _, name := range []string{"shop", "lab"} {
		l.add(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	l.agents.set(func() { l.agents.rates["plates"] = 80 })
	l.add(t, testFleet("penstock"), testProfile(t, "resnet50"),
		testFunction("shop/faces", 5001, "300"), testFunction("shop/plates", 5002, "100", "3000"), testFunction("lab/scan", 5001, "200"))
	l.runOperator([]string{streamLists + "=true"}, "--metrics-address", "0")
	s := l.serving(t, all...)

	// The Service has exactly the pods that serve.
	await(t, "endpoints", func() string {
		for _, f := range s.functions.Items {
			var endpoints discoveryv1.EndpointSliceList
			must.OK(t, l.api.List(t.Context(), &endpoints, client.InNamespace(f.Namespace), client.MatchingLabels{discoveryv1.LabelServiceName: f.Name}))
			addresses := 0
			for _, e := range endpoints.Items {
				addresses += len(e.Endpoints)
			}
			if addresses != int(f.Status.Segments) {
				return fmt.Sprintf("Service %s/%s has %d endpoints, want %d", f.Namespace, f.Name, addresses, f.Status.Segments)
			}
		}
		return ""
	})
}

// row returns the columns of the object whose line begins with these words.
func row(t *testing.T, table string, begin ...string) map[string]string {
	t.Helper()
	lines := strings.Split(table, "\n")
	names := strings.Fields(lines[0])
	for _, line := range lines[1:] {
		if columns := strings.Fields(line); len(columns) == len(names) && slices.Equal(columns[:len(begin)], begin) {
			all := map[string]string{}
			for i, name := range names {
				all[name] = columns[i]
			}
			return all
		}
	}
	t.Fatalf("no row begins with %q and has a value in each column:\n%s", begin, table)
	return nil
}

func wantRow(t *testing.T, got, want map[string]string) {
	t.Helper()
	for name, value := range want {
		if got[name] != value {
			t.Errorf("column %s is %q, want %q: %v", name, got[name], value, got)
		}
	}
}

func (l *life) kubectl(t *testing.T) {
	await(t, "the observed rate", func() string {
		if get(t, l.cluster, "shop/plates", &v1alpha1.Function{}).Status.ObservedRate == nil {
			return "there is none"
		}
		return ""
	})
	s := l.state(t)
	wantRow(t, row(t, l.cluster.kubectl(t, "get", "functions", "-A"), "shop", "plates"), map[string]string{
		"MODEL": "resnet50", "SLO": "200ms", "PLANNED": "100", "SEGMENTS": "1", "SERVING": "1", "READY": "True", "PLAN": "Planned"})
	wantRow(t, row(t, l.cluster.kubectl(t, "get", "fleets"), "pool"), map[string]string{
		"GPUS": "6", "FUNCTIONS": "3", "SEGMENTS": "3", "PLANNED": "True", "REASON": "Planned"})
	for _, p := range s.plans.Items {
		wantRow(t, row(t, l.cluster.kubectl(t, "get", "gpuplans"), p.Name), map[string]string{
			"FLEET": "pool", "NODE": p.Spec.Node, "GPU": p.Spec.GPU, "TABLE": "a100-80"})
	}
	wantRow(t, row(t, l.cluster.kubectl(t, "get", "profiles"), "resnet50"), map[string]string{"VALID": "True", "USED": "True"})
	if out := l.cluster.kubectl(t, "get", "penstock", "-A"); !strings.Contains(out, "planchange.penstock.io/pool-1") {
		t.Errorf("kubectl get penstock has no PlanChange:\n%s", out)
	}
}

func (l *life) steady(t *testing.T) {
	period := time.Minute
	if testing.Short() {
		period = 10 * time.Second
	}
	before := len(l.uses.written(0))
	time.Sleep(period)
	if more := l.uses.written(before); len(more) > 0 {
		t.Errorf("writes in %s in which nothing happened:\n%s", period, strings.Join(more, "\n"))
	}
}

// undisturbed calls change and waits until all functions are served. The pods of functions that are not named in but keep their
// UIDs.
func (l *life) undisturbed(t *testing.T, but string, change func()) *state {
	t.Helper()
	before := l.state(t)
	change()
	after := l.serving(t, all...)
	for _, name := range all {
		if was, is := before.uids(name), after.uids(name); name != but && !maps.Equal(was, is) {
			t.Errorf("pods of %s: %v, before %v", name, is, was)
		}
	}
	return after
}

func (l *life) setRate(t *testing.T, function, rate string) {
	t.Helper()
	q := resource.MustParse(rate)
	edit(t, l.cluster, function, &v1alpha1.Function{}, func(f *v1alpha1.Function) { f.Spec.Rate = v1alpha1.RateSpec{Fixed: &q} })
}

func (l *life) rateDoubled(t *testing.T) {
	changes := len(l.state(t).changes.Items)
	s := l.undisturbed(t, "shop/faces", func() { l.setRate(t, "shop/faces", "600") })
	f := get(t, l.cluster, "shop/faces", &v1alpha1.Function{})
	if assigned := f.Status.AssignedRate.AsApproximateFloat64(); assigned < 600 {
		t.Errorf("assigned %v requests/s, want 600", assigned)
	}
	if len(s.changes.Items) == changes {
		t.Errorf("there is no new PlanChange")
	}
	for _, c := range s.changes.Items {
		if c.Status.Phase != v1alpha1.Done || int(c.Status.Done) != len(c.Spec.Steps) || c.Status.FinishedAt == nil {
			t.Errorf("change %s: %+v", c.Name, c.Status)
		}
	}
}

func (l *life) moreRequests(t *testing.T) {
	l.undisturbed(t, "shop/plates", func() {
		l.agents.set(func() { l.agents.rates["plates"] = 700 })
		await(t, "a plan for more requests", func() string {
			if planned := get(t, l.cluster, "shop/plates", &v1alpha1.Function{}).Status.PlannedRate; planned.AsApproximateFloat64() < 700 {
				return fmt.Sprintf("planned for %v requests/s, 700 come", planned)
			}
			return ""
		})
	})
}

// conflicts edits all that the operator writes again and again, while it changes the plan.
func (l *life) conflicts(t *testing.T) {
	var edits atomic.Int64
	done, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			for _, list := range []client.ObjectList{
				&v1alpha1.FleetList{}, &v1alpha1.GPUPlanList{}, &v1alpha1.PlanChangeList{}, &resourceapi.ResourceClaimList{}, &corev1.PodList{},
			} {
				if err := l.api.List(t.Context(), list); err != nil {
					t.Error(err)
					return
				}
				meta.EachListItem(list, func(r runtime.Object) error {
					select {
					case <-done:
						return errors.New("the test is over")
					default:
					}
					o := r.(client.Object)
					old := o.DeepCopyObject().(client.Object)
					annotations := maps.Clone(o.GetAnnotations())
					if annotations == nil {
						annotations = map[string]string{}
					}
					annotations["test/edits"] = fmt.Sprint(edits.Load())
					o.SetAnnotations(annotations)
					if l.api.Patch(t.Context(), o, client.MergeFrom(old)) == nil { // it may be gone
						edits.Add(1)
					}
					return nil
				})
			}
			select {
			case <-done:
				return
			default:
			}
		}
	}()
	defer func() {
		close(done)
		<-stopped
	}()

	// A change takes less than a second.
	for edits.Load() < 200 && !t.Failed() {
		for _, rate := range []string{"900", "300"} {
			l.undisturbed(t, "shop/faces", func() { l.setRate(t, "shop/faces", rate) })
		}
	}
}

// edited changes by hand what the operator made around the segments. It corrects each.
func (l *life) edited(t *testing.T) {
	edit(t, l.cluster, "shop/faces", &corev1.Service{}, func(s *corev1.Service) { s.Spec.Selector = map[string]string{"a": "b"} })
	edit(t, l.cluster, "shop/penstock-agent", &corev1.ServiceAccount{}, func(a *corev1.ServiceAccount) { a.AutomountServiceAccountToken = nil })
	edit(t, l.cluster, "penstock-agent-shop", &rbacv1.ClusterRoleBinding{}, func(b *rbacv1.ClusterRoleBinding) { b.Subjects = nil })
	edit(t, l.cluster, "shop/penstock", &networkingv1.NetworkPolicy{}, func(p *networkingv1.NetworkPolicy) { p.Spec.Ingress = nil })
	edit(t, l.cluster, "shop/penstock", &policyv1.PodDisruptionBudget{}, func(b *policyv1.PodDisruptionBudget) { b.Spec.MinAvailable = nil })
	var rules resourceapi.DeviceTaintRuleList
	must.OK(t, l.api.List(t.Context(), &rules))
	rule := rules.Items[0].Name
	edit(t, l.cluster, rule, &resourceapi.DeviceTaintRule{}, func(r *resourceapi.DeviceTaintRule) { r.Spec.Taint.Value = "other" })

	for _, check := range []struct {
		what string
		ok   func() bool
	}{
		{"Service", func() bool {
			return get(t, l.cluster, "shop/faces", &corev1.Service{}).Spec.Selector[v1alpha1.ServingLabel("faces")] == v1alpha1.Serving
		}},
		{"ServiceAccount", func() bool {
			return get(t, l.cluster, "shop/penstock-agent", &corev1.ServiceAccount{}).AutomountServiceAccountToken != nil
		}},
		{"ClusterRoleBinding", func() bool {
			return len(get(t, l.cluster, "penstock-agent-shop", &rbacv1.ClusterRoleBinding{}).Subjects) == 1
		}},
		{"NetworkPolicy", func() bool {
			return len(get(t, l.cluster, "shop/penstock", &networkingv1.NetworkPolicy{}).Spec.Ingress) == 2
		}},
		{"PodDisruptionBudget", func() bool {
			return get(t, l.cluster, "shop/penstock", &policyv1.PodDisruptionBudget{}).Spec.MinAvailable != nil
		}},
		{"DeviceTaintRule", func() bool {
			return get(t, l.cluster, rule, &resourceapi.DeviceTaintRule{}).Spec.Taint.Value == "pool"
		}},
	} {
		await(t, "the operator's "+check.what, func() string {
			if check.ok() {
				return ""
			}
			return "it is still as it was edited"
		})
	}
	l.serving(t, all...)
}

// podDeleted deletes a pod. Kubernetes then takes the claim's device back, and the operator allocates it again.
func (l *life) podDeleted(t *testing.T) {
	var was types.UID
	s := l.undisturbed(t, "lab/scan", func() {
		for name, uid := range l.state(t).uids("lab/scan") {
			was = uid
			must.OK(t, l.api.Delete(t.Context(), get(t, l.cluster, "lab/"+name, &corev1.Pod{})))
		}
		await(t, "another pod", func() string {
			for _, uid := range l.state(t).uids("lab/scan") {
				if uid != was {
					return ""
				}
			}
			return "there is none"
		})
	})
	if pods := s.uids("lab/scan"); len(pods) != 1 {
		t.Errorf("pods %v, want one", pods)
	}
}

// claimDeleted deletes the claim of a pod that runs. The pod keeps it. If the pod ends, both are replaced.
func (l *life) claimDeleted(t *testing.T) {
	var key string
	for name := range l.state(t).uids("lab/scan") {
		key = "lab/" + name
	}
	claim := get(t, l.cluster, key, &resourceapi.ResourceClaim{})
	must.OK(t, l.api.Delete(t.Context(), claim))
	await(t, "the status to say so", func() string {
		for _, p := range l.state(t).plans.Items {
			for _, s := range p.Status.Segments {
				if "lab/"+s.Name == key && strings.Contains(s.Message, "claim is being deleted") && s.Ready {
					return ""
				}
			}
		}
		return "no segment has the message"
	})
	l.undisturbed(t, "lab/scan", func() {
		must.OK(t, l.api.Delete(t.Context(), get(t, l.cluster, key, &corev1.Pod{})))
		await(t, "another claim", func() string {
			now := l.state(t).claim(key)
			if now == nil || now.UID == claim.UID {
				return "there is none"
			}
			return ""
		})
	})
}

// podFailed lets a young pod fail. Its place is free for ten seconds, so Kubernetes takes the device and the finalizer of the
// claim. Then another pod gets the same claim.
func (l *life) podFailed(t *testing.T) {
	l.undisturbed(t, "lab/scan", func() {
		for name, was := range l.state(t).uids("lab/scan") {
			pod := get(t, l.cluster, "lab/"+name, &corev1.Pod{})
			pod.Status.Phase = corev1.PodFailed
			must.OK(t, l.api.Status().Update(t.Context(), pod))
			await(t, "another pod", func() string {
				if now := l.state(t).uids("lab/scan")[name]; now == was || now == "" {
					return fmt.Sprintf("it is %q", now)
				}
				return ""
			})
		}
	})
}

func (l *life) leader(t *testing.T) string {
	lease := get(t, l.cluster, namespace+"/penstock-operator", &coordinationv1.Lease{})
	if lease.Spec.HolderIdentity == nil {
		return ""
	}
	return *lease.Spec.HolderIdentity
}

// operatorKilled kills the operator in the middle of a change. Another one, which waits, continues.
func (l *life) operatorKilled(t *testing.T) {
	first := l.leader(t)
	// The second operator reads lists in pages, as it does from API servers that do not stream them.
	l.runOperator([]string{streamLists + "=false"}, "--metrics-address", "0")
	l.undisturbed(t, "shop/faces", func() {
		before := len(l.state(t).changes.Items)
		l.setRate(t, "shop/faces", "1200")
		await(t, "a change", func() string {
			if len(l.state(t).changes.Items) == before {
				return "there is none"
			}
			return ""
		})
		l.operators[0].down.Store(true)
		defer l.operators[0].down.Store(false)
		l.operators[0].kill <- struct{}{}
		await(t, "another leader", func() string {
			if now := l.leader(t); now == first || now == "" {
				return "the leader is " + now
			}
			return ""
		})
	})
}

// serverStopped stops the API server for longer than operators keep their lease. Afterwards all is as it was, and changes are made.
func (l *life) serverStopped(t *testing.T) {
	period := time.Minute
	if testing.Short() {
		period = 5 * time.Second
	}
	l.undisturbed(t, "", func() {
		server := l.Process("kube-apiserver")
		server.Kill()
		time.Sleep(period)
		must.OK(t, server.Start())
		must.OK(t, l.AwaitServer(t.Context()))
	})
	l.undisturbed(t, "shop/faces", func() { l.setRate(t, "shop/faces", "300") })
}

// used returns the plan of a GPU with segments.
func (l *life) used(t *testing.T) *v1alpha1.GPUPlan {
	t.Helper()
	plans := l.state(t).plans.Items
	i := slices.IndexFunc(plans, func(p v1alpha1.GPUPlan) bool { return len(p.Spec.Segments) > 0 })
	if i < 0 {
		t.Fatal("no GPU has segments")
	}
	return &plans[i]
}

// avoided waits until no GPU that is bad has segments, and all functions are served.
func (l *life) avoided(t *testing.T, bad func(*v1alpha1.GPUPlan) bool) {
	t.Helper()
	await(t, "a plan without the GPU", func() string {
		for _, p := range l.state(t).plans.Items {
			if bad(&p) && len(p.Spec.Segments) > 0 {
				return fmt.Sprintf("GPUPlan %s has %d segments", p.Name, len(p.Spec.Segments))
			}
		}
		return ""
	})
	l.serving(t, all...)
}

func (l *life) tainted(t *testing.T) {
	p := l.used(t)
	rule := &resourceapi.DeviceTaintRule{ObjectMeta: metav1.ObjectMeta{Name: "repair"}, Spec: resourceapi.DeviceTaintRuleSpec{
		DeviceSelector: &resourceapi.DeviceTaintSelector{Pool: &p.Spec.Pool, Device: &p.Spec.Segments[0].Device},
		Taint:          resourceapi.DeviceTaint{Key: "repair", Effect: resourceapi.DeviceTaintEffectNoSchedule},
	}}
	l.add(t, rule)
	l.avoided(t, func(now *v1alpha1.GPUPlan) bool { return now.Name == p.Name })
	must.OK(t, l.api.Delete(t.Context(), rule))
}

// gone removes a GPU from what its driver publishes.
func (l *life) gone(t *testing.T) {
	p := l.used(t)
	var published resourceapi.ResourceSliceList
	must.OK(t, l.api.List(t.Context(), &published))
	for i := range published.Items {
		s := &published.Items[i]
		if s.Spec.Pool.Name != p.Spec.Pool {
			continue
		}
		s.Spec.Devices = slices.DeleteFunc(s.Spec.Devices, func(d resourceapi.Device) bool { return *d.Attributes["parentUUID"].StringValue == p.Spec.GPU })
		must.OK(t, l.api.Update(t.Context(), s))
	}
	l.avoided(t, func(now *v1alpha1.GPUPlan) bool { return now.Spec.GPU == p.Spec.GPU })
}

// silent lets the agent of a pod not answer. If most were silent, the operator would take itself to be cut off.
func (l *life) silent(t *testing.T) {
	before := l.state(t).uids("lab/scan")
	l.agents.set(func() {
		for _, uid := range before {
			l.agents.silent[string(uid)] = true
		}
	})
	l.undisturbed(t, "lab/scan", func() {
		await(t, "other pods", func() string {
			for name := range l.state(t).uids("lab/scan") {
				if _, old := before[name]; old {
					return name + " is planned"
				}
			}
			return ""
		})
	})
}

// tooSmall asks for more than the fleet can serve, and then adds a node.
func (l *life) tooSmall(t *testing.T) {
	large := testFunction("lab/large", 5009, "14000")
	large.Spec.Priority = -1
	l.add(t, large)
	await(t, "the condition", func() string {
		c := meta.FindStatusCondition(get(t, l.cluster, "lab/large", &v1alpha1.Function{}).Status.Conditions, v1alpha1.Planned)
		if c == nil || c.Status != metav1.ConditionFalse || c.Reason != v1alpha1.ReasonFleetTooSmall {
			return fmt.Sprintf("it is %+v", c)
		}
		return ""
	})
	l.serving(t, all...)
	must.OK(t, l.AddFakeNodes(t.Context(), 1, map[string]string{"gpus": "penstock"}, kubetest.GPU{}, kubetest.GPU{}, kubetest.GPU{}, kubetest.GPU{}, kubetest.GPU{}, kubetest.GPU{}))
	l.serving(t, append(slices.Clone(all), "lab/large")...)
	must.OK(t, l.api.Delete(t.Context(), large))
	l.serving(t, all...)
}

// nodeRemoved removes a node that serves, with what its driver published.
func (l *life) nodeRemoved(t *testing.T) {
	node := l.used(t).Spec.Node
	must.OK(t, l.api.Delete(t.Context(), get(t, l.cluster, node, &corev1.Node{})))
	var published resourceapi.ResourceSliceList
	must.OK(t, l.api.List(t.Context(), &published))
	for i := range published.Items {
		if published.Items[i].Spec.Pool.Name == node {
			must.OK(t, client.IgnoreNotFound(l.api.Delete(t.Context(), &published.Items[i])))
		}
	}
	l.avoided(t, func(p *v1alpha1.GPUPlan) bool { return p.Spec.Node == node })
	await(t, "the node's DeviceTaintRule to be deleted", func() string {
		var rules resourceapi.DeviceTaintRuleList
		must.OK(t, l.api.List(t.Context(), &rules))
		for _, r := range rules.Items {
			if *r.Spec.DeviceSelector.Pool == node {
				return r.Name + " exists"
			}
		}
		return ""
	})
}

// serviceExists makes a function whose Service exists. An event says so, and the Service stays as it is.
func (l *life) serviceExists(t *testing.T) {
	l.add(t, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: "taken"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}},
		testFunction("lab/taken", 5010, "10"))
	await(t, "an event", func() string {
		var events eventsv1.EventList
		must.OK(t, l.api.List(t.Context(), &events, client.InNamespace("lab")))
		for _, e := range events.Items {
			if e.Reason == "ServiceExists" && e.Regarding.Name == "taken" {
				return ""
			}
		}
		return fmt.Sprintf("none of %d is", len(events.Items))
	})
	if s := get(t, l.cluster, "lab/taken", &corev1.Service{}); s.Spec.Ports[0].Port != 80 {
		t.Errorf("the operator has changed a Service that is not its own: %+v", s.Spec)
	}
	must.OK(t, l.api.Delete(t.Context(), get(t, l.cluster, "lab/taken", &v1alpha1.Function{})))
	l.serving(t, all...)
}

// agent watches a GPUPlan as an agent does, with the rights that the operator gave it.
func (l *life) agent(t *testing.T) {
	config, err := l.ServiceAccount("shop", agentAccount)
	must.OK(t, err)
	p := l.used(t)
	plans, err := agent.Watch(t.Context(), config, p.Name, filepath.Join(t.TempDir(), "run"), zerolog.Nop())
	must.OK(t, err)
	read := func() *v1alpha1.GPUPlan {
		t.Helper()
		for {
			select {
			case now := <-plans:
				if now.Object != nil {
					return now.Object
				}
			case <-time.After(time.Minute):
				t.Fatal("the agent got no plan")
			}
		}
	}
	if got := read(); got.UID != p.UID {
		t.Errorf("the agent has plan %s, want %s", got.Name, p.Name)
	}
	edit(t, l.cluster, p.Name, &v1alpha1.GPUPlan{}, func(p *v1alpha1.GPUPlan) { metav1.SetMetaDataAnnotation(&p.ObjectMeta, "test/agent", "1") })
	for read().Annotations["test/agent"] == "" {
	}
}

func (l *life) profileInUse(t *testing.T) {
	must.OK(t, l.api.Delete(t.Context(), get(t, l.cluster, "resnet50", &v1alpha1.Profile{})))
	s := l.undisturbed(t, "shop/faces", func() { l.setRate(t, "shop/faces", "600") })
	if p := get(t, l.cluster, "resnet50", &v1alpha1.Profile{}); p.DeletionTimestamp == nil || s.wrong(all...) != "" {
		t.Errorf("the Profile is %+v", p.ObjectMeta)
	}
}

// oldChanges adds finished changes. The operator keeps the last ten.
func (l *life) oldChanges(t *testing.T) {
	place := l.used(t)
	for n := range 12 {
		ch := &v1alpha1.PlanChange{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("old-%d", n)}, Spec: v1alpha1.PlanChangeSpec{
			Fleet: "pool", Number: 1, Steps: []v1alpha1.Step{{Op: v1alpha1.Retune, GPUPlan: place.Name, Place: place.Spec.Place, Segment: place.Spec.Segments[0]}}}}
		l.add(t, ch)
		await(t, "the change to be finished", func() string {
			err := l.api.Get(t.Context(), client.ObjectKeyFromObject(ch), ch)
			if apierrors.IsNotFound(err) || ch.Status.Phase.Finished() {
				return ""
			}
			return fmt.Sprintf("%v, %+v", err, ch.Status)
		})
	}
	await(t, "old changes to be deleted", func() string {
		if n := len(l.state(t).changes.Items); n != 10 {
			return fmt.Sprintf("there are %d", n)
		}
		return ""
	})
}

// end deletes what people have made. Nothing is left of what the operator made.
func (l *life) end(t *testing.T) {
	for _, key := range all {
		must.OK(t, l.api.Delete(t.Context(), get(t, l.cluster, key, &v1alpha1.Function{})))
	}
	await(t, "free GPUs and no Profile", func() string {
		s := l.state(t)
		var profiles v1alpha1.ProfileList
		must.OK(t, l.api.List(t.Context(), &profiles))
		if n := len(s.plans.Items) + len(s.pods.Items) + len(s.claims.Items) + len(profiles.Items); n > 0 {
			return fmt.Sprintf("there are %d plans, %d pods, %d claims and %d profiles", len(s.plans.Items), len(s.pods.Items), len(s.claims.Items), len(profiles.Items))
		}
		return ""
	})
	must.OK(t, l.api.Delete(t.Context(), get(t, l.cluster, "pool", &v1alpha1.Fleet{})))
	await(t, "the garbage collector", func() string {
		var rules resourceapi.DeviceTaintRuleList
		var bindings rbacv1.ClusterRoleBindingList
		must.OK(t, l.api.List(t.Context(), &rules))
		must.OK(t, l.api.List(t.Context(), &bindings, client.MatchingLabels{"app.kubernetes.io/managed-by": "penstock-operator"}))
		if n := len(rules.Items) + len(bindings.Items) + len(l.state(t).changes.Items); n > 0 {
			return fmt.Sprintf("there are %d objects of the fleet", n)
		}
		return ""
	})
}
