package topology

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/penstock/penstock/internal/testing/must"
)

// machine writes files below a folder, which it returns.
func machine(t *testing.T, files map[string]string) (root string) {
	t.Helper()
	root = t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		must.OK(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must.OK(t, os.WriteFile(path, []byte(text+"\n"), 0o644))
	}
	return root
}

func TestRead(t *testing.T) {
	m := Read(machine(t, map[string]string{
		"sys/devices/system/node/online":                            "0-1",
		"sys/devices/system/node/node0/cpulist":                     "0-1,4-5",
		"sys/devices/system/node/node1/cpulist":                     "2-3",
		"sys/devices/system/cpu/cpu0/topology/thread_siblings_list": "0,4",
		"sys/devices/system/cpu/cpu4/topology/thread_siblings_list": "0,4",
		"sys/devices/system/cpu/cpu1/topology/thread_siblings_list": "1,5",
		"sys/devices/system/cpu/cpu5/topology/thread_siblings_list": "1,5",
		"sys/bus/pci/devices/0000:3b:00.0/class":                    "0x020000",
		"sys/bus/pci/devices/0000:3b:00.0/numa_node":                "1",
		"sys/bus/pci/devices/0000:3b:00.0/net/eno1/mtu":             "1500",
		"sys/bus/pci/devices/0000:19:00.0/class":                    "0x030200",
		"sys/bus/pci/devices/0000:19:00.0/vendor":                   "0x10de",
		"sys/bus/pci/devices/0000:19:00.0/numa_node":                "0",
		"proc/driver/nvidia/gpus/0000:19:00.0/information":          "Model: \t NVIDIA\nGPU UUID: \t GPU-ab12\nBus Type: \t PCIe",
		"sys/bus/pci/devices/0000:86:00.0/class":                    "0x030200",
		"sys/bus/pci/devices/0000:86:00.0/vendor":                   "0x10de",
		"sys/bus/pci/devices/0000:86:00.0/numa_node":                "-1",
		"sys/bus/pci/devices/0000:02:00.0/class":                    "0x030000", // not NVIDIA's
	}))
	want := Machine{
		Nodes: []Node{{0, []int{0, 4, 1, 5}}, {1, []int{2, 3}}},
		GPUs:  []Device{{"0000:19:00.0", "GPU-ab12", 0}, {"0000:86:00.0", "", Unknown}},
		NICs:  []Device{{"0000:3b:00.0", "eno1", 1}},
	}
	if !reflect.DeepEqual(m, want) {
		t.Errorf("read\n%+v, want\n%+v", m, want)
	}

	for name, address := range map[string]string{
		"cuda": "0000:19:00.0", "cuda:0": "0000:19:00.0", "cuda:1": "0000:86:00.0", "GPU-AB": "0000:19:00.0",
		"cuda:2": "", "GPU-": "", "GPU-cd": "", "cpu": "", "auto": "",
	} {
		if d, ok := m.GPU(name); d.Address != address || ok != (address != "") {
			t.Errorf("GPU %s is %+v, want %q", name, d, address)
		}
	}
	if cpus := m.Near(Unknown); cpus != nil {
		t.Errorf("CPUs %v near a device that is near none", cpus)
	}
	if m := Read(t.TempDir()); !reflect.DeepEqual(m, Machine{}) {
		t.Errorf("a machine without files has %+v", m)
	}
}

func TestClaim(t *testing.T) {
	root := machine(t, map[string]string{lockFile("", 0): "0", lockFile("", 1): "0", lockFile("", 2): "1"})
	first := Take(root, []int{0, 1, 9}) // 9 has no file
	if len(first.Busy) != 0 {
		t.Fatalf("CPUs %v of an empty machine are busy", first.Busy)
	}
	if owners := Owners(root, []int{0, 1, 2, 9}); !reflect.DeepEqual(owners, map[int]int{0: os.Getpid(), 1: os.Getpid()}) {
		t.Errorf("owners %v, want process %d for CPUs 0 and 1", owners, os.Getpid())
	}

	second := Take(root, []int{1, 2})
	if !reflect.DeepEqual(second.Busy, []int{1}) {
		t.Errorf("CPUs %v are busy, want 1", second.Busy)
	}
	second.Release()
	first.Release()
	if last := Take(root, []int{0, 1, 2}); len(last.Busy) != 0 {
		t.Errorf("CPUs %v are busy after their release", last.Busy)
	}
}
