package manager

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/manager/sharing"
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
		m := &Manager{sharing: &sharing.Sharing{}, orchestrator: orchestrator{observed: control.Observed{CPUs: c.cpus}}}
		if c.device != configs.DeviceCPU {
			m.sharing.Device.GPU = &control.ObservedDevice{}
		}
		var out bytes.Buffer
		f := &function{m: m, instances: make([]*instance, c.instances), log: zerolog.New(&out)}
		f.warnIfCrowded()
		if got := strings.Contains(out.String(), `"level":"warn","instances":3,"cpus":2`); got != c.want {
			t.Errorf("%s: logged %q, want a warning: %v", c.name, &out, c.want)
		}
	}
}

// Without an orchestrator, a drain does not wait for a process that would have served.
func TestDrainWithoutOrchestrator(t *testing.T) {
	b := newGuaranteedNode(t, configs.DeviceCPU, objective("a", time.Second))
	b.drain()
	b.step()
	if b.drained() {
		t.Fatal("the drain does not wait for processes of an orchestrator that runs")
	}
	b.gone = true
	b.step()
	if !b.drained() {
		t.Errorf("the drain still waits: %s", b.undrained())
	}
}

// If a node is killed, its processes end together with the orchestrator, perhaps before the manager
// has told them to drain.
func TestDrainWithoutReports(t *testing.T) {
	b := newGuaranteedNode(t, configs.DeviceCPU, objective("a", time.Second))
	active, _ := b.serves("a")
	shadow, _ := b.shadow("a")
	b.drain()
	in := b.instance("a", 0)
	in.lost(active)
	b.step()
	b.step()
	in.lost(shadow)
	b.step()
	if !b.drained() {
		t.Errorf("the drain still waits: %s", b.undrained())
	}
}
