package check

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/orchestrator"
	"github.com/penstock/penstock/orchestrator/topology"
	"github.com/penstock/penstock/shm/cpuset"
)

// Near returns the CPUs near the devices of a configuration.
func Near(c configs.Config) orchestrator.Near { return nearDevices(c, topology.Read("/")) }

func nearDevices(c configs.Config, t topology.Machine) (near orchestrator.Near) {
	own, names := t.GPUs, c.DeviceNames()
	if !slices.Contains(names, configs.DeviceAll) {
		own = nil
		for _, name := range names {
			if g, ok := t.GPU(name); ok {
				own = append(own, g)
			}
		}
	}
	if slices.Contains(names, configs.DeviceCPU) {
		own = nil // functions on the CPU use all CPUs
	}
	on := func(gpus []topology.Device, node int) (n int) {
		for _, g := range gpus {
			if g.Node == node {
				n++
			}
		}
		return n
	}
	there := 0
	for _, n := range t.Nodes {
		if ours := on(own, n.ID); ours > 0 {
			near.GPU = append(near.GPU, n.CPUs...)
			near.Part += float64(ours)
			there += on(t.GPUs, n.ID)
		}
	}
	near.Part /= max(1, float64(there))
	card := interfaceOf(c.Listen)
	if d := c.Source.DPDK; d != nil {
		card = strings.ToLower(portName(d.Port))
	}
	for _, n := range t.NICs {
		if card != "" && (n.Name == card || n.Address == card) {
			near.NIC = t.Near(n.Node)
		}
	}
	return near
}

// interfaceOf returns the interface that has an address. It is empty for addresses of all interfaces.
func interfaceOf(address netip.Addr) string {
	interfaces, _ := net.Interfaces()
	for _, i := range interfaces {
		addresses, _ := i.Addrs()
		for _, a := range addresses {
			if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr() == address.Unmap() {
				return i.Name
			}
		}
	}
	return ""
}

// numaNodes shows what is near each other, and which processes have claimed CPUs (penstock up).
func numaNodes(_ context.Context, m *machine) (list []Finding) {
	t := m.topology()
	for _, n := range t.Nodes {
		f := pass("CPUs " + cpuset.Format(slices.Sorted(slices.Values(n.CPUs)))).about(fmt.Sprintf("numa node %d", n.ID))
		for _, g := range t.GPUs {
			if g.Node == n.ID {
				f.Text += ", GPU " + g.Address
			}
		}
		for _, c := range t.NICs {
			if c.Node == n.ID {
				f.Text += ", card " + cmp.Or(c.Name, c.Address)
			}
		}
		claimed := map[int][]int{}
		owners := topology.Owners(string(m.files), n.CPUs)
		for _, cpu := range slices.Sorted(maps.Keys(owners)) {
			claimed[owners[cpu]] = append(claimed[owners[cpu]], cpu)
		}
		for _, pid := range slices.Sorted(maps.Keys(claimed)) {
			f.Text += fmt.Sprintf("; the node of process %d has %s", pid, cpuset.Format(claimed[pid]))
		}
		list = append(list, f)
	}
	return list
}

func (m *machine) topology() topology.Machine { return topology.Read(string(m.files)) }

// nodeText is the number of a NUMA node, or "unknown".
func nodeText(n int) string {
	if n == topology.Unknown {
		return "unknown"
	}
	return strconv.Itoa(n)
}

// numa compares the nodes of the card, the polling cores and the GPUs.
func numa(_ context.Context, m *machine) Finding {
	t := m.topology()
	if len(t.Nodes) < 2 {
		return pass("one node, so card, cores and GPU are on the same node")
	}

	d, _ := m.dpdk()
	var parts []string
	card := topology.Unknown
	if isPCI(d.Port) {
		for _, n := range t.NICs {
			if n.Address == strings.ToLower(portName(d.Port)) {
				card = n.Node
			}
		}
		parts = append(parts, "card on node "+nodeText(card))
	}
	gpuNodes := map[int]bool{}
	for _, g := range t.GPUs {
		gpuNodes[g.Node] = true
		parts = append(parts, fmt.Sprintf("GPU %s on node %s", g.Address, nodeText(g.Node)))
	}
	coreElsewhere := false
	for _, core := range d.LCores {
		node := topology.Unknown
		for _, n := range t.Nodes {
			if slices.Contains(n.CPUs, core) {
				node = n.ID
			}
		}
		parts = append(parts, fmt.Sprintf("core %d on node %s", core, nodeText(node)))
		coreElsewhere = coreElsewhere || card != topology.Unknown && node != card
	}

	f := pass(fmt.Sprintf("%d nodes", len(t.Nodes)))
	if len(parts) > 0 {
		f.Text += ": " + strings.Join(parts, ", ")
	}
	if coreElsewhere {
		cpus := slices.Sorted(slices.Values(t.Near(card)))
		f.OK, f.Fix = false, "set source.dpdk.lcores to CPUs of the card's node: "+cpuset.Format(cpus)
	}
	if card != topology.Unknown && len(gpuNodes) > 0 && !gpuNodes[card] {
		f.OK = false
		f.Text += "; every packet crosses from the card's node to the GPU's"
		f.Fix = cmp.Or(f.Fix, "put card and GPU into slots of the same node")
	}
	return f
}

// isolatedCores checks that the kernel runs nothing else on the cores that poll.
func isolatedCores(_ context.Context, m *machine) Finding {
	isolated, _ := m.files.list("/sys/devices/system/cpu/isolated")
	online, _ := m.files.list("/sys/devices/system/cpu/online")
	d, _ := m.dpdk()
	if len(d.LCores) == 0 {
		if len(isolated) > 0 {
			return pass(fmt.Sprint(isolated))
		}
		f := fail("none: other programs run on a polling core, which then loses packets", "")
		if len(online) > 1 {
			f.Fix = isolateSetting(online[len(online)-1:])
		}
		return f
	}

	var missing, shared []int
	for _, core := range d.LCores {
		switch {
		case !slices.Contains(online, core):
			missing = append(missing, core)
		case !slices.Contains(isolated, core):
			shared = append(shared, core)
		}
	}
	switch {
	case len(missing) > 0:
		return fail(fmt.Sprintf("source.dpdk.lcores has %v, and the machine has %v", missing, online), "set source.dpdk.lcores to CPUs of the machine").fatalIf(true)
	case len(shared) > 0:
		return fail(fmt.Sprintf("%v also run other programs", shared), isolateSetting(shared))
	}
	return pass(fmt.Sprintf("%v, all isolated", d.LCores))
}

// isolateSetting keeps cores free (Documentation/admin-guide/kernel-parameters.txt of Linux).
func isolateSetting(cores []int) string {
	return fmt.Sprintf("add isolcpus=%[1]s nohz_full=%[1]s rcu_nocbs=%[1]s to the kernel's command line, and reboot", cpuset.Format(cores))
}
