package cpuset

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// maxCPU is the max number of CPUs of any Linux: NR_CPUS of MAXSMP (arch/x86/Kconfig).
const maxCPU = 8192

// Parse reads the kernel's list, "0-3,8", in any order: a file of /sys without its newline,
// or what a person wrote. An empty list means no CPUs.
func Parse(list string) (cpus []int, err error) {
	if list == "" {
		return nil, nil
	}
	for part := range strings.SplitSeq(list, ",") {
		low, high, ranged := strings.Cut(part, "-")
		if !ranged {
			high = low
		}
		first, err1 := strconv.ParseUint(low, 10, 31)
		last, err2 := strconv.ParseUint(high, 10, 31)
		switch {
		case err1 != nil || err2 != nil:
			return nil, fmt.Errorf("%q: want a CPU or a range of CPUs, like 0-15", part)
		case last < first || last >= maxCPU:
			return nil, fmt.Errorf("%q: want CPUs from 0 to %d, the lower first", part, maxCPU-1)
		}
		for cpu := first; cpu <= last; cpu++ {
			cpus = append(cpus, int(cpu))
		}
	}
	slices.Sort(cpus)
	return slices.Compact(cpus), nil
}

// Format writes cpus as Parse reads them. DPDK's EAL and the kernel's command line read the
// same format.
func Format(cpus []int) string {
	var parts []string
	for i := 0; i < len(cpus); {
		first, last := cpus[i], cpus[i]
		for i++; i < len(cpus) && cpus[i] == last+1; i++ {
			last = cpus[i]
		}
		part := strconv.Itoa(first)
		if last > first {
			part += "-" + strconv.Itoa(last)
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, ",")
}
