package orchestrator

import (
	"math"
	"time"
)

// The kernel's bounds of CFS bandwidth control (kernel/sched: sched-bwc.rst):
// a period of 1 ms to 1 s, a quota of at least 1 ms.
const (
	minPeriod = time.Millisecond
	maxPeriod = time.Second
	minQuota  = time.Millisecond
)

// quota is a limit of CPU time: runtime in every period, over all CPUs. The zero
// value is no limit. Both are whole microseconds, the kernel's unit.
type quota struct {
	runtime, period time.Duration
}

// quotaFor is sharePercent of cpus CPUs, in the shortest period whose quota the
// kernel takes: a process that has used its quota stands still until the period
// ends, so a period beyond the latency objective would break it. 30 % of one CPU
// is 1 ms in 3.3 ms; the usual period of 100 ms would stop it for 70.
//
// The mean is exact; the grain is the kernel's. One that computes on and on is
// stopped at a scheduler tick only, and then stands still until its debt is paid:
// measured with ticks of 4 ms (CONFIG_HZ=250), 1 ms in 3.3 ms gave 29 % with
// pauses of 5 to 10 ms, and 1 ms in 10 ms gave 10 % with pauses of 27 to 35 ms. A
// longer period would only add to them.
//
// All of the CPUs is no limit: the affinity holds it already. Less than 1 ms in
// 1 s (0.1 % of a CPU) is rounded up to that.
func quotaFor(sharePercent float64, cpus int) quota {
	if sharePercent >= 100 {
		return quota{}
	}
	share := sharePercent / 100 * float64(cpus) // in CPUs
	period := maxPeriod
	if share > 0 {
		shortest := math.Ceil(minQuota.Seconds()/share*1e6) * 1e3 // in whole µs, as ns
		if shortest < float64(maxPeriod) {
			period = max(minPeriod, time.Duration(shortest))
		}
	}
	runtime := time.Duration(share * float64(period)).Round(time.Microsecond)
	return quota{runtime: max(minQuota, runtime), period: period}
}
