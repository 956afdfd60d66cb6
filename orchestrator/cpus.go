package orchestrator

import (
	"fmt"
	"os"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

// IFCPUs divides the CPUs that this process may run on (sched_getaffinity)
// between the manager and the inference functions; see SplitCPUs. Call it where
// the affinity is still the one that the node was started with.
func IFCPUs(reserved int) (manager, ifs []int) { return SplitCPUs(allowedCPUs(), reserved) }

// SplitCPUs gives the manager the first reserved of the allowed CPUs, and the
// inference functions the rest: their 100 %. Without a wish (reserved ≤ 0) the
// manager gets an eighth, at least one: two cores send and receive 4.2
// GB/s of datagrams between them, which is more than the models of eight can eat. The
// functions are left at least one; with a single CPU both share it.
func SplitCPUs(allowed []int, reserved int) (manager, ifs []int) {
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
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		// More CPUs than a CPUSet holds: 1024.
		cpus := make([]int, runtime.NumCPU())
		for i := range cpus {
			cpus[i] = i
		}
		return cpus
	}
	cpus := make([]int, 0, set.Count())
	for i := 0; len(cpus) < set.Count(); i++ {
		if set.IsSet(i) {
			cpus = append(cpus, i)
		}
	}
	return cpus
}

// Pin keeps this process, all its threads and those to come, on cpus. None means
// anywhere.
func Pin(cpus []int) error {
	if len(cpus) == 0 {
		return nil
	}
	var set unix.CPUSet
	for _, cpu := range cpus {
		set.Set(cpu)
	}
	// A thread inherits from the one that made it, so a second look finds any that
	// was made during the first.
	for range 2 {
		tasks, err := os.ReadDir("/proc/self/task")
		if err != nil {
			return fmt.Errorf("list own threads: %w", err)
		}
		for _, task := range tasks {
			id, err := strconv.Atoi(task.Name())
			if err != nil {
				continue
			}
			if err := unix.SchedSetaffinity(id, &set); err != nil && err != unix.ESRCH {
				return fmt.Errorf("pin thread %d to CPUs %v: %w", id, cpus, err)
			}
		}
	}
	return nil
}
