package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/penstock/penstock/cluster/api/v1alpha1"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/wait"
)

// fakeAPI is an API server with at most one GPUPlan, gpu-1. It answers list and watch of that object only.
type fakeAPI struct {
	*httptest.Server
	t *testing.T

	mu      sync.Mutex
	version int
	plan    *v1alpha1.GPUPlan
	changed chan struct{} // closed at the next change
}

func newFakeAPI(t *testing.T) *fakeAPI {
	f := &fakeAPI{t: t, version: 1, changed: make(chan struct{})}
	f.Server = httptest.NewServer(http.HandlerFunc(f.serve))
	t.Cleanup(f.gone)
	return f
}

// gone ends the server, with all connections.
func (f *fakeAPI) gone() {
	f.CloseClientConnections()
	f.Close()
}

// set changes the GPUPlan; nil deletes it.
func (f *fakeAPI) set(plan *v1alpha1.GPUPlan) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.version++
	if f.plan = plan; plan != nil {
		f.plan = plan.DeepCopy()
		f.plan.APIVersion, f.plan.Kind, f.plan.ResourceVersion = v1alpha1.GroupVersion.String(), "GPUPlan", strconv.Itoa(f.version)
	}
	close(f.changed)
	f.changed = make(chan struct{})
}

func (f *fakeAPI) now() (plan *v1alpha1.GPUPlan, version string, changed <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.plan, strconv.Itoa(f.version), f.changed
}

func (f *fakeAPI) serve(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	if r.Method != http.MethodGet || r.URL.Path != "/apis/penstock.io/v1alpha1/gpuplans" || q.Get("fieldSelector") != "metadata.name=gpu-1" {
		f.t.Errorf("the agent asks for %s %s", r.Method, r.URL)
		http.Error(w, "forbidden", http.StatusForbidden)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	plan, version, changed := f.now()
	if q.Get("watch") == "" {
		list := v1alpha1.GPUPlanList{
			TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "GPUPlanList"}, ListMeta: metav1.ListMeta{ResourceVersion: version},
		}
		if plan != nil {
			list.Items = []v1alpha1.GPUPlan{*plan}
		}
		json.NewEncoder(w).Encode(list)
		return
	}
	if q.Get("sendInitialEvents") != "" {
		http.Error(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Invalid","code":422}`, http.StatusUnprocessableEntity)
		return
	}

	send := func(kind string, object *v1alpha1.GPUPlan) {
		json.NewEncoder(w).Encode(map[string]any{"type": kind, "object": object})
		w.(http.Flusher).Flush()
	}
	last := plan
	if plan != nil && q.Get("resourceVersion") != version {
		send("ADDED", plan)
	}
	w.(http.Flusher).Flush()
	for {
		select {
		case <-r.Context().Done():
			return
		case <-changed:
		}
		plan, version, changed = f.now()
		switch {
		case plan == nil && last != nil:
			deleted := last.DeepCopy()
			deleted.ResourceVersion = version
			send("DELETED", deleted)
		case plan != nil && last == nil:
			send("ADDED", plan)
		case plan != nil:
			send("MODIFIED", plan)
		}
		last = plan
	}
}

func (f *fakeAPI) watch(ctx context.Context, dir string) <-chan Plan {
	f.t.Helper()
	plans, err := Watch(ctx, &rest.Config{Host: f.URL}, "gpu-1", dir, zerolog.Nop())
	must.OK(f.t, err)
	return plans
}

// becomes waits for a plan with so many segments; -1: with no object.
func becomes(t *testing.T, plans <-chan Plan, segments int, gone bool) {
	t.Helper()
	var got string
	timeout := time.After(wait.Patience)
	for {
		select {
		case p := <-plans:
			have := -1
			if p.Object != nil {
				have = len(p.Object.Spec.Segments)
			}
			if have == segments && p.Gone == gone {
				return
			}
			got = fmt.Sprintf("%d segments, gone: %v", have, p.Gone)
		case <-timeout:
			t.Fatalf("the last plan has %s, want %d segments, gone: %v", got, segments, gone)
		}
	}
}

func TestWatch(t *testing.T) {
	t.Parallel()
	api, dir := newFakeAPI(t), filepath.Join(t.TempDir(), "node")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	plans := api.watch(ctx, dir)
	becomes(t, plans, -1, true)
	api.set(planOf(segmentOf("face-1", "face")))
	becomes(t, plans, 1, false)
	api.set(planOf(segmentOf("face-1", "face"), segmentOf("face-2", "face")))
	becomes(t, plans, 2, false)

	// Another agent begins with the kept plan, and follows the API server.
	other, end := context.WithCancel(t.Context())
	becomes(t, api.watch(other, dir), 2, false)
	end()

	api.set(nil)
	becomes(t, plans, 2, true) // its segments drain
	api.set(planOf())
	becomes(t, plans, 0, false)
	cancel()
}

// Without an API server an agent keeps the last plan, also an agent that is started meanwhile.
func TestWatchWithoutServer(t *testing.T) {
	t.Parallel()
	api, dir := newFakeAPI(t), filepath.Join(t.TempDir(), "node")
	api.set(planOf(segmentOf("face-1", "face")))
	first := api.watch(t.Context(), dir)
	becomes(t, first, 1, false)
	api.gone()
	second := api.watch(t.Context(), dir)
	becomes(t, second, 1, false)
	select {
	case p := <-first:
		t.Errorf("the first agent has another plan: %+v", p)
	case p := <-second:
		t.Errorf("the second agent has another plan: %+v", p)
	case <-time.After(100 * time.Millisecond): // it has asked and failed by then
	}

	for name, text := range map[string]string{
		"nothing": "", "no JSON": "\x00", "half": `{"metadata":{"name":"gpu-1"}`, "another plan": `{"metadata":{"name":"gpu-2"}}`,
	} {
		must.OK(t, os.WriteFile(filepath.Join(dir, planFile), []byte(text), 0o600))
		select {
		case p := <-api.watch(t.Context(), dir):
			if p.Object != nil || p.Gone {
				t.Errorf("%s: the agent has %+v, want no plan", name, p)
			}
		case <-time.After(wait.Patience):
			t.Errorf("%s: the agent says nothing", name)
		}
	}
}
