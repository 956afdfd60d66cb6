package partition

import "github.com/penstock/penstock/manager/policy/gslice"

// Allocator divides a device's groups again whenever that may have another result. It knows
// where every process may be running. The zero value is for a device without processes. An
// Allocator is not safe for concurrent use.
type Allocator struct {
	ledger ledger
	stale  bool
}

// Invalidate records that a claim, or the set of groups, has changed.
func (a *Allocator) Invalidate() { a.stale = true }

// Stale reports whether Divide may have another result than last time.
func (a *Allocator) Stale() bool { return a.stale }

// Publish records a state that is sent to the orchestrator: the groups of each desired process
// that may use the device. Sequence numbers start at 1 and rise.
func (a *Allocator) Publish(seq uint64, desired map[Process][]int) {
	a.ledger.Publish(seq, desired)
	a.stale = true
}

// Observe records the orchestrator's report on all processes that it knows, after it carried out
// the acknowledged state.
func (a *Allocator) Observe(acknowledged uint64, observed map[Process]Observed) {
	a.ledger.Observe(acknowledged, observed)
	a.stale = true
}

// Settled reports whether a process runs on exactly these groups.
func (a *Allocator) Settled(p Process, groups []int) bool { return a.ledger.Settled(p, groups) }

// On returns the groups that a process last reported to run on or move to. The caller must not
// change them.
func (a *Allocator) On(p Process) []int { return a.ledger.On(p) }

// Divide returns the groups of each claim, in the order of the claims. Their IDs must differ, and
// Ordered must be what the last call returned as Now. groupSMs are the sizes of the groups by
// index; only the last may differ. Divide sets Busy of each claim. It returns ErrTooMany if there
// are fewer groups than claims.
func (a *Allocator) Divide(groupSMs []int, claims []Claim) ([]Order, error) {
	a.stale = false
	ids := map[gslice.ID]bool{}
	for i := range claims {
		claims[i].Busy = a.ledger.Busy(claims[i].ID)
		ids[claims[i].ID] = true
	}
	return divide(groupSMs, claims, a.ledger.Others(ids))
}
