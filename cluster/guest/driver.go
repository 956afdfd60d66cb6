package guest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"sync"
	"time"

	"github.com/rs/zerolog"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/penstock/penstock/cluster/api/v1alpha1"
)

const (
	// DriverName is the name of the driver, and DeviceClass that of the class of its claims.
	DriverName  = "guest.penstock.io"
	DeviceClass = "guest.penstock.io"
)

const (
	// againEvery is how often the driver looks for what no event announces.
	againEvery = time.Second
	// refusedFor is how long a device has the taint after a pod did not get it.
	refusedFor = 2 * time.Minute
)

// Options configures a driver.
type Options struct {
	Node   string
	Client kubernetes.Interface
	// Plan reads a GPUPlan.
	Plan func(ctx context.Context, name string) (*v1alpha1.GPUPlan, error)
	// Kubelet and CDI are the folders of the kubelet and of CDI files, which have the same paths on the node.
	Kubelet, CDI string
	// GPUKind is the kind of the CDI devices that the GPU's vendor makes. They are named for UUIDs.
	GPUKind string
	// Library is the library that makes kernels wait.
	Library string
	// PerGPU is the max number of guests of a GPU.
	PerGPU int
	Log    zerolog.Logger
	Now    func() time.Time
}

// Driver is a running driver. The kubelet calls it on any goroutine.
type Driver struct {
	Options
	publish func(context.Context, []resourceapi.Device) error
	changed chan struct{}     // something may have to be published
	known   map[types.UID]gpu // checked pods; of the goroutine of Run

	mu        sync.Mutex
	gpus      []gpu
	offered   map[string]gpu       // by device
	refused   map[string]time.Time // devices that a pod did not get
	published []resourceapi.Device
}

// New returns a driver. Run makes it work.
func New(o Options) *Driver {
	return &Driver{Options: o, changed: make(chan struct{}, 1), refused: map[string]time.Time{}}
}

// Run publishes devices and prepares claims until ctx ends.
func (d *Driver) Run(ctx context.Context) error {
	library, err := os.ReadFile(d.Library)
	if err == nil {
		err = errors.Join(os.MkdirAll(d.file("words"), 0o700), os.MkdirAll(d.file("lib"), 0o755), os.MkdirAll(d.CDI, 0o755))
	}
	if err == nil {
		err = replace(d.file("lib", filepath.Base(libraryPath)), library)
	}
	if err != nil {
		return fmt.Errorf("install library for guests: %w", err)
	}

	factory := informers.NewSharedInformerFactoryWithOptions(d.Client, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.LabelSelector, o.FieldSelector = PodSelector, "spec.nodeName="+d.Node
	}))
	pods := factory.Core().V1().Pods()
	wake := func(any) { d.wake() }
	if _, err := pods.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: wake, UpdateFunc: func(any, any) { d.wake() }, DeleteFunc: wake,
	}); err != nil {
		return fmt.Errorf("watch pods: %w", err)
	}
	factory.Start(ctx.Done())
	defer factory.Shutdown()
	if !cache.WaitForCacheSync(ctx.Done(), pods.Informer().HasSynced) {
		return nil
	}

	helper, err := kubeletplugin.Start(ctx, d,
		kubeletplugin.DriverName(DriverName), kubeletplugin.NodeName(d.Node), kubeletplugin.KubeClient(d.Client),
		kubeletplugin.RegistrarDirectoryPath(filepath.Join(d.Kubelet, "plugins_registry")),
		kubeletplugin.PluginDataDirectoryPath(d.file()), kubeletplugin.HealthService(false))
	if err != nil {
		return fmt.Errorf("register with the kubelet: %w", err)
	}
	defer helper.Stop()
	d.publish = func(ctx context.Context, all []resourceapi.Device) error {
		return helper.PublishResources(ctx, resourceslice.DriverResources{
			Pools: map[string]resourceslice.Pool{d.Node: {Slices: []resourceslice.Slice{{Devices: all}}}},
		})
	}

	tick := time.NewTicker(againEvery)
	defer tick.Stop()
	var again bool
	for d.wake(); ; {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			if !again {
				continue
			}
		case <-d.changed:
		}
		list, err := pods.Lister().List(labels.Everything())
		if err == nil {
			again, err = d.look(ctx, list)
		}
		if err != nil {
			d.Log.Error().Err(err).Msg("cannot publish devices; trying again")
			again = true
		}
	}
}

func (d *Driver) wake() {
	select {
	case d.changed <- struct{}{}:
	default: // it will look anyway
	}
}

// look publishes the devices if they have changed, and reports whether to look again without an event.
func (d *Driver) look(ctx context.Context, pods []*corev1.Pod) (again bool, err error) {
	nodes, again, err := d.nodes(ctx, pods)
	if err != nil {
		return true, err
	}

	d.mu.Lock()
	defer d.mu.Unlock()
	d.gpus = serving(nodes)
	d.offered = map[string]gpu{}
	for _, g := range d.gpus {
		for i := range d.PerGPU {
			d.offered[g.deviceName(i)] = g
		}
	}
	used, usedPods, err := d.preparedLocked()
	if err != nil {
		return true, err
	}
	for name, at := range d.refused {
		if _, ok := d.offered[name]; ok || d.Now().Sub(at) > refusedFor {
			delete(d.refused, name)
			continue
		}
		used, again = append(used, name), true
	}
	if err := d.sweepLocked(usedPods); err != nil {
		return true, fmt.Errorf("remove links to busy words: %w", err)
	}
	all := devices(d.gpus, d.PerGPU, used)
	if d.published != nil && reflect.DeepEqual(all, d.published) {
		return again, nil
	}
	if err := d.publish(ctx, all); err != nil {
		return true, err
	}
	d.published = append([]resourceapi.Device{}, all...) // not nil
	d.Log.Info().Int("gpus", len(d.gpus)).Int("devices", len(all)).Msg("published devices for guests")
	return again, nil
}

// PrepareResourceClaims implements kubeletplugin.DRAPlugin.
func (d *Driver) PrepareResourceClaims(_ context.Context, claims []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	defer d.wake()
	results := map[types.UID]kubeletplugin.PrepareResult{}
	for _, claim := range claims {
		prepared, err := d.prepareLocked(claim)
		results[claim.UID] = kubeletplugin.PrepareResult{Devices: prepared, Err: err}
	}
	return results, nil
}

// UnprepareResourceClaims implements kubeletplugin.DRAPlugin.
func (d *Driver) UnprepareResourceClaims(_ context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	defer d.wake()
	results := map[types.UID]error{}
	for _, claim := range claims {
		results[claim.UID] = d.unprepareLocked(claim.UID)
	}
	return results, nil
}

// HandleError implements kubeletplugin.DRAPlugin.
func (d *Driver) HandleError(_ context.Context, err error, message string) {
	d.Log.Error().Err(err).Msg(message)
}

// WatchHealthStatus implements kubeletplugin.DRAPlugin.
func (d *Driver) WatchHealthStatus(context.Context, chan<- kubeletplugin.DeviceHealthReport) error {
	return kubeletplugin.ErrHealthNotSupported
}
