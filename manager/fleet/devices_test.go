package fleet

import (
	"testing"
	"time"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/manager/sharing"
)

// newTwoGPUs is a node with two GPUs and MPS.
func newTwoGPUs(t *testing.T) *nodeBed {
	t.Helper()
	b := newNode(t, "cuda", h200(), sharing.MechanismMPS)
	b.second = h200()
	b.second.UUID = "GPU-2"
	b.orchestrator.desired.Devices = []string{"cuda", "cuda:1"}
	b.addDevice("cuda:1", &Options{Dir: t.TempDir()})
	return b
}

// Each device has its own shares: what one has no room for runs on the other.
func TestPlaceByShare(t *testing.T) {
	b := newTwoGPUs(t)
	b.turns()
	for _, f := range []struct {
		name    string
		percent float64
		device  string
	}{{"a", 70, "cuda"}, {"b", 60, "cuda:1"}, {"c", 30, "cuda:1"}, {"d", 30, "cuda"}} {
		must.OK(t, b.add(named(f.name, f.percent)))
		b.turns()
		in := b.instance(f.name, 0)
		p := b.told.Processes[len(b.told.Processes)-1]
		if q := in.pair.Active(); in.device.Device.Name != f.device || p.IF != f.name || p.Device != f.device || q == nil || q.State != control.Active {
			t.Errorf("%s runs on %s, its process on %s as %+v; want %s", f.name, in.device.Device.Name, p.Device, q, f.device)
		}
	}
	if err := b.add(named("e", 20)); err == nil {
		t.Error("a function without room on any device was added")
	}
}

// A function without a share runs on the device with most guarantee left.
func TestPlaceByGuarantee(t *testing.T) {
	b := newTwoGPUs(t)
	b.cfg.Shares.Policy = configs.PolicyGuarantee
	b.turns()
	for i, name := range []string{"a", "b", "c", "d"} {
		must.OK(t, b.add(objective(name, time.Second)))
		b.turns()
		if in := b.instance(name, 0); in.device != b.devices[i%2] {
			t.Errorf("%s runs on %s", name, in.device.Device.Name)
		}
	}
	for _, f := range b.page().Functions {
		if f.Guarantee == nil || f.Guarantee.Percent != 45 {
			t.Errorf("%s has the guarantee %+v, want half of what a device guarantees", f.Name, f.Guarantee)
		}
	}
}

// A fault ends and wakes the processes of its device only.
func TestFaultOfOneDevice(t *testing.T) {
	b := newTwoGPUs(t)
	b.turns()
	for _, name := range []string{"a", "b"} {
		must.OK(t, b.add(named(name, 60)))
		b.turns()
	}
	other, _ := b.serves("b")
	b.fault("a")
	b.turns()
	if now, _ := b.serves("b"); now != other || b.devices[0].faults.count != 1 || b.devices[1].faults.count != 0 {
		t.Errorf("generation %d serves on the other device, want %d; %d and %d faults", now, other, b.devices[0].faults.count, b.devices[1].faults.count)
	}
	if in := b.instance("a", 0); in.pair.Active() == nil || in.pair.Active().Generation == 1 {
		t.Errorf("%+v serves after the fault", in.pair.Active())
	}
}
