package manager

import (
	"testing"
	"time"

	"github.com/penstock/penstock/control"
)

func TestIdleTimesAreSummedUp(t *testing.T) {
	var none swaps
	if got := none.idle(); got != (control.IdleMicros{}) {
		t.Errorf("summary of nothing is %+v", got)
	}
	var few swaps
	for i := 100; i >= 1; i-- {
		few.addIdle(time.Duration(i) * time.Microsecond)
	}
	if got, want := few.idle(), (control.IdleMicros{Count: 100, Last: 1, P50: 51, P99: 100, Max: 100}); got != want {
		t.Errorf("summary is %+v, want %+v", got, want)
	}
	// The maximum stays forever; percentiles are of the latest.
	var many swaps
	many.addIdle(time.Second)
	for range keptIdleTimes {
		many.addIdle(500 * time.Nanosecond)
	}
	if got, want := many.idle(), (control.IdleMicros{Count: keptIdleTimes + 1, Last: 0.5, P50: 0.5, P99: 0.5, Max: 1e6}); got != want {
		t.Errorf("summary is %+v, want %+v", got, want)
	}
}
