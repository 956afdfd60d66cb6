// Package topology reads which CPUs, GPUs and network cards of a machine are near each other, and claims CPUs for a node.
package topology

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/penstock/penstock/shm/cpuset"
)

// Unknown is the NUMA node of a device if the kernel does not know it, as on most machines with one socket.
const Unknown = -1

// Machine is what the kernel says about a machine. A machine without NUMA has no nodes.
type Machine struct {
	Nodes      []Node
	GPUs, NICs []Device // in the order of their addresses
}

// Node is a NUMA node. CPUs of one core stand next to each other.
type Node struct {
	ID   int
	CPUs []int
}

// Device is a device on PCI.
type Device struct {
	Address string
	Name    string // a GPU's UUID or a card's first interface; empty if no driver has it
	Node    int
}

// Vendors and classes of PCI devices (PCI ID assignment, base classes 02h and 03h).
const (
	nvidiaVendor  = "0x10de"
	ethernetClass = "0x0200"
	displayClass  = "0x03"
)

var uuidLine = regexp.MustCompile(`(?m)^GPU UUID:\s*(\S+)`)

// Read reads /sys and /proc below root. Files that are missing leave out what they describe.
func Read(root string) (m Machine) {
	text := func(name ...string) string {
		content, _ := os.ReadFile(filepath.Join(root, filepath.Join(name...)))
		return strings.TrimSpace(string(content))
	}
	list := func(name ...string) []int {
		numbers, _ := cpuset.Parse(text(name...))
		return numbers
	}

	for _, id := range list("sys/devices/system/node/online") {
		n := Node{ID: id, CPUs: list(fmt.Sprintf("sys/devices/system/node/node%d/cpulist", id))}
		core := map[int]int{} // its first CPU
		for _, cpu := range n.CPUs {
			core[cpu] = slices.Min(append(list(topologyFolder(cpu), "thread_siblings_list"), cpu))
		}
		slices.SortFunc(n.CPUs, func(a, b int) int { return cmp.Or(core[a]-core[b], a-b) })
		m.Nodes = append(m.Nodes, n)
	}

	const devices = "sys/bus/pci/devices"
	entries, _ := os.ReadDir(filepath.Join(root, devices)) // in the order of their names
	for _, e := range entries {
		d := Device{Address: e.Name(), Node: Unknown}
		if n, err := strconv.Atoi(text(devices, d.Address, "numa_node")); err == nil && n >= 0 {
			d.Node = n
		}
		class := text(devices, d.Address, "class")
		switch {
		case strings.HasPrefix(class, displayClass) && text(devices, d.Address, "vendor") == nvidiaVendor:
			if uuid := uuidLine.FindStringSubmatch(text("proc/driver/nvidia/gpus", d.Address, "information")); uuid != nil {
				d.Name = uuid[1]
			}
			m.GPUs = append(m.GPUs, d)
		case strings.HasPrefix(class, ethernetClass):
			if interfaces, _ := os.ReadDir(filepath.Join(root, devices, d.Address, "net")); len(interfaces) > 0 {
				d.Name = interfaces[0].Name()
			}
			m.NICs = append(m.NICs, d)
		}
	}
	return m
}

func topologyFolder(cpu int) string {
	return fmt.Sprintf("sys/devices/system/cpu/cpu%d/topology", cpu)
}

// Near returns the CPUs of a NUMA node, and none if the node is unknown.
func (m Machine) Near(node int) []int {
	for _, n := range m.Nodes {
		if n.ID == node {
			return n.CPUs
		}
	}
	return nil
}

// GPU finds the GPU of a configuration's `device`: "cuda" is the first, "cuda:1" the second, and other names are UUIDs or their
// beginnings. The driver orders GPUs of one model as their addresses.
func (m Machine) GPU(name string) (Device, bool) {
	index := -1
	if name == "cuda" {
		index = 0
	} else if rest, ok := strings.CutPrefix(name, "cuda:"); ok {
		if n, err := strconv.Atoi(rest); err == nil {
			index = n
		}
	}
	for i, d := range m.GPUs {
		begins := len(name) > len("GPU-") && len(name) <= len(d.Name) && strings.EqualFold(d.Name[:len(name)], name)
		if i == index || begins {
			return d, true
		}
	}
	return Device{}, false
}
