package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/penstock/penstock/internal/testing/must"
)

// runs is how often each figure is measured.
const runs = 5

// A figure is a time that docs/kubernetes.md promises.
type figure struct {
	what string
	goal time.Duration
	seen []time.Duration
}

func (f *figure) add(d time.Duration) { f.seen = append(f.seen, d) }

// check fails if the median is above the goal. A single run may be: the machine has other work, and few CPUs.
func (f *figure) check(t *testing.T) {
	t.Helper()
	if len(f.seen) == 0 {
		t.Errorf("%s: not measured", f.what)
		return
	}
	sorted := slices.Sorted(slices.Values(f.seen))
	median := sorted[len(sorted)/2]
	t.Logf("%s: median %.2f s, worst %.2f s of %d; goal %.2f s; load of the machine: %s",
		f.what, median.Seconds(), sorted[len(sorted)-1].Seconds(), len(sorted), f.goal.Seconds(), machineLoad())
	if median > f.goal {
		t.Errorf("%s: median %s is above the goal %s: %v", f.what, median, f.goal, f.seen)
	}
}

// worst returns the longest time to an answer of the requests that which selects.
func worst(ended []request, which func(request) bool) time.Duration {
	return count(slices.DeleteFunc(slices.Clone(ended), func(r request) bool { return !which(r) })).worst
}

func TestGoals(t *testing.T) {
	w := startWorld(t)
	first, second := w.Nodes()[0], w.Nodes()[1]
	must.OK(t, w.ServicesVia(second))
	run := func(name string, part func(w *world)) {
		t.Run(name, func(t *testing.T) {
			w := &world{t, w.system}
			w.awaitServing()
			part(w)
		})
	}

	run("rate doubles", func(w *world) {
		served := &figure{what: "rate doubled, new segments serve after damping", goal: 10 * time.Second}
		for range runs {
			before := w.uids()
			ended := w.under(func(l *load) {
				l.setRate("shoes", 24)
				time.Sleep(2 * time.Second)
				began := time.Now()
				l.setRate("shoes", 48)
				w.awaitSegments("shoes", 2)
				served.add(time.Since(began) - upAfter)
			})
			w.nothingLost(ended)
			w.keeps(before)
			w.shrink()
		}
		served.check(w.T)
	})

	// Each round moves segments from the second node to the first one, and then cuts the first one off.
	run("replaced and cut off", func(w *world) {
		replaced := &figure{what: "segment replaced, worst answer to a client of the Service", goal: 350 * time.Millisecond}
		moved := &figure{what: "segment replaced, worst answer to a client that follows", goal: objective + 20*time.Millisecond}
		left := &figure{what: "node cut off, its pods have left the Services", goal: 3 * time.Second}
		plainBack := &figure{what: "node cut off, clients of the Service have answers again", goal: 3 * time.Second}
		followingBack := &figure{what: "node cut off, clients of several addresses have answers again", goal: time.Second}
		served := &figure{what: "node cut off, new segments serve", goal: 10 * time.Second}
		w.vacate(first.Name)
		for range runs {
			w.replace(second.Name, replaced, moved)
			w.leadFrom(first.Name)
			w.under(func(l *load) {
				at := time.Now()
				must.OK(w, first.Cut())
				w.await("the Services to change", func(ctx context.Context) error { return w.without(ctx, "clothes", "10.251.1.") })
				left.add(time.Since(at))
				w.await("segments on the other node", func(ctx context.Context) error {
					all, err := w.segments(ctx, "")
					for _, g := range all {
						if g.node == first.Name || !g.status.Ready {
							return fmt.Errorf("%s is on %s, ready %t", g.Name, g.node, g.status.Ready)
						}
					}
					return err
				})
				served.add(time.Since(at))
				time.Sleep(2 * time.Second)
				l.mu.Lock()
				ended, end := slices.Clone(l.ended), time.Now()
				l.mu.Unlock()
				// Clients of clothes have another segment to go to. The other functions have one segment each.
				longest := map[way]time.Duration{}
				for _, f := range l.of("clothes") {
					longest[f.way] = max(longest[f.way], silence(ended, f, at, end))
				}
				plainBack.add(longest[plain])
				followingBack.add(longest[following])
			})
			must.OK(w, first.Mend())
			w.awaitServing()
			w.await("the pods of the first node to end", func(ctx context.Context) error { return w.empty(ctx, first.Name) })
		}
		for _, f := range []*figure{replaced, moved, left, plainBack, followingBack, served} {
			f.check(w.T)
		}
	})
}

// keeps fails if a pod of another function than shoes is another one, or started again.
func (w *world) keeps(before map[string]string) {
	w.Helper()
	after := w.uids()
	for name, uid := range before {
		if !strings.HasPrefix(name, "shoes-") && after[name] != uid {
			w.Errorf("pod %s was %s, is %q", name, uid, after[name])
		}
	}
}

// avoid keeps the planner off a device's GPU while part runs.
func (w *world) avoid(pool, device string, part func()) {
	w.Helper()
	rule := &resourceapi.DeviceTaintRule{ObjectMeta: metav1.ObjectMeta{Name: "repair"}, Spec: resourceapi.DeviceTaintRuleSpec{
		DeviceSelector: &resourceapi.DeviceTaintSelector{Pool: &pool, Device: &device},
		Taint:          resourceapi.DeviceTaint{Key: "repair", Effect: resourceapi.DeviceTaintEffectNoSchedule},
	}}
	must.OK(w, w.api.Create(w.Context(), rule))
	part()
	must.OK(w, w.api.Delete(w.Context(), rule))
}

// vacate moves all segments off a node.
func (w *world) vacate(node string) {
	w.Helper()
	must.Get(w.Kubectl(w.Context(), nil, "cordon", node))(w)
	w.await("the node to be free", func(ctx context.Context) error { return errors.Join(w.empty(ctx, node), w.serving(ctx)) })
	must.Get(w.Kubectl(w.Context(), nil, "uncordon", node))(w)
}

// empty returns nil if a node has no pod of a function.
func (w *world) empty(ctx context.Context, node string) error {
	var pods corev1.PodList
	if err := w.api.List(ctx, &pods, client.InNamespace(shop)); err != nil {
		return err
	}
	for _, p := range pods.Items {
		if p.Spec.NodeName == node {
			return fmt.Errorf("%s is on %s", p.Name, node)
		}
	}
	return nil
}

// replace lets the segments of a GPU go to the other node, under load. It is a GPU with a segment of clothes, and few others.
func (w *world) replace(from string, replaced, moved *figure) {
	w.Helper()
	onGPU := map[string][]placed{}
	for _, g := range must.Get(w.segments(w.Context(), ""))(w) {
		if gpu := g.Device[:strings.Index(g.Device, "-mig")]; g.node == from {
			onGPU[gpu] = append(onGPU[gpu], g)
		}
	}
	var chosen []placed
	for _, own := range onGPU {
		if slices.ContainsFunc(own, func(g placed) bool { return g.Function == "clothes" }) && (chosen == nil || len(own) < len(chosen)) {
			chosen = own
		}
	}
	if chosen == nil {
		w.Fatalf("no GPU of %s has a segment of clothes: %v", from, onGPU)
	}

	var began, end time.Time
	ended := w.under(func(*load) {
		began = time.Now()
		w.avoid(from, chosen[0].Device, func() {
			w.await("the segments to be replaced", func(ctx context.Context) error {
				now, err := w.segments(ctx, "")
				for _, g := range now {
					if slices.ContainsFunc(chosen, func(old placed) bool { return old.Name == g.Name }) {
						return fmt.Errorf("%s is on %s", g.Name, g.node)
					}
				}
				return errors.Join(err, w.serving(ctx))
			})
		})
		end = time.Now()
	})
	w.Logf("%d segments were replaced after %.1f s", len(chosen), end.Sub(began).Seconds())
	if t := count(ended); t.lost+t.busy+t.failed > 0 || t.sent == 0 {
		w.Errorf("requests were lost or refused while segments were replaced: %+v", t)
	}
	for by, f := range map[way]*figure{plain: replaced, following: moved} {
		f.add(worst(ended, func(r request) bool { return r.flow.way == by }))
	}
}

// leadFrom makes the operator on a node the one that works, and waits for another one that could take over.
func (w *world) leadFrom(node string) {
	w.Helper()
	w.await("the operator on "+node+" to lead", func(ctx context.Context) error {
		var lease coordinationv1.Lease
		var pods corev1.PodList
		if err := errors.Join(
			w.api.Get(ctx, client.ObjectKey{Namespace: systemNamespace, Name: "penstock-operator"}, &lease),
			w.api.List(ctx, &pods, client.InNamespace(systemNamespace), client.MatchingLabels{"app.kubernetes.io/name": "penstock-operator"}),
		); err != nil {
			return err
		}
		holder := ""
		if lease.Spec.HolderIdentity != nil {
			holder, _, _ = strings.Cut(*lease.Spec.HolderIdentity, "_")
		}
		leads, ready := "", 0
		for i := range pods.Items {
			p := &pods.Items[i]
			if p.DeletionTimestamp != nil {
				continue
			}
			for _, c := range p.Status.Conditions {
				if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
					ready++
				}
			}
			if p.Name == holder {
				leads = p.Spec.NodeName
			}
		}
		if ready < 2 {
			return fmt.Errorf("%d operators are ready", ready)
		}
		if leads == node {
			return nil
		}
		for i := range pods.Items {
			if p := &pods.Items[i]; p.Name == holder && p.DeletionTimestamp == nil {
				return errors.Join(fmt.Errorf("%s on %s leads", p.Name, leads), w.api.Delete(ctx, p))
			}
		}
		return fmt.Errorf("%q leads", holder)
	})
}

// without returns nil if no endpoint of a function's Service begins with a prefix.
func (w *world) without(ctx context.Context, function, prefix string) error {
	var list discoveryv1.EndpointSliceList
	if err := w.api.List(ctx, &list, client.InNamespace(shop), client.MatchingLabels{discoveryv1.LabelServiceName: function}); err != nil {
		return err
	}
	for _, s := range list.Items {
		for _, e := range s.Endpoints {
			if strings.HasPrefix(e.Addresses[0], prefix) {
				return fmt.Errorf("%s is in the Service", e.Addresses[0])
			}
		}
	}
	return nil
}
