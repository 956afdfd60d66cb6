package libml

import "time"

// governor holds a share of the CPUs where no cgroup can: a token bucket that
// fills at the share's rate and is emptied by batches. An empty one makes the
// loop pause between two batches, never within one, so a batch's own time is
// that of a whole CPU.
type governor struct {
	// width is how much of all CPUs a running batch keeps busy, 0..1.
	width float64
	// tokens are CPU time of all CPUs together, in nanoseconds.
	tokens float64
	filled int64 // when the bucket was last filled, shm.Now
}

// governorBurst is how much of its share an idle function may save up: as long as
// the shortest period of the cgroup quota that it stands for (1 ms of quota at
// 10 %).
const governorBurst = 10 * time.Millisecond

func newGovernor(cpus, threads int) governor {
	return governor{width: min(1, float64(max(1, threads))/float64(max(1, cpus)))}
}

// spend takes a batch that ran from began to ended out of the bucket and says how
// long the loop must pause for it; 0 where a cgroup holds the share.
func (g *governor) spend(share *shareOrder, began, ended int64) time.Duration {
	if share == nil || !share.governor || share.percent <= 0 || share.percent >= 100 {
		return 0
	}
	rate := share.percent / 100
	// What is saved up between batches is bounded; what comes in during one is not.
	g.tokens = min(g.tokens+float64(began-g.filled)*rate, float64(governorBurst)*rate)
	g.tokens += float64(ended-began) * (rate - g.width)
	g.filled = ended
	if g.tokens >= 0 {
		return 0
	}
	return time.Duration(-g.tokens / rate)
}
