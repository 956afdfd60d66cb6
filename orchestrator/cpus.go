package orchestrator

import (
	"runtime"

	"github.com/penstock/penstock/shm/cpuset"
)

// IFCPUs divides the CPUs that this process may run on (sched_getaffinity) between the
// manager and the inference functions; see splitCPUs. Call it while the affinity is
// still the one that the node was started with.
func IFCPUs(reserved int) (manager, ifs []int) { return splitCPUs(allowedCPUs(), reserved) }

// splitCPUs gives the manager the first reserved of the allowed CPUs. The inference
// functions get the rest, which counts as their 100 %. If reserved ≤ 0, the manager
// gets an eighth, at least one. Two cores together send and receive 4.2 GB/s of datagrams,
// more than the models on eight cores can consume. The functions get at least one CPU. If
// only one CPU is allowed, both share it.
func splitCPUs(allowed []int, reserved int) (manager, ifs []int) {
	n := len(allowed)
	if n <= 1 {
		return allowed, allowed
	}
	if reserved <= 0 {
		reserved = max(1, n/8)
	}
	reserved = min(reserved, n-1)
	return allowed[:reserved:reserved], allowed[reserved:]
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
