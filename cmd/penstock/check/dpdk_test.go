package check

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/internal/testing/must"
)

// dpdkServer is a machine of two nodes that is ready for DPDK: file contents by name,
// links as "-> target".
func dpdkServer() map[string]string {
	return map[string]string{
		"/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages":    "512",
		"/sys/kernel/mm/hugepages/hugepages-1048576kB/free_hugepages": "0",
		"/proc/sys/vm/nr_hugepages":                                   "640",
		"/proc/self/status":                                           "Name:\tpenstock\nCapEff:\t0000000000000000\n",
		"/proc/self/limits":                                           "Limit  Soft Limit  Hard Limit  Units\nMax locked memory         unlimited            unlimited            bytes\n",
		"/proc/cpuinfo":                                               "vendor_id\t: GenuineIntel\n",
		"/proc/net/route":                                             "Iface\tDestination\tGateway\neno1\t00000000\t0102000A\n",
		"/sys/kernel/iommu_groups/7/type":                             "DMA",
		"/sys/bus/pci/drivers/vfio-pci/module":                        "",
		"/sys/devices/system/node/online":                             "0-1",
		"/sys/devices/system/node/node0/cpulist":                      "0-3",
		"/sys/devices/system/node/node1/cpulist":                      "4-7",
		"/sys/devices/system/cpu/online":                              "0-7",
		"/sys/devices/system/cpu/isolated":                            "6-7",
		"/sys/bus/pci/devices/0000:3b:00.0/class":                     "0x020000",
		"/sys/bus/pci/devices/0000:3b:00.0/numa_node":                 "1",
		"/sys/bus/pci/devices/0000:3b:00.0/driver":                    "-> /sys/bus/pci/drivers/vfio-pci",
		"/sys/bus/pci/devices/0000:3b:00.0/iommu_group":               "-> /sys/kernel/iommu_groups/7",
		"/sys/kernel/iommu_groups/7/devices/0000:3b:00.0/x":           "",
		"/sys/bus/pci/devices/0000:01:00.0/class":                     "0x020000",
		"/sys/bus/pci/devices/0000:01:00.0/numa_node":                 "0",
		"/sys/bus/pci/devices/0000:01:00.0/driver":                    "-> /sys/bus/pci/drivers/i40e",
		"/sys/bus/pci/devices/0000:01:00.0/net/eno1/mtu":              "1500",
		"/sys/bus/pci/devices/0000:02:00.0/class":                     "0x020000",
		"/sys/bus/pci/devices/0000:02:00.0/driver":                    "-> /sys/bus/pci/drivers/i40e",
		"/sys/bus/pci/devices/0000:02:00.0/net/eno2/mtu":              "1500",
		"/sys/bus/pci/devices/0000:5e:00.0/class":                     "0x020000",
		"/sys/bus/pci/devices/0000:5e:00.0/driver":                    "-> /sys/bus/pci/drivers/mlx5_core",
		"/sys/bus/pci/devices/0000:00:02.0/class":                     "0x020000",
		"/sys/bus/pci/devices/0000:86:00.0/class":                     "0x030200",
		"/sys/bus/pci/devices/0000:86:00.0/vendor":                    "0x10de",
		"/sys/bus/pci/devices/0000:86:00.0/numa_node":                 "1",
		"/sys/class/net/veth1/operstate":                              "up",
		"/sys/class/net/veth1/mtu":                                    "1500",
		"/dev/net/tun":                                                "",
	}
}

// checkDPDK runs the checks of DPDK on a machine whose files are below dir.
func checkDPDK(dir, version string, d *configs.DPDK) Report {
	m := &machine{files: root(dir), dpdkVersion: version}
	m.config.Source.DPDK = d
	return run(context.Background(), m, dpdkChecks)
}

// writeMachine makes a machine of files below a folder.
func writeMachine(t *testing.T, files map[string]string) (root string) {
	t.Helper()
	root = t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		must.OK(t, os.MkdirAll(filepath.Dir(path), 0o700))
		target, isLink := strings.CutPrefix(text, "-> ")
		var err error
		if isLink {
			err = os.Symlink(filepath.Join(root, target), path)
		} else {
			err = os.WriteFile(path, []byte(text+"\n"), 0o600)
		}
		must.OK(t, err)
	}
	return root
}

// examined lets the doctor look at a machine of files.
func examined(t *testing.T, files map[string]string, d *configs.DPDK) map[string]Finding {
	t.Helper()
	found := map[string]Finding{}
	for _, f := range checkDPDK(writeMachine(t, files), "DPDK 22.11.11", d) {
		found[f.Subject] = f
		if f.Text == "" {
			t.Errorf("%s says nothing", f.Subject)
		}
		if f.Fatal && !f.OK && f.Fix == "" {
			t.Errorf("%s is fatal, and nothing mends it", f.Subject)
		}
	}
	return found
}

func with(files map[string]string, changes ...string) map[string]string {
	for i := 0; i < len(changes); i += 2 {
		files[changes[i]] = changes[i+1]
	}
	return files
}

var aCard = &configs.DPDK{Port: "0000:3b:00.0", LCores: []int{6, 7}, HugePages: true, Memory: 512 << 20}

func TestDPDKReady(t *testing.T) {
	found := examined(t, dpdkServer(), aCard)
	expect(t, found, "dpdk", true, "DPDK 22.11.11; packets come from 0000:3b:00.0", "")
	expect(t, found, "dpdk huge pages", true, "free: 512 of 2 MiB", "")
	expect(t, found, "iommu, vfio", true, "1 groups, vfio-pci loaded", "")
	expect(t, found, "nic 0000:3b:00.0", true, "vfio-pci", "")
	expect(t, found, "numa", true, "2 nodes: card on node 1, GPU 0000:86:00.0 on node 1, core 6 on node 1, core 7 on node 1", "")
	expect(t, found, "isolated cores", true, "[6 7], all isolated", "")
	expect(t, found, "memlock", true, "no limit", "")
	if len(found) != 7 {
		t.Errorf("found %d things: %v", len(found), found)
	}
}

func TestDPDKMissing(t *testing.T) {
	for _, configured := range []bool{false, true} {
		var d *configs.DPDK
		if configured {
			d = &configs.DPDK{Port: "net_tap0"}
		}
		f := checkDPDK(t.TempDir(), "", d)[0]
		if f.Subject != "dpdk" || f.OK || f.Fatal != configured || f.Fix != "apt-get install libdpdk-dev pkg-config && make build-dpdk" {
			t.Errorf("configured %v: %+v", configured, f)
		}
	}
}

func TestDPDKProblems(t *testing.T) {
	card := func(edit func(*configs.DPDK)) *configs.DPDK {
		d := *aCard
		edit(&d)
		return &d
	}
	for _, c := range []struct {
		name             string
		change           []string
		dpdk             *configs.DPDK
		what, want, mend string
		fatal            bool
	}{
		{"few huge pages", []string{"/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "3"}, aCard,
			"dpdk huge pages", "free: 3 of 2 MiB, want 512 MiB", "sysctl vm.nr_hugepages=893", true}, // 640 + 256 - 3
		{"no huge pages", []string{"/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "0", "/proc/sys/vm/nr_hugepages", "0"}, aCard,
			"dpdk huge pages", "free: none", "sysctl vm.nr_hugepages=256", true},
		{"a card that is not there", nil, card(func(d *configs.DPDK) { d.Port = "0000:99:00.0" }),
			"nic 0000:99:00.0", "no such PCI device", "lspci -D -d ::0200", true},
		{"a GPU", nil, card(func(d *configs.DPDK) { d.Port = "0000:86:00.0" }),
			"nic 0000:86:00.0", "not a network card: a PCI device of class 0x030200", "lspci", true},
		{"the kernel's card", nil, card(func(d *configs.DPDK) { d.Port = "0000:02:00.0" }),
			"nic 0000:02:00.0", "bound to the kernel's driver i40e as eno2",
			"modprobe vfio-pci && echo vfio-pci > /sys/bus/pci/devices/0000:02:00.0/driver_override && echo 0000:02:00.0 > /sys/bus/pci/devices/0000:02:00.0/driver/unbind && echo 0000:02:00.0 > /sys/bus/pci/drivers_probe", true},
		{"the card of the default route", nil, card(func(d *configs.DPDK) { d.Port = "0000:01:00.0" }),
			"nic 0000:01:00.0", "cut this machine off its network", "net_af_packet0,iface=eno1", true},
		{"a card without a driver", nil, card(func(d *configs.DPDK) { d.Port = "0000:00:02.0" }),
			"nic 0000:00:02.0", "bound to no driver", "echo 0000:00:02.0 > /sys/bus/pci/drivers_probe", true},
		{"a group that is shared", []string{
			"/sys/kernel/iommu_groups/7/devices/0000:01:00.0/x", ""}, aCard,
			"nic 0000:3b:00.0", "kernel drivers hold other devices of its IOMMU group: 0000:01:00.0 bound to i40e", "bind them to vfio-pci too", true},
		{"cores of the other node", nil, card(func(d *configs.DPDK) { d.LCores = []int{0} }),
			"numa", "core 0 on node 0", "CPUs of the card's node: 4-7", false},
		{"a GPU on the other node", []string{"/sys/bus/pci/devices/0000:86:00.0/numa_node", "0"}, aCard,
			"numa", "every packet crosses", "slots of the same node", false},
		{"cores that are shared", nil, card(func(d *configs.DPDK) { d.LCores = []int{4, 6} }),
			"isolated cores", "[4] also run other programs", "isolcpus=4 nohz_full=4 rcu_nocbs=4", false},
		{"cores that are not there", nil, card(func(d *configs.DPDK) { d.LCores = []int{12} }),
			"isolated cores", "source.dpdk.lcores has [12], and the machine has [0 1 2 3 4 5 6 7]", "CPUs of the machine", true},
		{"little memory to lock", []string{"/proc/self/limits", "Max locked memory         8388608              8388608              bytes"}, aCard,
			"memlock", "8 MiB of 512", "ulimit -l unlimited", false},
		{"an interface that is not there", nil, &configs.DPDK{Port: "net_af_packet0,iface=veth9"},
			"port net_af_packet0", "no such interface: veth9", "ip -brief link", true},
		{"no interface named", nil, &configs.DPDK{Port: "net_af_xdp0"},
			"port net_af_xdp0", "has no iface=", "net_af_xdp0,iface=NAME", true},
		{"an interface that is down", []string{"/sys/class/net/veth1/operstate", "down"}, &configs.DPDK{Port: "net_af_xdp0,iface=veth1"},
			"port net_af_xdp0", "on veth1, down", "ip link set veth1 up", false},
		{"jumbo frames", []string{"/sys/class/net/veth1/mtu", "9000"}, &configs.DPDK{Port: "net_af_packet0,iface=veth1"},
			"port net_af_packet0", "MTU 9000: packets above 1500 bytes do not fit", "source.dpdk.mtu: 9000, or ip link set veth1 mtu 1500", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			found := examined(t, with(dpdkServer(), c.change...), c.dpdk)
			expect(t, found, c.what, false, c.want, c.mend)
			if found[c.what].Fatal != c.fatal {
				t.Errorf("fatal is %v, want %v", found[c.what].Fatal, c.fatal)
			}
		})
	}
}

func TestIOMMU(t *testing.T) {
	without := func(names ...string) map[string]string {
		files := dpdkServer()
		for name := range files {
			for _, gone := range names {
				if strings.HasPrefix(name, gone) {
					delete(files, name)
				}
			}
		}
		return files
	}
	const groups, vfio = "/sys/kernel/iommu_groups", "/sys/bus/pci/drivers/vfio-pci"
	expect(t, examined(t, without(vfio), aCard), "iommu, vfio", false, "1 groups, but vfio-pci is not loaded", "modprobe vfio-pci")
	expect(t, examined(t, without(groups, vfio), aCard), "iommu, vfio", false, "no IOMMU", "intel_iommu=on iommu=pt")
	expect(t, examined(t, with(without(groups, vfio), "/proc/cpuinfo", "vendor_id : AuthenticAMD"), aCard), "iommu, vfio", false, "no IOMMU", "add iommu=pt")
	expect(t, examined(t, with(without(groups), "/sys/module/vfio/parameters/enable_unsafe_noiommu_mode", "Y"), aCard),
		"iommu, vfio", true, "a card can write to all memory", "")
	shared := &configs.DPDK{Port: "0000:5e:00.0", HugePages: true}
	found := examined(t, without(groups, vfio), shared)
	expect(t, found, "nic 0000:5e:00.0", true, "mlx5_core, which DPDK can share", "")
	if found["iommu, vfio"].Fatal {
		t.Error("a card that DPDK shares with its driver was refused for want of vfio-pci")
	}
}

func TestDPDKVirtualPorts(t *testing.T) {
	empty := map[string]string{"/dev/net/tun": "", "/sys/devices/system/cpu/online": "0-1"}
	found := examined(t, empty, &configs.DPDK{Port: "net_tap0,iface=dtap7", Memory: 64 << 20})
	expect(t, found, "port net_tap0", true, "makes the interface dtap7", "")
	expect(t, found, "iommu, vfio", true, "not needed", "")
	expect(t, found, "dpdk huge pages", true, "not configured; 64 MiB of ordinary pages", "")
	expect(t, found, "numa", true, "one node", "")
	found = examined(t, map[string]string{}, &configs.DPDK{Port: "net_tap0"})
	expect(t, found, "port net_tap0", false, "no /dev/net/tun", "modprobe tun")
}

func TestDPDKCards(t *testing.T) {
	found := examined(t, dpdkServer(), nil)
	for what, ok := range map[string]bool{"nic 0000:3b:00.0": true, "nic 0000:01:00.0": false, "nic 0000:02:00.0": false, "nic 0000:5e:00.0": true, "nic 0000:00:02.0": false} {
		if f, there := found[what]; !there || f.OK != ok || f.Fatal {
			t.Errorf("%s: %+v, want ok %v and nothing fatal", what, f, ok)
		}
	}
	if f, there := found["nic 0000:86:00.0"]; there {
		t.Errorf("a GPU is listed among the cards: %+v", f)
	}
	for _, f := range checkDPDK(t.TempDir(), "", nil) {
		if f.Fatal || f.Text == "" {
			t.Errorf("on a machine without anything: %+v", f)
		}
	}
}

// The real machine is examined too, whatever it is: nothing may be silent.
func TestThisMachine(t *testing.T) {
	for _, d := range []*configs.DPDK{nil, aCard, {Port: "net_tap0"}} {
		for _, f := range checkDPDK("/", "", d) {
			if f.Subject == "" || f.Text == "" {
				t.Errorf("%+v says nothing", f)
			}
		}
	}
}
