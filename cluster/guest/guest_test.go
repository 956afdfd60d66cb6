package guest

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/penstock/penstock/cluster/api/v1alpha1"
	"github.com/penstock/penstock/control"
)

// machine is a node with a driver, without kubelet and API server.
type machine struct {
	t         *testing.T
	driver    *Driver
	plans     map[string]*v1alpha1.GPUPlan
	pods      []*corev1.Pod
	now       time.Time
	published []resourceapi.Device
}

func newMachine(t *testing.T) *machine {
	m := &machine{t: t, plans: map[string]*v1alpha1.GPUPlan{}, now: time.Unix(1000, 0)}
	dir := t.TempDir()
	m.driver = New(Options{
		Node: "n1", Kubelet: filepath.Join(dir, "kubelet"), CDI: filepath.Join(dir, "cdi"), GPUKind: "nvidia.com/gpu", PerGPU: 2,
		Log: zerolog.Nop(), Now: func() time.Time { return m.now },
		Plan: func(_ context.Context, name string) (*v1alpha1.GPUPlan, error) {
			if plan := m.plans[name]; plan != nil {
				return plan, nil
			}
			return nil, apierrors.NewNotFound(schema.GroupResource{}, name)
		},
	})
	m.driver.publish = func(_ context.Context, all []resourceapi.Device) error {
		m.published = all
		return nil
	}
	for _, folder := range []string{m.driver.file("words"), m.driver.CDI} {
		m.must(os.MkdirAll(folder, 0o755))
	}
	return m
}

func (m *machine) must(err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatal(err)
	}
}

// runtime returns the runtime folder of a pod's node.
func (m *machine) runtime(pod types.UID) string {
	return filepath.Join(m.driver.Kubelet, "pods", string(pod), "volumes", "kubernetes.io~empty-dir", v1alpha1.RuntimeVolume, v1alpha1.PrivateFolder, v1alpha1.NodeFolder)
}

// serve adds a pod of functions of a namespace to a GPU, with its plan and its busy word.
func (m *machine) serve(namespace, uuid string) *corev1.Pod {
	m.t.Helper()
	name := namespace + "-" + uuid
	plan := m.plans[uuid]
	if plan == nil {
		plan = &v1alpha1.GPUPlan{Spec: v1alpha1.GPUPlanSpec{Place: v1alpha1.Place{Node: "n1", Pool: "n1", GPU: uuid, Table: "a100-80"}}}
		m.plans[uuid] = plan
	}
	plan.Spec.Segments = append(plan.Spec.Segments, v1alpha1.Segment{Name: name, Namespace: namespace, SharePercent: resource.NewQuantity(50, resource.DecimalSI)})
	plan.Status.Segments = append(plan.Status.Segments, v1alpha1.SegmentStatus{Name: name, Pod: name})
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID("uid-" + name),
		Labels: map[string]string{v1alpha1.GPUPlanLabel: uuid}}}
	m.pods = append(m.pods, pod)

	m.must(os.MkdirAll(m.runtime(pod.UID), 0o700))
	f, err := control.MakeBusyFile(m.runtime(pod.UID))
	m.must(err)
	m.must(f.Truncate(4096))
	m.must(f.Close())
	return pod
}

func (m *machine) end(pod *corev1.Pod) {
	m.pods = slices.DeleteFunc(m.pods, func(p *corev1.Pod) bool { return p == pod })
}

// look returns the published devices, those with a taint behind "-".
func (m *machine) look() (names []string) {
	m.t.Helper()
	if _, err := m.driver.look(m.t.Context(), m.pods); err != nil {
		m.t.Fatal(err)
	}
	for _, d := range m.published {
		if len(d.Taints) > 0 {
			names = append(names, "-"+d.Name)
		} else {
			names = append(names, d.Name)
		}
	}
	return names
}

func testClaim(uid, class string, devices ...string) *resourceapi.ResourceClaim {
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid), Namespace: "lab", Name: uid}}
	c.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: class}}}
	c.Status.Allocation = &resourceapi.AllocationResult{}
	for _, d := range devices {
		c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results,
			resourceapi.DeviceRequestAllocationResult{Request: "gpu", Driver: DriverName, Pool: "n1", Device: d},
			resourceapi.DeviceRequestAllocationResult{Request: "nic", Driver: "nic.example.com", Pool: "n1", Device: "nic-0"})
	}
	return c
}

func (m *machine) prepare(c *resourceapi.ResourceClaim) kubeletplugin.PrepareResult {
	m.t.Helper()
	results, err := m.driver.PrepareResourceClaims(m.t.Context(), []*resourceapi.ResourceClaim{c})
	m.must(err)
	return results[c.UID]
}

func (m *machine) unprepare(c *resourceapi.ResourceClaim) {
	m.t.Helper()
	object := kubeletplugin.NamespacedObject{UID: c.UID}
	results, err := m.driver.UnprepareResourceClaims(m.t.Context(), []kubeletplugin.NamespacedObject{object})
	m.must(err)
	m.must(results[c.UID])
}

// left returns the driver's files.
func (m *machine) left() (names []string) {
	for _, folder := range []string{m.driver.file("words"), m.driver.CDI} {
		entries, err := os.ReadDir(folder)
		m.must(err)
		for _, e := range entries {
			names = append(names, e.Name())
		}
	}
	return names
}

func TestPrepare(t *testing.T) {
	m := newMachine(t)
	pod := m.serve("shop", "GPU-1")
	offered := m.look()
	if len(offered) != 2 {
		t.Fatalf("published %v, want two devices", offered)
	}

	c := testClaim("c1", DeviceClass, offered[0])
	var first kubeletplugin.PrepareResult
	for i := range 2 { // the kubelet may ask again
		r := m.prepare(c)
		m.must(r.Err)
		if i == 0 {
			first = r
		} else if fmt.Sprint(r) != fmt.Sprint(first) {
			t.Errorf("prepared %v, and then %v", first, r)
		}
	}
	want := []string{"nvidia.com/gpu=GPU-1", "guest.penstock.io/guest=c1"}
	if len(first.Devices) != 1 || !slices.Equal(first.Devices[0].CDIDeviceIDs, want) {
		t.Fatalf("devices %+v, want %v", first.Devices, want)
	}

	content, err := os.ReadFile(filepath.Join(m.driver.CDI, "guest.penstock.io-c1.json"))
	m.must(err)
	var f cdiFile
	m.must(json.Unmarshal(content, &f))
	edits := f.Devices[0].Edits
	if !slices.Equal(edits.Env, []string{"PENSTOCK_YIELD=/run/penstock/gpu-busy", "LD_PRELOAD=/usr/lib/penstock/libpenstock-yield.so"}) {
		t.Errorf("environment %v", edits.Env)
	}
	for _, mount := range edits.Mounts {
		if !slices.Contains(mount.Options, "ro") || strings.Contains(mount.Host, "/pods/") {
			t.Errorf("mount %+v", mount)
		}
	}
	word, err := os.Stat(edits.Mounts[0].Host)
	m.must(err)
	original, err := os.Stat(filepath.Join(m.runtime(pod.UID), busyFileName))
	m.must(err)
	if !os.SameFile(word, original) {
		t.Error("the guest has another file than the functions")
	}

	m.unprepare(c)
	m.unprepare(c)
	m.look()
	if left := m.left(); len(left) > 0 {
		t.Errorf("left %v", left)
	}
}

func TestLife(t *testing.T) {
	m := newMachine(t)
	shop := m.serve("shop", "GPU-1")
	offered := m.look()
	c := testClaim("c1", DeviceClass, offered[0])
	m.must(m.prepare(c).Err)
	check := func(step string, want ...string) {
		t.Helper()
		if got := m.look(); !slices.Equal(got, want) {
			t.Errorf("%s: published %v, want %v", step, got, want)
		}
	}

	lab := m.serve("lab", "GPU-1")
	check("a second namespace comes", "-"+offered[0])
	m.end(lab)
	check("it goes", offered...)
	shop.DeletionTimestamp = &metav1.Time{Time: m.now}
	check("the functions end", "-"+offered[0])
	m.end(shop)
	check("they have ended", "-"+offered[0])

	again := New(m.driver.Options) // the driver restarts
	again.publish = m.driver.publish
	m.driver = again
	check("the driver restarts", "-"+offered[0])
	next := m.serve("shop", "GPU-1")
	next.UID = "uid-next"
	m.must(os.Rename(filepath.Dir(m.runtime("uid-shop-GPU-1")), filepath.Dir(filepath.Dir(m.runtime("uid-shop-GPU-1")))+"/other"))
	all := m.look()
	if len(all) != 3 || slices.Contains(all, offered[0]) || all[2] != "-"+offered[0] {
		t.Errorf("functions come back: published %v; want two new devices and -%s", all, offered[0])
	}
	m.unprepare(c)
	check("the guest has ended", all[:2]...)

	// A pod that was scheduled too late must be deleted.
	late := testClaim("c2", DeviceClass, offered[1])
	if err := m.prepare(late).Err; err == nil || !strings.Contains(err.Error(), "have ended or are not known yet") {
		t.Errorf("a device that is gone: error %v", err)
	}
	check("too late", all[0], all[1], "-"+offered[1])
	m.now = m.now.Add(refusedFor + time.Second)
	check("it is forgotten", all[:2]...)
}

func TestHostileVolume(t *testing.T) {
	for name, attack := range map[string]func(m *machine, folder, word string) error{
		"link to a file": func(m *machine, _, word string) error { return os.Symlink("/etc/passwd", word) },
		"link to itself": func(m *machine, _, word string) error { return os.Symlink(busyFileName, word) },
		"folder":         func(m *machine, _, word string) error { return os.Mkdir(word, 0o755) },
		"pipe":           func(m *machine, _, word string) error { return syscall.Mkfifo(word, 0o644) },
		"empty":          func(m *machine, _, word string) error { return os.WriteFile(word, nil, 0o644) },
		"setuid": func(m *machine, _, word string) error {
			m.must(os.WriteFile(word, make([]byte, 4096), 0o755))
			return os.Chmod(word, 0o755|os.ModeSetuid)
		},
		"huge": func(m *machine, _, word string) error {
			m.must(os.WriteFile(word, nil, 0o644))
			return os.Truncate(word, 1<<40)
		},
		"missing": func(m *machine, _, _ string) error { return nil },
		"folder is a link": func(m *machine, folder, _ string) error {
			m.must(os.Remove(folder))
			elsewhere := m.t.TempDir()
			m.must(os.WriteFile(filepath.Join(elsewhere, busyFileName), make([]byte, 4096), 0o644))
			return os.Symlink(elsewhere, folder)
		},
		"folder is a link within the volume": func(m *machine, folder, _ string) error {
			m.must(os.Rename(folder, folder+"2"))
			m.must(os.WriteFile(filepath.Join(folder+"2", busyFileName), make([]byte, 4096), 0o644))
			return os.Symlink(filepath.Base(folder)+"2", folder)
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			pod := m.serve("shop", "GPU-1")
			offered := m.look()
			folder := m.runtime(pod.UID)
			word := filepath.Join(folder, busyFileName)
			m.must(os.Remove(word))
			m.must(attack(m, folder, word))

			if err := m.prepare(testClaim("c1", DeviceClass, offered[0])).Err; err == nil || !strings.Contains(err.Error(), "find busy word of pod") {
				t.Errorf("got error %v", err)
			}
			if left := m.left(); len(left) > 0 {
				t.Errorf("left %v", left)
			}
		})
	}
}

func TestHostileClaims(t *testing.T) {
	m := newMachine(t)
	m.serve("shop", "GPU-1")
	offered := m.look()
	optional := testClaim("c1", "", offered[0])
	optional.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "gpu", FirstAvailable: []resourceapi.DeviceSubRequest{{Name: "a", DeviceClassName: "all"}}}}
	optional.Status.Allocation.Devices.Results[0].Request = "gpu/a"
	unknown := testClaim("c1", DeviceClass, offered[0])
	unknown.Spec.Devices.Requests = nil

	for _, test := range []struct {
		name  string
		claim *resourceapi.ResourceClaim
		want  string
	}{
		{"other class", testClaim("c1", "all", offered[0]), `device class "all", want guest.penstock.io`},
		{"other class as an alternative", optional, `device class "all"`},
		{"no request", unknown, `device class ""`},
		{"two devices", testClaim("c1", DeviceClass, offered...), "claim has 2 devices"},
		{"no device", testClaim("c1", DeviceClass), "claim has 0 devices"},
		{"a device that never was", testClaim("c1", DeviceClass, "../../etc"), "have ended or are not known yet"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if err := m.prepare(test.claim).Err; err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got error %v, want %q", err, test.want)
			}
			if left := m.left(); len(left) > 0 {
				t.Errorf("left %v", left)
			}
		})
	}
}

// TestForgedPods adds pods that have the labels of a functions' pod. They must neither offer a GPU nor end the guests of one.
func TestForgedPods(t *testing.T) {
	for name, forge := range map[string]func(*machine, *corev1.Pod){
		"no plan":         func(m *machine, p *corev1.Pod) { p.Labels[v1alpha1.GPUPlanLabel] = "GPU-9" },
		"no label":        func(m *machine, p *corev1.Pod) { p.Labels = nil },
		"other name":      func(m *machine, p *corev1.Pod) { p.Name = "mine" },
		"other namespace": func(m *machine, p *corev1.Pod) { p.Namespace = "lab" },
		"has ended":       func(m *machine, p *corev1.Pod) { p.Status.Phase = corev1.PodFailed },
		"other node":      func(m *machine, p *corev1.Pod) { m.plans["GPU-1"].Spec.Node = "n2" },
		"MIG":             func(m *machine, p *corev1.Pod) { m.plans["GPU-1"].Spec.Segments[0].SharePercent = nil },
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			m.serve("other", "GPU-2")
			offered := m.look()
			forge(m, m.serve("shop", "GPU-1"))
			if got := m.look(); !slices.Equal(got, offered) {
				t.Errorf("published %v, want %v", got, offered)
			}
		})
	}
}

// TestDevices checks that the API server takes the names, and that they are of one pod only.
func TestDevices(t *testing.T) {
	seen := map[string]bool{}
	for _, pod := range []types.UID{"a", "b"} {
		for _, d := range devices([]gpu{{UUID: "GPU-" + strings.Repeat("x", 100), Pod: pod}}, 8, []string{"old", "old"}) {
			if len(d.Name) > 63 || seen[d.Name] && d.Name != "old" {
				t.Errorf("name %q", d.Name)
			}
			seen[d.Name] = true
		}
	}
	if len(seen) != 2*8+1 {
		t.Errorf("%d devices", len(seen))
	}
}
