package observe

import (
	"testing"
	"time"

	"github.com/penstock/penstock/control"
)

func TestIdleTimesAreSummedUp(t *testing.T) {
	var none Swaps
	if got := none.Idle(); got != (control.IdleMicros{}) {
		t.Errorf("summary of nothing is %+v", got)
	}
	var few Swaps
	for i := 100; i >= 1; i-- {
		few.AddIdle(time.Duration(i) * time.Microsecond)
	}
	if got, want := few.Idle(), (control.IdleMicros{Count: 100, Last: 1, P50: 51, P99: 100, Max: 100}); got != want {
		t.Errorf("summary is %+v, want %+v", got, want)
	}
	// The maximum stays forever; percentiles are of the latest.
	var many Swaps
	many.AddIdle(time.Second)
	for range keptIdleTimes {
		many.AddIdle(500 * time.Nanosecond)
	}
	if got, want := many.Idle(), (control.IdleMicros{Count: keptIdleTimes + 1, Last: 0.5, P50: 0.5, P99: 0.5, Max: 1e6}); got != want {
		t.Errorf("summary is %+v, want %+v", got, want)
	}
}
