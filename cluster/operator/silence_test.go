package operator

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/penstock/penstock/cluster/api/v1alpha1"
	"github.com/penstock/penstock/cluster/fleet"
	"github.com/penstock/penstock/internal/testing/must"
)

// mutes are agents of which some, by address, do not answer.
type mutes struct {
	mu   sync.Mutex
	mute sets.Set[string]
}

func (m *mutes) set(addresses ...string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mute = sets.New(addresses...)
}

func (m *mutes) Ask(ctx context.Context, address, _, _ string) (bool, error) {
	m.mu.Lock()
	mute := m.mute.Has(address)
	m.mu.Unlock()
	if mute {
		<-ctx.Done()
		return false, ErrSilent
	}
	return false, nil // it is not ready, and that is an answer
}

func (m *mutes) Rates(context.Context, string) ([]fleet.FunctionPage, error) { panic("not asked") }

func TestSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		serving := v1alpha1.ServingLabel("f")
		w := newWorld(t)
		for _, p := range []struct{ name, node, address string }{
			{"f-1", "n1", "10.0.1.1"}, {"f-2", "n1", "10.0.1.2"}, {"f-3", "n2", "10.0.2.1"}, {"f-4", "n3", "10.0.3.1"},
		} {
			w.add(&corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: p.name, Labels: map[string]string{serving: v1alpha1.Serving, "other": "label"},
					OwnerReferences: []metav1.OwnerReference{{Kind: "GPUPlan", Name: p.node, Controller: new(true)}}},
				Spec: corev1.PodSpec{NodeName: p.node},
				Status: corev1.PodStatus{PodIP: p.address, Conditions: []corev1.PodCondition{
					{Type: corev1.ContainersReady, Status: corev1.ConditionTrue}}},
			})
		}
		agents, changed := &mutes{}, make(chan event.GenericEvent, 1)
		s := &Silence{Client: w.api, Agents: agents, Now: time.Now, Changed: []chan event.GenericEvent{changed}}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- s.Start(ctx) }()
		want := func(silent ...string) {
			t.Helper()
			if got := s.Silent(); !got.Equal(sets.New(silent...)) {
				t.Errorf("silent nodes %v, want %v", sets.List(got), silent)
			}
		}
		inService := func(pods ...string) {
			t.Helper()
			var list corev1.PodList
			must.OK(t, w.api.List(t.Context(), &list))
			got := sets.New[string]()
			for _, p := range list.Items {
				if p.Labels[serving] == v1alpha1.Serving {
					got.Insert(p.Name)
				}
				if p.Labels["other"] != "label" {
					t.Errorf("pod %s lost another label: %v", p.Name, p.Labels)
				}
			}
			if !got.Equal(sets.New(pods...)) {
				t.Errorf("pods in the Service %v, want %v", sets.List(got), pods)
			}
		}

		time.Sleep(10 * time.Second)
		agents.set("10.0.1.1") // the node still has a pod that answers
		time.Sleep(10 * time.Second)
		want()

		agents.set("10.0.1.1", "10.0.1.2")
		time.Sleep(silence - listenInterval - listenPatience)
		want()
		inService("f-1", "f-2", "f-3", "f-4")
		time.Sleep(2*listenInterval + listenPatience)
		want("n1")
		inService("f-3", "f-4")
		select {
		case <-changed:
		default:
			t.Error("the controllers got no event")
		}

		agents.set("10.0.1.1", "10.0.1.2", "10.0.2.1") // two of three: this operator may be the one that is cut off
		time.Sleep(10 * time.Second)
		want()
		inService("f-3", "f-4")

		agents.set()
		time.Sleep(10 * time.Second)
		agents.set("10.0.3.1")
		time.Sleep(10 * time.Second)
		want("n3")
		agents.set()
		time.Sleep(2 * listenPatience)
		want()

		stop()
		must.OK(t, <-done)
	})
}

// TestSilentPod keeps the pods of a silent node out of the Services, until the node answers.
func TestSilentPod(t *testing.T) {
	w := onePod(t)
	pod := get(w, "a/f-1", &corev1.Pod{})
	w.silence.silent = sets.New(pod.Spec.NodeName)
	delete(pod.Labels, v1alpha1.ServingLabel("f"))
	w.must(w.api.Update(t.Context(), pod))
	w.settle()
	if p := get(w, "a/f-1", &corev1.Pod{}); p.Labels[v1alpha1.ServingLabel("f")] != "" {
		t.Errorf("the pod is in the Service: %v", p.Labels)
	}
	w.silence.silent = nil
	w.settle()
	w.wantServing("a/f-1")
}
