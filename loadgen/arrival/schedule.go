package arrival

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/penstock/penstock/models/document"
)

// Change is one line of a schedule: from At on, Function has the rate
// PerSecond.
type Change struct {
	At        time.Duration
	Function  string
	PerSecond float64
	// Where is the file and line, for the error if the function does not exist.
	Where string
}

// Schedule is the changes of rates, in order of time.
type Schedule []Change

// ParseSchedule reads a schedule, CSV under the header time,function,rate:
//
//	time,function,rate
//	15s,face,400
//
// Times are durations since the start of the measured run ("15s", "1m30s") and
// never decrease. Rates are requests per second. Every error names the file and
// the line.
func ParseSchedule(name string, data []byte) (schedule Schedule, err error) {
	columns := []string{"time", "function", "rate"}
	t, err := document.OpenTable(name, bytes.NewReader(data), columns, len(columns))
	if err != nil {
		return nil, err
	}
	for t.Next() {
		if schedule, err = schedule.add(t, name); err != nil {
			return nil, err
		}
	}
	return schedule, t.Err()
}

// Rate returns a function's rate under the schedule if it starts at perSecond.
func (s Schedule) Rate(function string, perSecond float64) Rate {
	rate := At(perSecond)
	for _, change := range s {
		if change.Function == function {
			rate = rate.Then(change.At, change.PerSecond)
		}
	}
	return rate
}

// CheckFunctions returns an error that names the first line whose function is
// not in known.
func (s Schedule) CheckFunctions(known []string) error {
	for _, change := range s {
		if !slices.Contains(known, change.Function) {
			return fmt.Errorf("%s: function %q gets no traffic; there are %s", change.Where, change.Function, strings.Join(known, ", "))
		}
	}
	return nil
}

func (s Schedule) add(t *document.Table, file string) (Schedule, error) {
	function := t.Text("function")
	when, err := time.ParseDuration(t.Text("time"))
	if err != nil || when < 0 {
		return nil, t.Fail("time", "time %q: want a duration since the start, like 15s", t.Text("time"))
	}
	perSecond, err := strconv.ParseFloat(t.Text("rate"), 64)
	if err != nil || !(perSecond >= 0) || math.IsInf(perSecond, 0) {
		return nil, t.Fail("rate", "rate %q: want a number of requests per second", t.Text("rate"))
	}
	if function == "" {
		return nil, t.Fail("function", "the function is missing")
	}
	if len(s) > 0 && when < s[len(s)-1].At {
		return nil, t.Fail("time", "time %v is before that of the previous entry, %v", when, s[len(s)-1].At)
	}
	return append(s, Change{At: when, Function: function, PerSecond: perSecond, Where: fmt.Sprintf("%s:%d", file, t.Line())}), nil
}
