package loop

import "time"

// governor enforces a share of the CPUs if no cgroup can. It is a token bucket
// that fills at the share's rate, and batches empty it. When it is empty, the
// loop pauses between two batches, never within one. So the time of a batch
// itself is that of a full CPU.
type governor struct {
	// width is the part of all CPUs that a running batch keeps busy, 0..1.
	width float64
	// tokens are the CPU time of all CPUs together, in nanoseconds.
	tokens float64
	filled int64 // when the bucket was last filled, shm.Now
}

// governorBurst is how much of its share an idle function may save. It equals the
// shortest period of the cgroup quota that the governor replaces (1 ms of quota
// at 10 %).
const governorBurst = 10 * time.Millisecond

func newGovernor(cpus, threads int) governor {
	return governor{width: min(1, float64(max(1, threads))/float64(max(1, cpus)))}
}

// spend removes a batch that ran from began to ended from the bucket. It returns
// how long the loop must pause for it; 0 if a cgroup enforces the share.
func (g *governor) spend(share *Share, began, ended int64) time.Duration {
	if share == nil || !share.Governor || share.Percent <= 0 || share.Percent >= 100 {
		return 0
	}
	rate := share.Percent / 100
	// Savings between batches are bounded; the income during a batch is not.
	g.tokens = min(g.tokens+float64(began-g.filled)*rate, float64(governorBurst)*rate)
	g.tokens += float64(ended-began) * (rate - g.width)
	g.filled = ended
	if g.tokens >= 0 {
		return 0
	}
	return time.Duration(-g.tokens / rate)
}
