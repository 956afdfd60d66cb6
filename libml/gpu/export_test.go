package gpu

// For tests.
var (
	JudgePriorities = judgePriorities
	ErrNotFull      = errNotFull
	ErrUnclear      = errUnclear
)
