package orchestrator

import (
	"math"
	"runtime"
	"slices"

	"github.com/penstock/penstock/shm/cpuset"
)

// Near are the CPUs in the NUMA nodes of a node's devices. An empty list has no preference.
type Near struct {
	NIC []int // of the network card, for the manager, which receives
	GPU []int // of the GPU, for its functions
	// Part is the node's part of GPU: its GPUs divided by the GPUs there.
	Part float64
}

// IFCPUs divides the CPUs that this process may run on (sched_getaffinity) between the
// manager and the inference functions; see splitCPUs. Call it while the affinity is
// still the one that the node was started with.
func IFCPUs(reserved int, near Near) (manager, ifs []int) {
	return splitCPUs(allowedCPUs(), reserved, near)
}

// splitCPUs gives the manager the first reserved of the allowed CPUs, those near the network card before others. The inference
// functions get the rest, which counts as their 100 %, and only those near the GPU if there are any. If reserved ≤ 0, the
// manager gets an eighth, at least one. Two cores together send and receive 4.2 GB/s of datagrams,
// more than the models on eight cores can consume. The functions get at least one CPU. If
// only one CPU is allowed, both share it.
func splitCPUs(allowed []int, reserved int, near Near) (manager, ifs []int) {
	n := len(allowed)
	if n <= 1 {
		return allowed, allowed
	}
	if reserved <= 0 {
		reserved = max(1, n/8)
	}
	reserved = min(reserved, n-1)
	card := common(allowed, near.NIC)
	manager = slices.Concat(card, without(allowed, card))[:reserved:reserved]
	slices.Sort(manager)
	ifs = without(allowed, manager)
	if gpu := common(ifs, near.GPU); len(gpu) > 0 {
		ifs = gpu
	}
	return manager, ifs
}

// ChooseCPUs chooses a node's CPUs among the allowed ones that other nodes have not taken. A node on a GPU gets its part of the
// CPUs near it, and some for the manager near the network card. Other nodes get all that are free. If fewer than two are
// free, the node shares all with the others.
func ChooseCPUs(allowed, taken []int, reserved int, near Near) (cpus []int, shared bool) {
	free := without(allowed, taken)
	if len(free) < min(2, len(allowed)) {
		return allowed, true
	}
	size := max(2, int(math.Ceil(near.Part*float64(len(common(near.GPU, allowed))))))
	cpus = common(near.GPU, free)
	if len(cpus) < 2 {
		return free, false
	}
	cpus = cpus[:min(size, len(cpus))]
	if len(common(near.NIC, near.GPU)) == 0 {
		card := common(near.NIC, free)
		if reserved <= 0 {
			reserved = max(1, len(cpus)/8)
		}
		cpus = append(cpus, card[:min(reserved, len(card))]...)
	}
	slices.Sort(cpus)
	return cpus, false
}

// common returns those of cpus that are also in others.
func common(cpus, others []int) []int {
	return slices.DeleteFunc(slices.Clone(cpus), func(cpu int) bool { return !slices.Contains(others, cpu) })
}

func without(cpus, others []int) []int {
	return slices.DeleteFunc(slices.Clone(cpus), func(cpu int) bool { return slices.Contains(others, cpu) })
}

func allowedCPUs() []int {
	cpus, err := cpuset.Allowed()
	if err != nil { // more CPUs than a set holds
		cpus = make([]int, runtime.NumCPU())
		for i := range cpus {
			cpus[i] = i
		}
	}
	return cpus
}
