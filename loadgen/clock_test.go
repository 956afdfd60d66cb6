package loadgen_test

import (
	"context"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/loadgen"
)

func TestAlarm(t *testing.T) {
	clock := loadgen.SystemClock{}
	alarm, err := clock.Alarm(t.Context())
	must.OK(t, err)
	defer alarm.Close()
	for _, sleep := range []time.Duration{0, -time.Hour, time.Microsecond, 300 * time.Microsecond, 20 * time.Millisecond, time.Nanosecond} {
		until := clock.Now() + int64(sleep)
		if !alarm.Wait(until) {
			t.Fatalf("the sleep of %v was interrupted", sleep)
		}
		if early := until - clock.Now(); early > 0 {
			t.Errorf("woke %v before the end of %v", time.Duration(early), sleep)
		}
	}
}

func TestAlarmContext(t *testing.T) {
	clock := loadgen.SystemClock{}
	ctx, cancel := context.WithCancel(t.Context())
	alarm, err := clock.Alarm(ctx)
	must.OK(t, err)
	defer alarm.Close()
	time.AfterFunc(10*time.Millisecond, cancel)
	if alarm.Wait(clock.Now() + int64(time.Hour)) {
		t.Error("a sleep of an hour was not interrupted")
	}
	if alarm.Wait(0) {
		t.Error("a sleep after the interruption was not")
	}
}

func TestAlarmAllocations(t *testing.T) {
	clock := loadgen.SystemClock{}
	alarm, err := clock.Alarm(t.Context())
	must.OK(t, err)
	defer alarm.Close()
	if allocs := testing.AllocsPerRun(20, func() { alarm.Wait(clock.Now() + int64(100*time.Microsecond)) }); allocs != 0 {
		t.Errorf("%v allocations a sleep", allocs)
	}
}
