package manager

import (
	"bytes"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
)

func TestWarnIfCrowded(t *testing.T) {
	for _, c := range []struct {
		name            string
		device          string
		instances, cpus int
		want            bool
	}{
		{"one per CPU", configs.DeviceCPU, 2, 2, false},
		{"more", configs.DeviceCPU, 3, 2, true},
		{"CPUs are not known yet", configs.DeviceCPU, 3, 0, false},
		{"a GPU", "cuda", 3, 2, false},
	} {
		m := &Manager{orchestrator: orchestrator{observed: control.Observed{CPUs: c.cpus}}}
		if c.device != configs.DeviceCPU {
			m.device.gpu = &control.ObservedDevice{}
		}
		var out bytes.Buffer
		f := &function{m: m, instances: make([]*instance, c.instances), log: zerolog.New(&out)}
		f.warnIfCrowded()
		if got := strings.Contains(out.String(), `"level":"warn","instances":3,"cpus":2`); got != c.want {
			t.Errorf("%s: logged %q, want a warning: %v", c.name, &out, c.want)
		}
	}
}
