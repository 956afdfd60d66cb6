package fleet

import (
	"slices"
	"testing"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/manager/policy/pair"
	"github.com/penstock/penstock/manager/sharing"
)

func TestDesireAwaitsDevice(t *testing.T) {
	f := named("a", 50)
	f.Change = configs.ChangePartition
	b := newNode(t, "cuda", nil, "", f)
	b.turn()
	b.turn()
	if len(b.told.Processes) != 0 || !slices.Equal(b.told.Devices, []string{"cuda"}) || b.told.Seq == 0 {
		t.Fatalf("desired %+v, want the device asked for and no process", b.told)
	}
	b.gpu, b.mechanism = h200(), sharing.MechanismMPS
	b.turns()
	_, p := b.serves("a")
	if b.sms(p.on) < 66 || b.sms(p.on) > 76 {
		t.Errorf("it runs on %d multiprocessors, want half", b.sms(p.on))
	}
	_, shadow := b.shadow("a")
	if shadow.state != control.Loaded || len(shadow.groups()) != 0 {
		t.Errorf("shadow %+v, want it loaded and on no group", shadow)
	}
}

func TestRemoveWithoutDevice(t *testing.T) {
	b := newNode(t, "cuda", nil, "", named("a", 50))
	b.turn()
	must.OK(t, b.remove("a"))
	b.turns()
	if b.functions.find("a") != nil {
		t.Error("it waits for the end of a process that never began")
	}
}

func TestAutoWithoutGPU(t *testing.T) {
	b := newNode(t, "auto", nil, "", named("a", 50))
	b.turn()
	if len(b.told.Processes) != 0 {
		t.Fatalf("desired %+v before anything is known", b.told.Processes)
	}
	b.mechanism = "cgroup-v2"
	b.turns()
	b.serves("a")
	if f := b.functions.find("a"); (b.devices[0].Device.GPU != nil) || changeOf(f) != configs.ChangeShadow {
		t.Errorf("on a GPU: %v, change %s; want the CPU and shadows", (b.devices[0].Device.GPU != nil), changeOf(f))
	}
	for _, p := range b.told.Processes {
		if p.SMGroups != nil {
			t.Errorf("%+v has groups on a CPU", p)
		}
	}
	in := b.instance("a", 0)
	must.OK(t, in.makeTensors(pair.Run{Card: in.f.model.desired, Device: in.pair.Device()}))
	if got, want := in.tensors[pair.Run{Card: in.f.model.desired, Device: in.pair.Device()}].Size(), in.f.model.desired.TensorBytes(); got < want {
		t.Errorf("tensors of %d bytes, want %d", got, want)
	}
}

func TestDeviceChanges(t *testing.T) {
	b := newNode(t, "cuda", h200(), sharing.MechanismMPS, named("a", 50), named("b", 50))
	b.turns()
	// Another orchestrator finds a smaller device; the processes of its predecessor have
	// ended.
	b.gpu = &control.GPU{UUID: "GPU-2", Name: "small", SMs: 32, GroupSMs: []int{8, 8, 8, 8}, MemoryBytes: 1 << 30}
	clear(b.fakes)
	b.report()
	for _, name := range []string{"a", "b"} {
		in := b.instance(name, 0)
		dead := in.pair.Active().Generation
		in.lost(dead)
		in.endAwait(dead)
	}
	b.Step()
	for _, d := range b.told.Processes {
		if slices.ContainsFunc(d.SMGroups, func(g int) bool { return g >= len(b.gpu.GroupSMs) }) {
			t.Errorf("%s generation %d is desired on %v, of the old device", d.IF, d.Generation, d.SMGroups)
		}
	}
	b.turns()
	for _, name := range []string{"a", "b"} {
		if _, p := b.serves(name); len(p.on) != 2 {
			t.Errorf("%s runs on %v, want half of four groups", name, p.on)
		}
	}
}

func TestTensorsOfGPU(t *testing.T) {
	b := newNode(t, "cuda", h200(), sharing.MechanismMPS, named("a", 50))
	b.turns()
	in := b.instance("a", 0)
	must.OK(t, in.makeTensors(pair.Run{Card: in.f.model.desired, Device: in.pair.Device()}))
	if got, want := in.tensors[pair.Run{Card: in.f.model.desired, Device: in.pair.Device()}].Size(), 2*in.f.model.desired.OutputBytes(); got < want || got >= want+in.f.model.desired.OutputBytes() {
		t.Errorf("tensors of %d bytes, want %d", got, want)
	}
}

func TestTensorsAwaitDevice(t *testing.T) {
	b := newNode(t, "cuda", nil, "", named("a", 50))
	b.turn()
	must.Get(b.replace("a", "other"))(t)
	in := b.instance("a", 0)
	if len(in.tensors) != 0 {
		t.Errorf("%d tensors are made for a device that nobody knows", len(in.tensors))
	}
	b.gpu, b.mechanism = h200(), sharing.MechanismMPS
	b.turns()
	b.serves("a")
	if got := in.pair.Active().Card.Name; got != "other" {
		t.Errorf("%s serves, want the new model", got)
	}
}

func TestTooManyInstances(t *testing.T) {
	two := h200()
	two.GroupSMs, two.SMs = []int{8, 8}, 16
	b := newNode(t, "cuda", two, sharing.MechanismMPS, named("a", 30), named("b", 30), named("c", 30))
	b.turns()
	for _, d := range b.told.Processes {
		if d.SMGroups != nil {
			t.Errorf("desired %+v, want no groups", d)
		}
	}
	first, _ := b.serves("a")
	setShare(b.instance("a", 0), 20)
	b.turns()
	if next, _ := b.serves("a"); next == first {
		t.Error("the new percentage did not come by a shadow")
	}
}
