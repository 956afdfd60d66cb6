package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/tarball"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/penstock/penstock/cluster/api/v1alpha1"
	"github.com/penstock/penstock/cluster/chart"
	"github.com/penstock/penstock/cluster/kubetest"
	"github.com/penstock/penstock/cluster/operator"
)

const (
	systemNamespace = "penstock-system"
	shop            = "shop" // the namespace of the functions
	fleetName       = "pool"
)

// podNetwork has the addresses of all pods. Clients that follow trust it.
var podNetwork = netip.MustParsePrefix("10.251.0.0/16")

// functionSpec is a function of the demo.
type functionSpec struct {
	name, model  string
	pictureBytes int
	slo          time.Duration
	port         int32
	min, max     int // requests per second
}

// The objective is long: a machine without a GPU runs the models, the clients and the whole cluster.
const objective = 500 * time.Millisecond

// functions are the demo's. A simulated segment serves segmentRate, so that they need 5 of them: with two per GPU, on both nodes.
var functions = []functionSpec{
	{"clothes", "fashion", 28 * 28, objective, 5001, 100, 200},
	{"faces", "face", 128 * 128 * 3, objective, 5002, 30, 80},
	{"shoes", "fashion", 28 * 28, objective, 5003, 30, 80},
}

// segmentRate is how many requests per second the profile says that a segment serves.
const segmentRate = 40

// profile says that a model runs on half a GPU, and nowhere else.
var profile = fmt.Sprintf("Mig instance,Batch size,Workload Number,Throughput,Latency\n3,4,1,%d,0.1\n", segmentRate)

// options name the folders of what is installed.
type options struct {
	images string // folder of archives
	chart  string // folder
}

// tag returns the tag of the images.
func (o options) tag() (string, error) {
	manifest, err := tarball.LoadManifest(func() (io.ReadCloser, error) { return os.Open(filepath.Join(o.images, "penstock.tar")) })
	if err != nil {
		return "", fmt.Errorf("read the images, which make -C cluster images builds: %w", err)
	}
	_, tag, found := strings.Cut(manifest[0].RepoTags[0], ":")
	if !found {
		return "", fmt.Errorf("read the images: %s has no tag", manifest[0].RepoTags[0])
	}
	return tag, nil
}

// system is a cluster with Penstock installed.
type system struct {
	*kubetest.Cluster
	api client.Client
}

// start starts two nodes and installs Penstock. The first node has one GPU, the second one three: so the functions are on both
// nodes, and the second one has room for all.
func start(ctx context.Context, o options) (*system, error) {
	c, err := kubetest.StartControlPlane(ctx, kubetest.Options{
		Scheduler: true, Controllers: true, Manifests: []string{filepath.Join(o.chart, "crds")},
	})
	if err != nil {
		return nil, err
	}
	s := &system{Cluster: c}
	if s.api, err = client.New(c.Admin(), client.Options{Scheme: operator.Scheme()}); err == nil {
		err = s.startNodes(ctx, o)
	}
	if err != nil {
		return nil, errors.Join(err, c.Stop())
	}
	return s, nil
}

func (s *system) startNodes(ctx context.Context, o options) error {
	var archives []string
	for _, name := range []string{"penstock", "penstock-agent", "penstock-operator"} {
		archives = append(archives, filepath.Join(o.images, name+".tar"))
	}
	err := s.StartNodes(ctx, 2, kubetest.NodeOptions{
		Labels: map[string]string{"gpus": "penstock"}, GPUs: make([]kubetest.GPU, 1), Images: archives,
	})
	if err != nil {
		return err
	}
	return s.Nodes()[1].Driver.SetGPUs(ctx, make([]kubetest.GPU, 3)...)
}

// install installs the chart, and gives the operator a fleet and profiles.
func (s *system) install(ctx context.Context, o options) error {
	tag, err := o.tag()
	if err != nil {
		return err
	}
	objects, err := render(o.chart, map[string]any{"image": map[string]any{"tag": tag, "pullPolicy": "Never"}})
	if err != nil {
		return err
	}
	for _, name := range []string{systemNamespace, shop} {
		if err := s.api.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
			return err
		}
	}
	if _, err := s.Kubectl(ctx, objects, "apply", "--server-side", "-f", "-"); err != nil {
		return err
	}

	fleet := &v1alpha1.Fleet{
		ObjectMeta: metav1.ObjectMeta{Name: fleetName},
		Spec: v1alpha1.FleetSpec{
			NodeSelector: map[string]string{"gpus": "penstock"},
			Damping:      v1alpha1.Damping{UpAfter: metav1.Duration{Duration: upAfter}, Between: metav1.Duration{Duration: 5 * time.Second}},
			Node:         v1alpha1.NodeTemplate{Image: "penstock:" + tag},
		},
	}
	if err := s.api.Create(ctx, fleet); err != nil {
		return err
	}
	for _, model := range []string{"fashion", "face"} {
		p := &v1alpha1.Profile{
			ObjectMeta: metav1.ObjectMeta{Name: model},
			Spec:       v1alpha1.ProfileSpec{Model: model, GPU: "a100-80", CSV: profile},
		}
		if err := s.api.Create(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

// upAfter is how long a rate must be higher before the plan grows.
const upAfter = 3 * time.Second

// render returns the objects of a chart.
func render(folder string, values map[string]any) ([]byte, error) {
	files, err := chart.Render(folder, systemNamespace, values)
	if err != nil {
		return nil, err
	}
	var objects bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if filepath.Ext(name) == ".yaml" && strings.TrimSpace(files[name]) != "" {
			fmt.Fprintf(&objects, "---\n%s\n", files[name])
		}
	}
	return objects.Bytes(), nil
}

// create creates a Function.
func (s *system) create(ctx context.Context, f functionSpec) error {
	least, most := resource.NewQuantity(int64(f.min), resource.DecimalSI), resource.NewQuantity(int64(f.max), resource.DecimalSI)
	return s.api.Create(ctx, &v1alpha1.Function{
		ObjectMeta: metav1.ObjectMeta{Namespace: shop, Name: f.name},
		Spec: v1alpha1.FunctionSpec{
			Model: f.model, SLO: metav1.Duration{Duration: f.slo}, Port: f.port, Rate: v1alpha1.RateSpec{Min: least, Max: most},
		},
	})
}

// hang is longer than anything that the system does, on a loaded machine, too.
const hang = 3 * time.Minute

// await polls until fact returns nil. After hang it fails with the last error of fact.
func await(ctx context.Context, fact func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, hang)
	defer cancel()
	for {
		err := fact(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w; the last answer was: %w", context.Cause(ctx), err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// serving returns nil if all segments of all functions serve, and no change is being made.
func (s *system) serving(ctx context.Context) error {
	var list v1alpha1.FunctionList
	if err := s.api.List(ctx, &list, client.InNamespace(shop)); err != nil {
		return err
	}
	for _, f := range list.Items {
		for _, name := range []string{v1alpha1.Planned, v1alpha1.Ready} {
			c := meta.FindStatusCondition(f.Status.Conditions, name)
			if c == nil {
				return fmt.Errorf("function %s has no condition %s", f.Name, name)
			}
			if c.Status != metav1.ConditionTrue {
				return fmt.Errorf("function %s is not %s: %s", f.Name, name, c.Message)
			}
		}
	}
	return s.quiet(ctx)
}

// quiet returns nil if no change is being made.
func (s *system) quiet(ctx context.Context) error {
	var changes v1alpha1.PlanChangeList
	if err := s.api.List(ctx, &changes); err != nil {
		return err
	}
	for _, c := range changes.Items {
		if !c.Status.Phase.Finished() {
			return fmt.Errorf("change %d is not done: %s", c.Spec.Number, c.Status.Message)
		}
	}
	return nil
}

// placed is a segment on its node.
type placed struct {
	v1alpha1.Segment
	status v1alpha1.SegmentStatus
	node   string
}

// segments returns the segments of a function that take new requests, or those of all functions if it is empty.
func (s *system) segments(ctx context.Context, function string) ([]placed, error) {
	var plans v1alpha1.GPUPlanList
	if err := s.api.List(ctx, &plans); err != nil {
		return nil, err
	}
	var all []placed
	for _, p := range plans.Items {
		for _, g := range p.Spec.Segments {
			if g.Draining || function != "" && g.Function != function {
				continue
			}
			one := placed{Segment: g, node: p.Spec.Node}
			if at := slices.IndexFunc(p.Status.Segments, func(o v1alpha1.SegmentStatus) bool { return o.Name == g.Name }); at >= 0 {
				one.status = p.Status.Segments[at]
			}
			all = append(all, one)
		}
	}
	return all, nil
}

// startLoad starts clients of all functions: for each way one per segment, at least two.
func (s *system) startLoad(ctx context.Context, l *load, rates map[string]float64) error {
	for _, f := range functions {
		var service corev1.Service
		if err := s.api.Get(ctx, client.ObjectKey{Namespace: shop, Name: f.name}, &service); err != nil {
			return err
		}
		own, err := s.segments(ctx, f.name)
		if err != nil {
			return err
		}
		var addresses []string
		for _, g := range own {
			addresses = append(addresses, fmt.Sprintf("%s:%d", g.status.Address, f.port))
		}
		count := max(2, len(own))
		each := rates[f.name] / float64(2*count)
		for i := range count {
			if _, err := l.start(f, plain, fmt.Sprintf("%s:%d", service.Spec.ClusterIP, f.port), nil, each); err != nil {
				return err
			}
			// Clients begin with different addresses.
			turned := slices.Concat(addresses[i%len(addresses):], addresses[:i%len(addresses)])
			if _, err := l.start(f, following, strings.Join(turned, ","), []netip.Prefix{podNetwork}, each); err != nil {
				return err
			}
		}
	}
	return nil
}
