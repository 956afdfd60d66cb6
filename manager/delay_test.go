package manager

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/configs"
)

// A delay that leaves next to nothing of the objective is taken, and said.
func TestADelayAsLongAsTheObjectiveIsWarnedOf(t *testing.T) {
	for delay, warned := range map[time.Duration]bool{55 * time.Second: true, 54 * time.Second: false, 0: false} {
		b := newNode(t, "cpu", nil, "cgroup-v2")
		var log bytes.Buffer
		b.log = zerolog.New(&log)
		f := configs.Function{Name: "a", Instances: 1, Batching: configs.Batching{Rule: configs.Fixed, Size: 4, Delay: delay}}
		if err := b.add(f); err != nil {
			t.Fatal(err)
		}
		// The model's objective is a minute.
		says := strings.Contains(log.String(), `"level":"warn"`) && strings.Contains(log.String(), "{fixed: 4, delay: 55s}, and the objective is 1m0s")
		if says != warned {
			t.Errorf("a delay of %v: warned %v, want %v: %s", delay, says, warned, &log)
		}
	}
}
