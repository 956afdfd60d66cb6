package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"sync"

	"github.com/rs/zerolog"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/penstock/penstock/cluster/api/v1alpha1"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/private"
)

// planFile is the name of the file with the newest plan, in the node's runtime folder.
const planFile = "gpuplan.json"

// Plan is what the agent knows of its GPUPlan.
type Plan struct {
	// Object is the newest one, not to be changed; nil: there was none.
	Object *v1alpha1.GPUPlan
	// Gone: the API server has none now.
	Gone bool
}

// Watch follows the GPUPlan of that name until ctx ends. It needs the verbs list and watch. It never asks for another object:
// a fleet has thousands of agents.
//
// The last plan is kept in the folder dir. An agent that starts while the API server is gone begins with that one.
func Watch(ctx context.Context, config *rest.Config, name, dir string, log zerolog.Logger) (<-chan Plan, error) {
	client, err := newClient(config)
	if err != nil {
		return nil, fmt.Errorf("watch GPUPlan %s: %w", name, err)
	}
	w := &watcher{plans: make(chan Plan, 1), dir: dir, log: log}
	w.plan.Object, err = w.load(name)
	if err != nil {
		log.Warn().Err(err).Msg("cannot read the last plan; waiting for the API server")
	}
	w.publish()

	store, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.NewListWatchFromClient(client, "gpuplans", "", fields.OneTermEqualSelector("metadata.name", name)),
		ObjectType:    &v1alpha1.GPUPlan{},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    func(object any) { w.take(object) },
			UpdateFunc: func(_, object any) { w.take(object) },
			DeleteFunc: func(any) { w.lose() },
		},
	})
	go func() {
		if cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) && len(store.List()) == 0 {
			w.lose()
		}
	}()
	go informer.RunWithContext(ctx)
	return w.plans, nil
}

// newClient returns a client for this module's objects.
func newClient(config *rest.Config) (*rest.RESTClient, error) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	config = rest.CopyConfig(config)
	config.APIPath, config.GroupVersion = "/apis", &v1alpha1.GroupVersion
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	return rest.RESTClientFor(config)
}

// watcher publishes plans. The informer's goroutines call it.
type watcher struct {
	plans chan Plan // holds the newest plan until it is taken
	dir   string    // of planFile
	log   zerolog.Logger

	mu   sync.Mutex
	plan Plan // guarded by mu
}

// take takes a plan of the API server.
func (w *watcher) take(object any) {
	plan, ok := object.(*v1alpha1.GPUPlan)
	if !ok {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.plan.Gone {
		w.log.Info().Msg("GPUPlan exists again")
	}
	w.plan = Plan{Object: plan}
	if err := w.save(plan); err != nil {
		w.log.Warn().Err(err).Msg("cannot keep the plan; an agent that starts while the API server is gone has none")
	}
	w.publish()
}

// lose notes that the API server has no plan.
func (w *watcher) lose() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.log.Warn().Msg("GPUPlan does not exist; its segments drain")
	w.plan.Gone = true
	w.publish()
}

// publish replaces the plan in the channel, if nothing has taken it yet. The caller holds mu, or no other goroutine is
// there.
func (w *watcher) publish() {
	select {
	case <-w.plans:
	default:
	}
	w.plans <- w.plan
}

func (w *watcher) save(plan *v1alpha1.GPUPlan) error {
	data, err := json.Marshal(plan)
	if err != nil {
		return fmt.Errorf("encode plan: %w", err)
	}
	folder, err := private.MakeFolder(w.dir, 0o700) // the node may not have made it yet
	if err != nil {
		return err
	}
	defer folder.Close()
	return folder.ReplaceFile(planFile, data)
}

// maxPlanBytes bounds a kept plan. etcd takes no larger objects.
const maxPlanBytes = 2 << 20

// load reads the kept plan; nil if there is none of that name.
func (w *watcher) load(name string) (*v1alpha1.GPUPlan, error) {
	path := filepath.Join(w.dir, planFile)
	data, err := control.ReadFile(path, maxPlanBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var plan v1alpha1.GPUPlan
	if err := json.Unmarshal(data, &plan); err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	if plan.Name != name {
		return nil, fmt.Errorf("read %s: it is of GPUPlan %q, want %q", path, plan.Name, name)
	}
	return &plan, nil
}
