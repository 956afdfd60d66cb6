package check

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/penstock/penstock/configs"
)

// These checks read files of the kernel and change nothing. They run if packets come from
// kernel sockets too: they say what DPDK would need.
var dpdkChecks = []row{
	{subject: "dpdk", run: dpdkBuild},
	{subject: "dpdk huge pages", run: dpdkHugePages},
	{subject: "iommu, vfio", run: iommu},
	{each: dpdkPorts},
	{subject: "numa", run: numa},
	{subject: "isolated cores", run: isolatedCores},
	{subject: "memlock", run: memlock},
}

func dpdkBuild(_ context.Context, m *machine) Finding {
	const install = "apt-get install libdpdk-dev pkg-config && make build-dpdk" // on Debian and Ubuntu
	d, configured := m.dpdk()
	switch {
	case m.dpdkVersion != "" && configured:
		return pass(m.dpdkVersion + "; packets come from " + d.Port)
	case m.dpdkVersion != "":
		return pass(m.dpdkVersion + "; packets come from kernel sockets, as configured")
	case configured:
		return fail(fmt.Sprintf("the configuration has %s, and this binary was built without DPDK", d.Port), install).fatalIf(true)
	}
	return fail("not in this binary; packets come from kernel sockets", install)
}

// packetMemoryMiB is the size of the packet memory.
func packetMemoryMiB(d configs.DPDK) int { return cmp.Or(int(d.Memory>>20), 256) }

// dpdkHugePages counts the free pages of each size. Packet memory has no file (--in-memory), so
// no hugetlbfs need be mounted.
func dpdkHugePages(_ context.Context, m *machine) Finding {
	d, configured := m.dpdk()
	wantMiB := packetMemoryMiB(d)
	if configured && !d.HugePages {
		return pass(fmt.Sprintf("not configured; %d MiB of ordinary pages", wantMiB))
	}

	freeMiB := 0
	var free []string
	for _, sizeMiB := range []int{1024, 2} {
		n, err := m.files.number(fmt.Sprintf("/sys/kernel/mm/hugepages/hugepages-%dkB/free_hugepages", sizeMiB<<10))
		if err != nil || n == 0 {
			continue
		}
		freeMiB += n * sizeMiB
		free = append(free, fmt.Sprintf("%d of %d MiB", n, sizeMiB))
	}
	if freeMiB < wantMiB {
		// The new number includes the pages that are in use.
		old, _ := m.files.number("/proc/sys/vm/nr_hugepages")
		return fail(fmt.Sprintf("free: %s, want %d MiB", cmp.Or(strings.Join(free, ", "), "none"), wantMiB),
			fmt.Sprintf("sysctl vm.nr_hugepages=%d", old+(wantMiB-freeMiB+1)/2)).fatalIf(configured)
	}
	return pass("free: " + strings.Join(free, ", "))
}

// iommu looks for what lets a process drive a card: an IOMMU and vfio-pci, or vfio-pci in its
// mode without an IOMMU.
func iommu(_ context.Context, m *machine) Finding {
	d, configured := m.dpdk()
	if configured && !isPCI(d.Port) {
		return pass("not needed: " + d.Port + " is no PCI device")
	}

	needed := configured && !slices.Contains(sharedDrivers, m.driver(portName(d.Port)))
	groups := len(m.files.names("/sys/kernel/iommu_groups"))
	loaded := m.files.exists("/sys/bus/pci/drivers/vfio-pci")
	unsafe, _ := m.files.text("/sys/module/vfio/parameters/enable_unsafe_noiommu_mode")
	switch {
	case groups > 0 && loaded:
		return pass(fmt.Sprintf("%d groups, vfio-pci loaded", groups))
	case groups > 0:
		return fail(fmt.Sprintf("%d groups, but vfio-pci is not loaded", groups), "modprobe vfio-pci").fatalIf(needed)
	case loaded && unsafe == "Y":
		return pass("no IOMMU; vfio-pci runs without one, so a card can write to all memory")
	}

	fix := "enable the IOMMU in the firmware, add iommu=pt to the kernel's command line, and reboot"
	if cpu, _ := m.files.text("/proc/cpuinfo"); strings.Contains(cpu, "GenuineIntel") {
		fix = "enable VT-d in the firmware, add intel_iommu=on iommu=pt to the kernel's command line, and reboot"
	}
	fix += "; in a virtual machine of your own: modprobe vfio enable_unsafe_noiommu_mode=1 && modprobe vfio-pci"
	return fail("no IOMMU: DPDK can only use virtual ports, and cards that keep their kernel driver (mlx5)", fix).fatalIf(needed)
}

// capIPCLock is the bit of CAP_IPC_LOCK in CapEff (linux/capability.h).
const capIPCLock = 14

// memlock compares the limit on locked memory with the packet memory, which vfio and CUDA pin.
func memlock(_ context.Context, m *machine) Finding {
	status, _ := m.files.text("/proc/self/status")
	if capabilities := valueOf(status, "CapEff:"); len(capabilities) > 0 {
		if bits, err := strconv.ParseUint(capabilities[0], 16, 64); err == nil && bits>>capIPCLock&1 == 1 {
			return pass("no limit (CAP_IPC_LOCK)")
		}
	}
	limits, err := m.files.text("/proc/self/limits")
	if err != nil {
		return failed(err)
	}
	fields := valueOf(limits, "Max locked memory")
	if len(fields) == 0 {
		return fail("unknown: /proc/self/limits has no such line", "")
	}
	if fields[0] == "unlimited" {
		return pass("no limit")
	}

	d, _ := m.dpdk()
	wantMiB := packetMemoryMiB(d)
	limit, err := strconv.ParseUint(fields[0], 10, 64)
	if limitMiB := int(limit >> 20); err != nil || limitMiB < wantMiB {
		return fail(fmt.Sprintf("%d MiB of %d: vfio and CUDA cannot pin the packet memory", limitMiB, wantMiB),
			"ulimit -l unlimited   # in a systemd unit: LimitMEMLOCK=infinity")
	}
	return pass(fmt.Sprintf("%d MiB", limit>>20))
}

// valueOf is the fields that follow a prefix in the first line that begins with it.
func valueOf(text, prefix string) []string {
	for line := range strings.Lines(text) {
		if value, found := strings.CutPrefix(line, prefix); found {
			return strings.Fields(value)
		}
	}
	return nil
}
