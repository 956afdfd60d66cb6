package shm

import (
	"strconv"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/testing/must"
)

func TestNow(t *testing.T) {
	for range 1000 {
		before := monotonic()
		now := Now()
		after := monotonic()
		// The error between the clocks is less than the time of two system
		// calls. That time may be long on a busy machine.
		const slack = int64(time.Millisecond)
		if now < before-slack || now > after+slack {
			t.Fatalf("Now %d lies outside of %d … %d", now, before, after)
		}
	}
}

func TestNowOtherProcess(t *testing.T) {
	before := Now()
	c := spawn(t, "clock", 0, nil)
	there, err := strconv.ParseInt(c.readLine(t), 10, 64)
	must.OK(t, err)
	after := Now()
	if slack := int64(time.Millisecond); there < before-slack || there > after+slack {
		t.Errorf("the other process read %d between %d and %d", there, before, after)
	}
}

func TestNowMonotonic(t *testing.T) {
	last := Now()
	if n := testing.AllocsPerRun(1000, func() {
		now := Now()
		if now < last {
			t.Fatalf("%d after %d", now, last)
		}
		last = now
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
