package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/penstock/penstock/cluster/api/v1alpha1"
	"github.com/penstock/penstock/cluster/chart"
	"github.com/penstock/penstock/cluster/kubetest"
	"github.com/penstock/penstock/cluster/operator"
)

const (
	systemNamespace = "penstock-system"
	fleetName       = "pool"
	namespaces      = 20
	pprofAddress    = "127.0.0.1:6060"
	// lease is long. On a busy machine, nodes would else not be Ready, and their segments would be planned elsewhere.
	lease = 10 * time.Minute
	// segmentRate is how many requests per second the Profiles say that a segment serves.
	segmentRate = 100
	// writers is how many objects are created at once.
	writers = 16
)

// sizes are the sizes of segments. Two halves or three thirds fill a GPU.
var sizes = []struct {
	model string
	gpcs  int
}{{"half", 3}, {"third", 2}}

// system is the cluster.
type system struct {
	*kubetest.Cluster
	api      client.Client
	pods     *pods
	programs map[string]int // process IDs, by name
}

// start starts a control plane without nodes, and installs the chart without its Deployment: the bench runs the operator itself.
func start(ctx context.Context, o options) (*system, error) {
	files, err := chart.Render(o.chart, systemNamespace, nil)
	if err != nil {
		return nil, err
	}
	folder, err := os.MkdirTemp("", "penstock-bench-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(folder)
	installation := filepath.Join(folder, "installation.yaml")
	text := "apiVersion: v1\nkind: Namespace\nmetadata: {name: " + systemNamespace + "}\n---\n" + files["rbac.yaml"] + "\n---\n" + files["deviceclass.yaml"]
	if err := os.WriteFile(installation, []byte(text), 0o644); err != nil {
		return nil, err
	}

	c, err := kubetest.StartControlPlane(ctx, kubetest.Options{
		Scheduler: true, Controllers: true, Kwok: true, Lease: lease, Manifests: []string{filepath.Join(o.chart, "crds"), installation},
	})
	if err != nil {
		return nil, err
	}
	s := &system{Cluster: c, programs: map[string]int{"bench": os.Getpid()}}
	for _, name := range []string{"kube-apiserver", "etcd", "kube-scheduler", "kube-controller-manager", "kwok"} {
		s.programs[name] = c.Process(name).Pid()
	}
	if s.api, err = client.New(c.Admin(), client.Options{Scheme: operator.Scheme()}); err == nil {
		s.pods, err = servePods(ctx, c.Admin())
	}
	if err != nil {
		return nil, errors.Join(err, c.Stop())
	}
	return s, nil
}

func (s *system) makeNodes(ctx context.Context, o options) error {
	return s.AddFakeNodes(ctx, o.nodes, map[string]string{"gpus": "penstock"}, make([]kubetest.GPU, o.gpus)...)
}

// makeFunctions makes the Profiles, namespaces and Functions. With few segments all are halves; with more, so many are thirds
// that all fit.
func (s *system) makeFunctions(ctx context.Context, o options) error {
	for _, size := range sizes {
		err := s.api.Create(ctx, &v1alpha1.Profile{
			ObjectMeta: metav1.ObjectMeta{Name: size.model},
			Spec: v1alpha1.ProfileSpec{Model: size.model, GPU: "a100-80",
				CSV: fmt.Sprintf("Mig instance,Batch size,Workload Number,Throughput,Latency\n%d,4,1,%d,0.01\n", size.gpcs, segmentRate)},
		})
		if err != nil {
			return err
		}
	}
	for i := range namespaces {
		if err := s.api.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace(i)}}); err != nil {
			return err
		}
	}

	thirds := max(0, 3*o.segments-6*o.nodes*o.gpus)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(writers)
	for i := range o.functions {
		// Function i has the segments from first to last. It has the size of its first one.
		first, last := i*o.segments/o.functions, (i+1)*o.segments/o.functions
		size := sizes[0]
		if first < thirds {
			size = sizes[1]
		}
		f := &v1alpha1.Function{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace(i), Name: fmt.Sprintf("f%d", i)},
			Spec: v1alpha1.FunctionSpec{Model: size.model, SLO: metav1.Duration{Duration: 200 * time.Millisecond}, Port: int32(1024 + i/namespaces),
				Rate: v1alpha1.RateSpec{Fixed: resource.NewQuantity(int64(segmentRate*(last-first)-segmentRate/2), resource.DecimalSI)}},
		}
		group.Go(func() error { return s.api.Create(ctx, f) })
	}
	return group.Wait()
}

func namespace(function int) string { return fmt.Sprintf("bench-%d", function%namespaces) }

// runOperator starts the operator with the rights of the chart. It is the only one, so it needs no lease, which it would lose
// when the machine is too busy.
func (s *system) runOperator(program string) (*kubetest.Process, error) {
	config, err := s.ServiceAccount(systemNamespace, "penstock-operator")
	if err != nil {
		return nil, err
	}
	kubeconfig := filepath.Join(filepath.Dir(s.Kubeconfig()), "operator.kubeconfig")
	if err := kubetest.WriteKubeconfig(config, kubeconfig); err != nil {
		return nil, err
	}
	p, err := s.Run("operator", nil, program, "--kubeconfig", kubeconfig, "--namespace", systemNamespace,
		"--agent-image", "penstock-agent:1", "--leader-elect=false", "--health-address", "0", "--metrics-address", "0", "--pprof-address", pprofAddress)
	if err != nil {
		return nil, err
	}
	s.programs["operator"] = p.Pid()
	return p, nil
}

func (s *system) createFleet(ctx context.Context) error {
	return s.api.Create(ctx, &v1alpha1.Fleet{
		ObjectMeta: metav1.ObjectMeta{Name: fleetName},
		Spec:       v1alpha1.FleetSpec{NodeSelector: map[string]string{"gpus": "penstock"}, Node: v1alpha1.NodeTemplate{Image: "penstock:1"}},
	})
}

// await polls until fact returns nil, at most for the limit. It fails if the operator has ended.
func (b *bench) await(ctx context.Context, operator *kubetest.Process, fact func(context.Context) error) error {
	ctx, cancel := context.WithDeadlineCause(ctx, b.began.Add(b.limit), fmt.Errorf("it took longer than %s", b.limit))
	defer cancel()
	said := time.Now()
	for {
		err := fact(ctx)
		switch {
		case err == nil:
			return nil
		case operator.Ended():
			b.explain()
			return fmt.Errorf("the operator has ended: %w", err)
		case ctx.Err() != nil:
			b.explain()
			return fmt.Errorf("%w; the last answer was: %w", context.Cause(ctx), err)
		}
		if time.Since(said) > 20*time.Second {
			said = time.Now()
			b.say("%v", err)
		}
		time.Sleep(time.Second)
	}
}

// explain prints what the operator may be waiting for.
func (b *bench) explain() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, kinds := range []string{"fleets", "planchanges", "nodes"} {
		out, err := b.Kubectl(ctx, nil, "get", kinds, "-o", "wide")
		lines := strings.SplitAfter(string(out), "\n")
		fmt.Fprintln(b.out, strings.Join(lines[max(0, len(lines)-12):], ""), err)
	}
	log, err := os.ReadFile(b.Process("operator").Log())
	lines := strings.SplitAfter(string(log), "\n")
	fmt.Fprintln(b.out, strings.Join(lines[max(0, len(lines)-20):], ""), err)
}

// services returns nil if each function has a Service.
func (b *bench) services(ctx context.Context) error {
	list := metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ServiceList"))
	if err := b.api.List(ctx, &list, client.MatchingLabelsSelector{Selector: operator.OurPods}); err != nil {
		return err
	}
	if len(list.Items) < b.functions {
		return fmt.Errorf("there are %d services", len(list.Items))
	}
	return nil
}

// planned returns nil if the fleet says that all functions are planned.
func (b *bench) planned(ctx context.Context) error {
	f := &v1alpha1.Fleet{}
	if err := b.api.Get(ctx, client.ObjectKey{Name: fleetName}, f); err != nil {
		return err
	}
	c := meta.FindStatusCondition(f.Status.Conditions, v1alpha1.Planned)
	switch {
	case c == nil:
		return errors.New("the fleet has no condition")
	case c.Status == metav1.ConditionTrue:
		return nil
	}
	var list v1alpha1.FunctionList
	if err := b.api.List(ctx, &list); err != nil {
		return err
	}
	for _, f := range list.Items {
		if one := meta.FindStatusCondition(f.Status.Conditions, v1alpha1.Planned); one != nil && one.Status != metav1.ConditionTrue {
			return fmt.Errorf("%s; function %s: %s", c.Message, f.Name, one.Message)
		}
	}
	return errors.New(c.Message)
}

// serving returns nil if all segments of all functions serve.
func (b *bench) serving(ctx context.Context) error {
	bound, serving := b.pods.count()
	if serving < b.segments {
		return fmt.Errorf("%d segments are bound and %d serve, of %d", bound, serving, b.segments)
	}
	var list v1alpha1.FunctionList
	if err := b.api.List(ctx, &list); err != nil {
		return err
	}
	ready := 0
	for _, f := range list.Items {
		if meta.IsStatusConditionTrue(f.Status.Conditions, v1alpha1.Ready) {
			ready++
		}
	}
	if ready < b.functions {
		return fmt.Errorf("%d of %d functions are ready", ready, b.functions)
	}
	return nil
}

// checkClaims fails if a device is allocated twice, or if there are more claims than segments.
func (b *bench) checkClaims(ctx context.Context) error {
	var claims resourceapi.ResourceClaimList
	if err := b.api.List(ctx, &claims); err != nil {
		return err
	}
	if len(claims.Items) != b.segments {
		return fmt.Errorf("there are %d claims for %d segments", len(claims.Items), b.segments)
	}
	owner := map[string]string{}
	for _, c := range claims.Items {
		if c.Status.Allocation == nil || len(c.Status.ReservedFor) != 1 {
			return fmt.Errorf("claim %s/%s is not allocated to a pod", c.Namespace, c.Name)
		}
		r := c.Status.Allocation.Devices.Results[0]
		if other := owner[r.Pool+"/"+r.Device]; other != "" {
			return fmt.Errorf("claims %s and %s have the same device", other, c.Name)
		}
		owner[r.Pool+"/"+r.Device] = c.Name
	}
	return nil
}

// profile reads profiles of the CPU that the operator and the API server use while they work. The channel says when they are written.
func (b *bench) profile(ctx context.Context) <-chan error {
	done := make(chan error, 1)
	if b.profiles == "" {
		done <- nil
		return done
	}
	go func() {
		group, ctx := errgroup.WithContext(ctx)
		group.Go(func() error { return b.save(ctx, &rest.Config{Host: pprofAddress}, "profile", "20", "operator") })
		group.Go(func() error { return b.save(ctx, b.Admin(), "profile", "20", "apiserver") })
		done <- group.Wait()
	}()
	return done
}

// heap reads a profile of the memory that the operator needs in the end.
func (b *bench) heap(ctx context.Context) error {
	if b.profiles == "" {
		return nil
	}
	return b.save(ctx, &rest.Config{Host: pprofAddress}, "heap", "", "heap")
}

// save writes a profile of a program to a file.
func (b *bench) save(ctx context.Context, config *rest.Config, kind, seconds, name string) error {
	api, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	get := api.RESTClient().Get().AbsPath("/debug/pprof/" + kind)
	if seconds != "" {
		get = get.Param("seconds", seconds)
	}
	content, err := get.DoRaw(ctx)
	if err != nil {
		return fmt.Errorf("read profile of %s: %w", name, err)
	}
	return os.WriteFile(filepath.Join(b.profiles, name+".pprof"), content, 0o644)
}
