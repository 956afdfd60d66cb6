package kubetest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
)

// The variables that a prepared device sets in a container.
const (
	DeviceVariable = "SIMGPU_DEVICE"
	PoolVariable   = "SIMGPU_POOL"
)

// cdiKind begins the CDI names of simulated devices.
const cdiKind = "penstock.test/gpu"

// Faults are what a simulated driver does wrong. They hold for claims that are prepared afterwards.
type Faults struct {
	// Delay passes before a claim is prepared.
	Delay time.Duration
	// Refuse is the error for each claim. The kubelet tries again.
	Refuse error
	// Wrong gives a container another device than the claim has.
	Wrong bool
}

// Driver is a simulated DRA driver of one node. It publishes GPUs and prepares claims: a container gets the names of
// its devices in variables. Its methods may be used by any goroutine.
type Driver struct {
	node   string
	plugin string // folder of the kubelet's plugins
	cdi    string // folder
	client kubernetes.Interface

	mu     sync.Mutex
	faults Faults
	gpus   []GPU
	helper *kubeletplugin.Helper // nil while stopped
}

// Start starts the driver, again after Stop.
func (d *Driver) Start(ctx context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()

	data := filepath.Join(d.plugin, "plugins", DriverName)
	if err := os.MkdirAll(data, 0o755); err != nil {
		return fmt.Errorf("start the driver of %s: %w", d.node, err)
	}
	helper, err := kubeletplugin.Start(context.WithoutCancel(ctx), (*preparer)(d),
		kubeletplugin.DriverName(DriverName), kubeletplugin.NodeName(d.node), kubeletplugin.KubeClient(d.client),
		kubeletplugin.RegistrarDirectoryPath(filepath.Join(d.plugin, "plugins_registry")),
		kubeletplugin.PluginDataDirectoryPath(data), kubeletplugin.HealthService(false))
	if err != nil {
		return fmt.Errorf("start the driver of %s: %w", d.node, err)
	}
	d.helper = helper
	return d.publishLocked(ctx)
}

// Stop ends the driver, as a crash does: its slices stay until the kubelet removes them.
func (d *Driver) Stop() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.helper != nil {
		d.helper.Stop()
		d.helper = nil
	}
}

// SetFaults replaces the faults.
func (d *Driver) SetFaults(f Faults) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.faults = f
}

// SetGPUs publishes other GPUs.
func (d *Driver) SetGPUs(ctx context.Context, gpus ...GPU) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.gpus = gpus
	return d.publishLocked(ctx)
}

func (d *Driver) publishLocked(ctx context.Context) error {
	published, err := resourceSlices(d.node, d.gpus)
	if err != nil {
		return err
	}
	return d.helper.PublishResources(ctx, resourceslice.DriverResources{
		Pools: map[string]resourceslice.Pool{d.node: {Slices: published}},
	})
}

// preparer is the Driver as the kubelet sees it.
type preparer Driver

func (p *preparer) PrepareResourceClaims(ctx context.Context, claims []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	p.mu.Lock()
	faults := p.faults
	p.mu.Unlock()

	select {
	case <-time.After(faults.Delay):
	case <-ctx.Done():
		return nil, ctx.Err()
	}

	results := map[types.UID]kubeletplugin.PrepareResult{}
	for _, claim := range claims {
		devices, err := p.prepare(claim, faults)
		results[claim.UID] = kubeletplugin.PrepareResult{Devices: devices, Err: err}
	}
	return results, nil
}

// prepare writes a CDI file, which sets the variables.
func (p *preparer) prepare(claim *resourceapi.ResourceClaim, faults Faults) ([]kubeletplugin.Device, error) {
	if faults.Refuse != nil {
		return nil, faults.Refuse
	}

	type edits struct {
		Env []string `json:"env"`
	}
	type device struct {
		Name  string `json:"name"`
		Edits edits  `json:"containerEdits"`
	}
	var file struct {
		Version string   `json:"cdiVersion"`
		Kind    string   `json:"kind"`
		Devices []device `json:"devices"`
	}
	file.Version, file.Kind = "0.6.0", cdiKind

	var prepared []kubeletplugin.Device
	for _, r := range claim.Status.Allocation.Devices.Results {
		if r.Driver != DriverName {
			continue
		}
		name, id := r.Device, string(claim.UID)+"-"+r.Request
		if faults.Wrong {
			name = "not-" + name
		}
		file.Devices = append(file.Devices, device{id, edits{[]string{DeviceVariable + "=" + name, PoolVariable + "=" + r.Pool}}})
		prepared = append(prepared, kubeletplugin.Device{
			Requests: []string{r.Request}, PoolName: r.Pool, DeviceName: r.Device, CDIDeviceIDs: []string{cdiKind + "=" + id},
		})
	}

	content, err := json.Marshal(file)
	if err != nil {
		return nil, err
	}
	return prepared, os.WriteFile(p.claimFile(claim.UID), content, 0o644)
}

func (p *preparer) claimFile(claim types.UID) string {
	return filepath.Join(p.cdi, "claim-"+string(claim)+".json")
}

func (p *preparer) UnprepareResourceClaims(_ context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	results := map[types.UID]error{}
	for _, claim := range claims {
		err := os.Remove(p.claimFile(claim.UID))
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		results[claim.UID] = err
	}
	return results, nil
}

func (p *preparer) HandleError(_ context.Context, err error, message string) {
	fmt.Fprintf(os.Stderr, "simulated driver of %s: %s: %v\n", p.node, message, err)
}

func (p *preparer) WatchHealthStatus(context.Context, chan<- kubeletplugin.DeviceHealthReport) error {
	return kubeletplugin.ErrHealthNotSupported
}
