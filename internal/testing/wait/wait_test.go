package wait

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// stopped is the panic of a test that failed.
type stopped struct{ testing.TB }

func (stopped) Helper() {}

func (stopped) Fatalf(format string, a ...any) { panic(fmt.Sprintf(format, a...)) }

func TestFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		For(t, "a second to pass", func() bool { return time.Since(began) >= time.Second })
		if took := time.Since(began); took > time.Second+10*time.Millisecond {
			t.Errorf("waited %s for a second", took)
		}

		began = time.Now()
		seconds := func() int { return min(3, int(time.Since(began).Seconds())) }
		if got := Still(t, "the clock", 1500*time.Millisecond, seconds); got != 3 {
			t.Errorf("the clock stayed at %d, want 3", got)
		}

		defer func() {
			if got := recover(); got != "waited 1m30s for nothing" {
				t.Errorf("failed with %v", got)
			}
		}()
		For(stopped{t}, "nothing", func() bool { return false })
	})
}
