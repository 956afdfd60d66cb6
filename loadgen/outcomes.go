package loadgen

import "github.com/penstock/penstock/loadgen/tabular"

// Outcomes counts how requests ended. Each request is counted once: Sent is the sum of all others.
type Outcomes struct {
	Sent       uint64
	InTime     uint64 // ok within the objective
	TooLate    uint64 // ok after it
	Late       uint64 // the node did not run them, because they could no longer be in time
	Dropped    uint64 // the client did not send them, for the same reason
	Busy       uint64
	Incomplete uint64
	Refused    uint64
	Failed     uint64
	Lost       uint64 // the manager accepted and never answered them
	Unanswered uint64 // all others without an answer
}

// Outcomes returns how the requests of the measured time ended. If the manager was not asked, lost
// requests are among the unanswered ones.
func (f *FunctionReport) Outcomes() Outcomes {
	o := Outcomes{
		Sent: f.Sent, InTime: f.InTime, TooLate: f.OK - f.InTime, Late: f.Late - f.Dropped, Dropped: f.Dropped,
		Busy: f.Busy, Incomplete: f.Incomplete, Refused: f.Refused, Failed: f.Failed, Unanswered: f.Unanswered,
	}
	if f.Lost != nil {
		o.Lost = min(*f.Lost, f.Unanswered) // the manager also counts those of the warm-up
		o.Unanswered -= o.Lost
	}
	return o
}

// OutcomeColumns are the columns of Cells.
var OutcomeColumns = []tabular.Column{
	{Name: "sent"}, {Name: "in time"}, {Name: "too late", Count: true}, {Name: "late", Count: true}, {Name: "dropped", Count: true},
	{Name: "busy", Count: true}, {Name: "incomplete", Count: true}, {Name: "refused", Count: true}, {Name: "failed", Count: true},
	{Name: "lost"}, {Name: "unanswered", Count: true},
}

// Cells are the counts as cells of a table.
func (o *Outcomes) Cells() (cells []string) {
	for _, n := range []uint64{
		o.Sent, o.InTime, o.TooLate, o.Late, o.Dropped, o.Busy, o.Incomplete, o.Refused, o.Failed, o.Lost, o.Unanswered,
	} {
		cells = append(cells, count(n))
	}
	return cells
}
