package cgroup

import (
	"math"
	"time"
)

// The kernel's bounds of CFS bandwidth control (kernel/sched: sched-bwc.rst): a period
// of 1 ms to 1 s, a quota of at least 1 ms.
const (
	minPeriod = time.Millisecond
	maxPeriod = time.Second
	minQuota  = time.Millisecond
)

// Quota limits CPU time: runtime per period, over all CPUs. The zero value is no limit.
// Both are whole microseconds, the kernel's unit.
type Quota struct {
	Runtime, Period time.Duration
}

// QuotaFor returns sharePercent of cpus CPUs, in the shortest period whose quota the
// kernel accepts. A process that has used its quota stands still until the period ends,
// so a period longer than the latency objective would break the objective. 30 % of one
// CPU is 1 ms in 3.3 ms; the usual period of 100 ms would stop the process for 70 ms.
//
// The mean is exact, but the kernel sets the granularity. It stops a process that
// computes without pause only at a scheduler tick. The process then stands still until
// it has paid its debt. Measured with ticks of 4 ms (CONFIG_HZ=250): 1 ms in 3.3 ms
// gave 29 % with pauses of 5 to 10 ms. 1 ms in 10 ms gave 10 % with pauses of 27 to
// 35 ms. A longer period would only add to the pauses.
//
// A share of all CPUs is no limit, as the affinity already enforces it. A share of less
// than 1 ms in 1 s (0.1 % of a CPU) is rounded up to that.
func QuotaFor(sharePercent float64, cpus int) Quota {
	if sharePercent >= 100 {
		return Quota{}
	}
	share := sharePercent / 100 * float64(cpus) // in CPUs
	period := maxPeriod
	if share > 0 {
		shortest := math.Ceil(minQuota.Seconds()/share*1e6) * 1e3 // whole µs, in ns
		if shortest < float64(maxPeriod) {
			period = max(minPeriod, time.Duration(shortest))
		}
	}
	runtime := time.Duration(share * float64(period)).Round(time.Microsecond)
	return Quota{Runtime: max(minQuota, runtime), Period: period}
}
