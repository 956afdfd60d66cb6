package guarantee

import "time"

// CapBatches completes the actions for a device on which batches run one after the other: a batch
// of any level blocks those of all other functions until it ends. It caps the batches of each function
// so that the others pass the response-time test, or block them for at most a third of their objectives
// (Batch). A function within its guarantee may always run the batches that its need was computed with.
// The test is then repeated with the capped batches.
func CapBatches(functions []Function, actions []Action) {
	for i := range functions {
		f := &functions[i]
		if !f.costKnown() {
			continue
		}
		slack := max(f.Objective/3, f.Objective-f.batchCost()-earlier(functions, actions, i))
		for j := range functions {
			if a := &actions[j]; j != i && (a.LongestBatch == 0 || slack < a.LongestBatch) {
				a.LongestBatch = slack
			}
		}
	}
	for i := range functions {
		if f, a := &functions[i], &actions[i]; a.LongestBatch > 0 && a.Kept {
			a.LongestBatch = max(a.LongestBatch, f.batchCost())
		}
	}
	for i := range functions {
		blocking := time.Duration(0)
		for j := range functions {
			if j != i {
				blocking = max(blocking, min(functions[j].LongestBatch, actions[j].LongestBatch))
			}
		}
		actions[i].Infeasible = infeasible(functions, actions, i, blocking)
	}
}

// Requests returns how many requests a batch may have to take at most that long: at least one. It
// returns 0, no limit, if the cost is not known, longest is 0, or a batch of any size takes no longer.
func (f *Function) Requests(longest time.Duration) int {
	switch {
	case !f.costKnown() || longest == 0:
		return 0
	case f.Cost > 0:
		return max(1, int((longest-f.Fixed)/f.Cost))
	case f.Fixed <= longest:
		return 0
	}
	return 1
}
