package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/penstock/penstock/cluster/api/v1alpha1"
	"github.com/penstock/penstock/cluster/kubetest"
	"github.com/penstock/penstock/cluster/kubetest/tools"
	"github.com/penstock/penstock/internal/testing/must"
)

func TestMain(m *testing.M) { os.Exit(kubetest.Isolated(m.Run)) }

// world is a system under load.
type world struct {
	*testing.T
	*system
}

// startWorld starts a system whose functions serve.
func startWorld(t *testing.T) *world {
	t.Helper()
	if testing.Short() {
		t.Skip("not with -short: make test-cluster runs it")
	}
	o := options{images: "../../bin/images", chart: "../chart"}
	began := time.Now()
	s, err := start(t.Context(), o)
	if errors.Is(err, kubetest.ErrUnsupported) || errors.Is(err, tools.ErrMissing) {
		t.Skip(err)
	}
	must.OK(t, err)
	t.Cleanup(func() { must.OK(t, s.Stop()) })
	t.Logf("two nodes are ready after %.1f s", time.Since(began).Seconds())

	began = time.Now()
	must.OK(t, s.install(t.Context(), o))
	for _, f := range functions {
		must.OK(t, s.create(t.Context(), f))
	}
	w := &world{t, s}
	w.awaitServing()
	t.Logf("%d functions serve after another %.1f s", len(functions), time.Since(began).Seconds())
	return w
}

// await waits until fact returns nil, or fails the test.
func (w *world) await(what string, fact func(context.Context) error) time.Duration {
	w.Helper()
	began := time.Now()
	if err := await(w.Context(), fact); err != nil {
		w.Fatalf("wait for %s: %v", what, err)
	}
	return time.Since(began)
}

func (w *world) awaitServing() time.Duration {
	w.Helper()
	return w.await("functions to serve", w.serving)
}

// steady are the rates of the tests. All fit what Functions ask for at least.
var steady = map[string]float64{"clothes": 60, "faces": 12, "shoes": 12}

// under runs a part of a test under load, and returns how the requests ended.
func (w *world) under(part func(*load)) []request {
	w.Helper()
	l := &load{}
	must.OK(w, w.startLoad(w.Context(), l, steady))
	time.Sleep(2 * time.Second)
	part(l)
	time.Sleep(2 * time.Second)
	ended := l.close()
	for _, by := range []way{plain, following} {
		t := count(slices.DeleteFunc(slices.Clone(ended), func(r request) bool { return r.flow.way != by }))
		w.Logf("clients that know %s: %+v; load of the machine: %s", by, t, machineLoad())
	}
	return ended
}

// nothingLost fails if a request has no answer, or a wrong one.
func (w *world) nothingLost(ended []request) {
	w.Helper()
	if t := count(ended); t.lost+t.failed > 0 || t.sent == 0 {
		w.Errorf("requests were lost: %+v", t)
	}
}

// machineLoad is the average number of processes that ran or wanted to in the last minute.
func machineLoad() string {
	text, _ := os.ReadFile("/proc/loadavg")
	first, _, _ := strings.Cut(string(text), " ")
	return first
}

// uids returns the UIDs and restarts of the functions' pods.
func (w *world) uids() map[string]string {
	w.Helper()
	var pods corev1.PodList
	must.OK(w, w.api.List(w.Context(), &pods, client.InNamespace(shop)))
	all := map[string]string{}
	for _, p := range pods.Items {
		if p.DeletionTimestamp != nil {
			continue
		}
		restarts := 0
		for _, c := range p.Status.ContainerStatuses {
			restarts += int(c.RestartCount)
		}
		all[p.Name] = fmt.Sprintf("%s, %d restarts", p.UID, restarts)
	}
	return all
}

// setMin sets the least rate that is planned for a function.
func (w *world) setMin(function string, rate int) {
	w.Helper()
	var f v1alpha1.Function
	must.OK(w, w.api.Get(w.Context(), client.ObjectKey{Namespace: shop, Name: function}, &f))
	before := f.DeepCopy()
	f.Spec.Rate.Min = resource.NewQuantity(int64(rate), resource.DecimalSI)
	must.OK(w, w.api.Patch(w.Context(), &f, client.MergeFrom(before)))
}

// awaitSegments waits until a function has n segments that serve, and nothing changes any more.
func (w *world) awaitSegments(function string, n int) time.Duration {
	w.Helper()
	return w.await(fmt.Sprintf("%d segments of %s", n, function), func(ctx context.Context) error {
		now, err := w.segments(ctx, function)
		if err == nil && len(now) != n {
			err = fmt.Errorf("it has %d", len(now))
		}
		if err == nil {
			err = w.serving(ctx)
		}
		return err
	})
}

// grow changes the plan: shoes get a second segment.
func (w *world) grow() { w.setMin("shoes", 70) }

// shrink takes that back. A plan shrinks after minutes, so it makes the Function again.
func (w *world) shrink() {
	w.Helper()
	must.OK(w, w.api.Delete(w.Context(), &v1alpha1.Function{ObjectMeta: metav1.ObjectMeta{Namespace: shop, Name: "shoes"}}))
	w.await("shoes to end", func(ctx context.Context) error {
		all, err := w.segments(ctx, "shoes")
		if err == nil && len(all) > 0 {
			err = fmt.Errorf("it has %d segments", len(all))
		}
		if err == nil {
			err = w.quiet(ctx)
		}
		return err
	})
	must.OK(w, w.create(w.Context(), functions[2]))
	w.awaitSegments("shoes", 1)
}

// killPrograms kills all processes of a program, as kill -9 does, and returns their number.
func killPrograms(name string) (n int) {
	paths, _ := filepath.Glob("/proc/[0-9]*/exe")
	for _, path := range paths {
		if target, err := os.Readlink(path); err == nil && filepath.Base(target) == name {
			var pid int
			if _, err := fmt.Sscanf(path, "/proc/%d/exe", &pid); err == nil && unix.Kill(pid, unix.SIGKILL) == nil {
				n++
			}
		}
	}
	return n
}

func TestFaults(t *testing.T) {
	w := startWorld(t)
	first, second := w.Nodes()[0], w.Nodes()[1]
	run := func(name string, part func(w *world)) bool {
		return t.Run(name, func(t *testing.T) {
			w := &world{t, w.system}
			w.awaitServing()
			part(w)
		})
	}

	run("programs of nodes start again", func(w *world) {
		before := w.uids()
		ended := w.under(func(*load) {
			for _, node := range w.Nodes() {
				// A kubelet ends if containerd is gone when it starts.
				for _, p := range []*kubetest.Process{node.Containerd, node.Kubelet, node.Proxy} {
					p.Kill()
					must.OK(w, p.Start())
					must.OK(w, node.AwaitContainerd(w.Context()))
				}
			}
			w.awaitServing()
		})
		w.nothingLost(ended)
		if after := w.uids(); !maps.Equal(before, after) {
			w.Errorf("pods changed from %v to %v", before, after)
		}
	})

	run("node is drained", func(w *world) {
		ended := w.under(func(*load) {
			_, err := w.Kubectl(w.Context(), nil, "drain", first.Name, "--delete-emptydir-data", "--ignore-daemonsets", "--force", "--timeout=120s")
			must.OK(w, err)
			w.awaitServing()
		})
		w.nothingLost(ended)
		must.Get(w.Kubectl(w.Context(), nil, "uncordon", first.Name))(w)
	})

	// The pod serves until its clients have left, and another one of its name starts then.
	run("pod is deleted", func(w *world) {
		pod := must.Get(w.segments(w.Context(), "clothes"))(w)[0].status.Pod
		before := w.uids()
		ended := w.under(func(*load) {
			must.OK(w, w.api.Delete(w.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: shop, Name: pod}}))
			took := w.await("another pod", func(ctx context.Context) error {
				if uid := w.uids()[pod]; uid == before[pod] || uid == "" {
					return fmt.Errorf("it is %q", uid)
				}
				return w.serving(ctx)
			})
			w.Logf("another pod serves after %.1f s", took.Seconds())
			if took >= time.Minute {
				w.Errorf("clients did not leave the pod: another one serves after %s", took)
			}
		})
		w.nothingLost(ended)
	})

	run("operator is killed in a change", func(w *world) {
		before := w.uids()
		killed := 0
		ended := w.under(func(*load) {
			w.grow()
			w.await("a change", func(ctx context.Context) error {
				if w.quiet(ctx) == nil {
					return errors.New("there is none")
				}
				return nil
			})
			killed = killPrograms("penstock-operator")
			w.awaitSegments("shoes", 2)
		})
		w.nothingLost(ended)
		if killed == 0 {
			w.Error("no operator was killed")
		}
		w.keeps(before)
	})
	w.shrink()

	run("driver is slow", func(w *world) {
		second.Driver.SetFaults(kubetest.Faults{Delay: 10 * time.Second})
		defer second.Driver.SetFaults(kubetest.Faults{})
		ended := w.under(func(*load) {
			w.grow()
			w.awaitSegments("shoes", 2)
		})
		w.nothingLost(ended)
	})
	w.shrink()

	run("driver is gone", func(w *world) {
		ended := w.under(func(*load) {
			for _, node := range w.Nodes() {
				node.Driver.Stop()
			}
			w.grow()
			time.Sleep(5 * time.Second)
			for _, node := range w.Nodes() {
				must.OK(w, node.Driver.Start(w.Context()))
			}
			w.awaitSegments("shoes", 2)
		})
		w.nothingLost(ended)
	})
	w.shrink()

	run("pod never gets ready", func(w *world) {
		for _, node := range w.Nodes() {
			node.Driver.SetFaults(kubetest.Faults{Refuse: errors.New("the GPU is busy")})
		}
		ended := w.under(func(*load) {
			w.grow()
			w.await("the change to fail", func(ctx context.Context) error {
				var f v1alpha1.Function
				if err := w.api.Get(ctx, client.ObjectKey{Namespace: shop, Name: "shoes"}, &f); err != nil {
					return err
				}
				for _, c := range f.Status.Conditions {
					if c.Type == v1alpha1.Planned && strings.Contains(c.Message, "undone") {
						return nil
					}
				}
				return fmt.Errorf("its conditions are %v", f.Status.Conditions)
			})
		})
		w.nothingLost(ended)
		for _, node := range w.Nodes() {
			node.Driver.SetFaults(kubetest.Faults{})
		}
		if all := must.Get(w.segments(w.Context(), "shoes"))(w); len(all) != 1 {
			w.Errorf("shoes has %d segments", len(all))
		}
	})
}
