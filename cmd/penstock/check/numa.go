package check

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/penstock/penstock/shm/cpuset"
)

// numaNode is the number of a node. It prints as a number or as "unknown".
type numaNode int

const unknownNode numaNode = -1

func (n numaNode) String() string {
	if n == unknownNode {
		return "unknown"
	}
	return strconv.Itoa(int(n))
}

// numa compares the nodes of the card, the polling cores and the GPUs.
func numa(_ context.Context, m *machine) Finding {
	online, err := m.files.list("/sys/devices/system/node/online")
	if err != nil || len(online) < 2 {
		return pass("one node, so card, cores and GPU are on the same node")
	}

	d, _ := m.dpdk()
	var parts []string
	card := unknownNode
	if isPCI(d.Port) {
		card = m.nodeOfDevice(portName(d.Port))
		parts = append(parts, fmt.Sprintf("card on node %v", card))
	}
	gpuNodes := map[numaNode]bool{}
	for _, address := range m.files.names(pciDevices) {
		vendor, _ := m.files.text(pciFile(address, "vendor"))
		class, _ := m.files.text(pciFile(address, "class"))
		if vendor == nvidiaVendor && strings.HasPrefix(class, displayClass) {
			n := m.nodeOfDevice(address)
			gpuNodes[n] = true
			parts = append(parts, fmt.Sprintf("GPU %s on node %v", address, n))
		}
	}
	coreElsewhere := false
	for _, core := range d.LCores {
		n := m.nodeOfCore(core, online)
		parts = append(parts, fmt.Sprintf("core %d on node %v", core, n))
		coreElsewhere = coreElsewhere || card != unknownNode && n != card
	}

	f := pass(fmt.Sprintf("%d nodes", len(online)))
	if len(parts) > 0 {
		f.Text += ": " + strings.Join(parts, ", ")
	}
	if coreElsewhere {
		cpus, _ := m.files.text(cpuList(int(card)))
		f.OK, f.Fix = false, fmt.Sprintf("set source.dpdk.lcores to CPUs of the card's node: %s", cpus)
	}
	if card != unknownNode && len(gpuNodes) > 0 && !gpuNodes[card] {
		f.OK = false
		f.Text += "; every packet crosses from the card's node to the GPU's"
		f.Fix = cmp.Or(f.Fix, "put card and GPU into slots of the same node")
	}
	return f
}

func cpuList(node int) string { return fmt.Sprintf("/sys/devices/system/node/node%d/cpulist", node) }

func (m *machine) nodeOfDevice(address string) numaNode {
	n, err := m.files.number(pciFile(address, "numa_node"))
	if err != nil || n < 0 {
		return unknownNode
	}
	return numaNode(n)
}

func (m *machine) nodeOfCore(core int, nodes []int) numaNode {
	for _, n := range nodes {
		if cpus, _ := m.files.list(cpuList(n)); slices.Contains(cpus, core) {
			return numaNode(n)
		}
	}
	return unknownNode
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
