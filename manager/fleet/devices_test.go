package fleet

import (
	"bytes"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testing/datapathtest"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/wait"
	"github.com/penstock/penstock/manager/policy/placement"
	"github.com/penstock/penstock/manager/sharing"
	"github.com/penstock/penstock/models"
)

// newTwoGPUs is a node with two GPUs and MPS, and more devices.
func newTwoGPUs(t *testing.T, more ...configs.DeviceName) *nodeBed {
	t.Helper()
	b := newNode(t, "cuda", h200(), sharing.MechanismMPS)
	b.second, b.cpu = h200(), slices.Contains(more, configs.DeviceCPU)
	b.second.UUID = "GPU-2"
	b.cfg.Devices = append([]configs.DeviceName{"cuda", "cuda:1"}, more...)
	b.orchestrator.desired.Devices = b.cfg.DeviceNames()
	for _, name := range b.cfg.DeviceNames()[1:] {
		b.addDevice(name, &Options{Dir: t.TempDir()})
	}
	return b
}

// A function runs on the devices that it names, each with its own kind of shares.
func TestPlaceByDevices(t *testing.T) {
	b := newTwoGPUs(t, configs.DeviceCPU)
	b.turns()
	for _, f := range []struct {
		devices []configs.DeviceName
		change  configs.Change
	}{{[]configs.DeviceName{"cuda:1"}, configs.ChangePartition}, {[]configs.DeviceName{"cpu"}, configs.ChangeShadow}, {[]configs.DeviceName{"cuda:0"}, configs.ChangePartition}} {
		c := named("on-"+strings.ReplaceAll(string(f.devices[0]), ":", "-"), 60)
		c.Devices = f.devices
		must.OK(t, b.add(c))
		b.turns()
		in := b.instance(c.Name, 0)
		if q := in.pair.Active(); b.cfg.DevicesOf(&c)[0] != in.device().Device.Name || changeOf(in.f) != f.change || q == nil || q.State != control.Active {
			t.Errorf("%s runs on %s as %+v, and its share changes by %s, want %s", c.Name, in.device().Device.Name, q, changeOf(in.f), f.change)
		}
	}

	c := named("e", 50)
	c.Devices = []configs.DeviceName{"cuda:1", "cpu"}
	err := b.add(c)
	for _, word := range []string{"add function e: it fits on no device", "cuda: not in its devices", "cuda:1: share is 50 %", "cpu: share is 50 %, and the others have 60 %"} {
		if err == nil || !strings.Contains(err.Error(), word) || strings.Contains(err.Error(), "\n") {
			t.Errorf("error %v, want one line that says %q", err, word)
		}
	}
	c.Devices = []configs.DeviceName{"cuda:2"}
	if err = b.add(c); err == nil || !strings.Contains(err.Error(), "devices of function e has cuda:2, and the devices of the node are cuda, cuda:1, cpu") {
		t.Errorf("a device that the node does not have: %v", err)
	}
}

// Only a function that runs on CPUs takes requests of several sizes.
func TestSizesByDevice(t *testing.T) {
	b := newTwoGPUs(t, configs.DeviceCPU)
	b.changeCards(func(_ string, card *models.Card) { card.Input.Heights, card.Input.Widths = []int{32}, []int{16, 32} })
	b.turns()
	for name, row := range map[string]struct {
		devices []configs.DeviceName
		sizes   int
	}{"cpu": {[]configs.DeviceName{"cpu"}, 2}, "cuda": {[]configs.DeviceName{"cuda"}, 1}, "any": {nil, 1}} {
		c := named(name, 10)
		c.Devices = row.devices
		must.OK(t, b.add(c))
		if got := len(b.functions.find(name).model.desired.Sizes()); got != row.sizes {
			t.Errorf("%s takes %d sizes, want %d", name, got, row.sizes)
		}
	}
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
		if q := in.pair.Active(); in.device().Device.Name != f.device || p.IF != f.name || p.Device != f.device || q == nil || q.State != control.Active {
			t.Errorf("%s runs on %s, its process on %s as %+v; want %s", f.name, in.device().Device.Name, p.Device, q, f.device)
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
		if in := b.instance(name, 0); in.device() != b.devices[i%2] {
			t.Errorf("%s runs on %s", name, in.device().Device.Name)
		}
	}
	page := b.page()
	if d := page.Devices; len(d) != 2 || d[0].Name != "cuda" || d[1].GPU.UUID != "GPU-2" || d[1].Mechanism != sharing.MechanismMPS {
		t.Errorf("the status has the devices %+v", d)
	}
	for i, f := range page.Functions {
		if got := f.Instances[0].Device; got != b.devices[i%2].Device.Name {
			t.Errorf("%s runs on %s in the status", f.Name, got)
		}
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

// newMover is a node with two GPUs, and a function that serves on the first with a share of 60 %.
func newMover(t *testing.T) (*nodeBed, *instance) {
	t.Helper()
	b := newTwoGPUs(t)
	b.turns()
	must.OK(t, b.add(named("a", 60)))
	b.turns()
	return b, b.instance("a", 0)
}

// runsOn checks that a function serves on one device, and that only this device counts it, with its share.
func (b *nodeBed) runsOn(name string, number int) {
	b.t.Helper()
	_, p := b.serves(name)
	in, d := b.instance(name, 0), b.devices[number]
	if p.device != d.Device.Name || in.device() != d || d.Members() != 1 || b.devices[1-number].Members() != 0 || in.pair.Share() != 60 {
		b.t.Errorf("%s has %v %% and serves on %s, wants to on %s; the devices have %d and %d instances",
			name, in.pair.Share(), p.device, in.pair.Device(), b.devices[0].Members(), b.devices[1].Members())
	}
	for _, q := range b.processes(name) {
		if q.Device != d.Device.Name {
			b.t.Errorf("%+v stays on another device", q)
		}
	}
}

// startRequests sends four requests to a function, of which its process starts the first n. It returns the slots of all.
func (b *nodeBed) startRequests(name string, n int) (f *bed, process *datapathtest.Process, s *datapathtest.Client, slots []uint32) {
	b.t.Helper()
	f, process = b.consumer(name)
	s = f.dial()
	for tag := range uint64(4) {
		s.Send(tag)
	}
	slots = process.Await(4)
	process.Start(slots[:n])
	return f, process, s, slots
}

func TestMoveToDevice(t *testing.T) {
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	b, in := newMover(t)
	before, _ := b.serves("a")
	f, first, s, slots := b.startRequests("a", 2)

	must.OK(t, in.move(b.devices[1]))
	for range 3 {
		b.turn()
		if now, _ := b.serves("a"); now != before {
			t.Fatalf("generation %d serves before the new process is ready", now)
		}
		for _, d := range b.devices {
			if d.Members() != 1 || in.ordersOn(d).share != 60 {
				t.Errorf("%s has %d instances with %v %%, want it counted during the move", d.Device.Name, d.Members(), in.ordersOn(d).share)
			}
		}
	}
	b.fakes[victim{in.id, before}].slow = true // it has not drained yet
	b.turns()
	if b.devices[0].Members() != 1 {
		t.Error("its old device does not count it while its process drains there")
	}
	b.fakes[victim{in.id, before}].slow = false
	first.Answer(slots, nil)
	first.Release()
	b.turns()
	b.runsOn("a", 1)
	_, second := b.consumer("a")
	s.Send(4)
	second.Answer(second.Await(1), nil)
	for tag, status := range s.Statuses(5) {
		if status != client.StatusOK {
			t.Errorf("request %d is %v, want ok", tag, status)
		}
	}
	f.settled()
}

// A move ends on the device that has a process which serves.
func TestMoveToDeviceDisturbed(t *testing.T) {
	die := func(b *nodeBed, generation uint32) {
		in := b.instance("a", 0)
		b.fakes[victim{in.id, generation}].die(control.Failed, "out of memory")
		in.lost(generation)
		in.endAwait(generation)
	}
	for name, c := range map[string]struct {
		disturb func(b *nodeBed)
		on      int
		logged  string
	}{
		"new device refuses": {func(b *nodeBed) {
			die(b, b.instance("a", 0).pair.Last())
		}, 0, "out of memory"},
		"old process dies": {func(b *nodeBed) {
			generation, _ := b.serves("a")
			die(b, generation)
		}, 1, "instance moves"},
		"both die": {func(b *nodeBed) {
			generation, _ := b.serves("a")
			die(b, generation)
			die(b, b.instance("a", 0).pair.Last())
		}, 0, "out of memory"},
		"new model": {func(b *nodeBed) { must.Get(b.replace("a", "newer"))(b.t) }, 1, "processes replaced"},
		"new model fails": {func(b *nodeBed) {
			end := must.Get(b.replace("a", "newer"))(b.t)
			for b.instance("a", 0).pair.Shadow() == nil || b.instance("a", 0).pair.Shadow().Card.Name != "newer" {
				b.turn()
			}
			generation, _ := b.shadow("a")
			die(b, generation)
			b.givenUp(end, "out of memory")
		}, 1, "out of memory"},
		"moves back": {func(b *nodeBed) { must.OK(b.t, b.instance("a", 0).move(b.devices[0])) }, 0, "instance moves"},
	} {
		t.Run(name, func(t *testing.T) {
			b, in := newMover(t)
			var log bytes.Buffer
			in.log = zerolog.New(&log)
			must.OK(t, in.move(b.devices[1]))
			b.turn()
			b.turn()
			c.disturb(b)
			wait.For(t, "it runs on one device", func() bool { // MPS has time to say why a process failed
				b.turn()
				q := in.pair.Active()
				return q != nil && q.State == control.Active && in.device() == b.devices[c.on] && !in.pair.Changing()
			})
			b.turns()
			b.runsOn("a", c.on)
			if !strings.Contains(log.String(), c.logged) {
				t.Errorf("log %s, want %q", &log, c.logged)
			}
		})
	}
}

func TestRemoveWhileMoving(t *testing.T) {
	b, in := newMover(t)
	must.OK(t, in.move(b.devices[1]))
	b.turn()
	must.OK(t, b.remove("a"))
	b.turns()
	if b.functions.find("a") != nil || len(b.told.Processes) != 0 || b.devices[0].Members()+b.devices[1].Members() != 0 {
		t.Errorf("desired %+v, want nothing left of it", b.told.Processes)
	}
}

// onDevice reports whether a function serves on a device.
func (b *nodeBed) onDevice(name, device string) bool {
	in := b.instance(name, 0)
	q := in.pair.Active()
	return q != nil && q.State == control.Active && q.Device == device
}

// When a device is lost, its functions move by priority as far as there is room, with the requests that wait.
func TestLostDevice(t *testing.T) {
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	b := newTwoGPUs(t)
	b.turns()
	first, second, stays := named("first", 30), named("second", 30), named("stays", 60)
	stays.Priority, second.Priority = 1, 2
	must.OK(t, b.add(stays))
	must.OK(t, b.instance("stays", 0).move(b.devices[1]))
	must.OK(t, b.add(first))
	must.OK(t, b.add(second))
	b.turns()
	if !b.onDevice("first", "cuda") || !b.onDevice("second", "cuda") || !b.onDevice("stays", "cuda:1") {
		t.Fatalf("processes %+v", b.told.Processes)
	}
	_, _, s, _ := b.startRequests("second", 1)

	b.lost = map[string]string{"cuda": "NVML: GPU is lost"}
	turns := 0
	for b.report(); !b.onDevice("second", "cuda:1"); b.turn() {
		if turns++; turns > 8 {
			t.Fatalf("%+v does not serve on the other device", b.processes("second"))
		}
	}
	_, next := b.consumer("second")
	next.Answer(next.Recover(nil), nil)
	failed := 0
	for _, status := range s.Statuses(4) {
		if status == client.StatusFailed {
			failed++
		} else if status != client.StatusOK {
			t.Errorf("a request is %v", status)
		}
	}
	if failed != 1 {
		t.Errorf("%d requests failed, want the one that had been started", failed)
	}
	if err := b.Ready(); err == nil || !strings.Contains(err.Error(), "first (it fits on no device: cuda: device is lost: NVML: GPU is lost; cuda:1: share is 30 %") || strings.Contains(err.Error(), "second") {
		t.Errorf("Ready is %v, want that it names the function that waits", err)
	}
	if got := b.status("first").Instances[0]; !strings.Contains(got.Held, "GPU is lost") || len(got.Processes) != 0 {
		t.Errorf("status %+v, want why it is held, and no process", got)
	}
	s.Send(9)
	waiting := (&bed{b.functions.find("first"), t}).dial()
	waiting.Send(1)
	if e := waiting.Next(); e.Status != client.StatusBusy {
		t.Errorf("a request of the held function is %v, want busy", e.Status)
	}
	next.Answer(next.Await(1), nil)
	if faults := b.devices[0].faults.count; faults != 0 || b.functions.find("second").held != "" {
		t.Errorf("%d faults, held %q; want nothing blamed", faults, b.functions.find("second").held)
	}

	// Another function leaves room, and the first starts. The others stay on their devices when the lost one returns.
	must.OK(t, b.remove("second"))
	b.turns()
	b.turns()
	if !b.onDevice("first", "cuda:1") {
		t.Errorf("%+v, want the first function in the room that another left", b.processes("first"))
	}
	must.OK(t, b.Ready())
}

// A device that returns gets its functions back that had no room elsewhere.
func TestDeviceReturns(t *testing.T) {
	b := newNode(t, "cuda", h200(), sharing.MechanismMPS, named("a", 50))
	b.turns()
	b.lost = map[string]string{"cuda": "it was unplugged"}
	b.turns()
	if len(b.told.Processes) != 0 || b.Ready() == nil {
		t.Fatalf("desired %+v on a lost device", b.told.Processes)
	}
	b.lost = nil
	b.turns()
	b.serves("a")
	must.OK(t, b.Ready())
	if s := b.status("a").Instances[0]; s.Held != "" || len(s.Processes) != 2 {
		t.Errorf("status %+v, want a process and its shadow", s)
	}
}

// The device to which an instance moves, or that it leaves, may be lost meanwhile.
func TestLostWhileMoving(t *testing.T) {
	for _, c := range []struct {
		lost string
		on   int
	}{{"cuda", 1}, {"cuda:1", 0}} {
		b, in := newMover(t)
		must.OK(t, in.move(b.devices[1]))
		b.turn()
		b.lost = map[string]string{c.lost: "it was unplugged"}
		b.turns()
		b.turns()
		b.runsOn("a", c.on)
	}
}

// need lets an instance's process report that a request takes so many percent of the objective of a second. Without a
// rate, that is its need.
func (b *nodeBed) need(in *instance, percent int) {
	generation := in.pair.Active().Generation
	for range 2 { // costs are those since the last report
		in.report(generation, control.Report{Generation: generation, Ran: in.reported.Ran + 1, EachNanos: int64(percent) * 10_000_000})
		b.decide(occasion{})
	}
}

// tune lets so much time pass, as the manager counts it.
func (b *nodeBed) tune(after time.Duration) {
	b.Tune()
	b.started = b.started.Add(-after)
	b.Tune()
	b.turns()
}

// instancesOn returns the devices of a function's instances that serve.
func (b *nodeBed) instancesOn(name string) (on []string) {
	for _, in := range b.functions.find(name).instances {
		if q := in.pair.Active(); q != nil && q.State == control.Active {
			on = append(on, q.Device)
		}
	}
	return on
}

// newRebalanced is a node with two GPUs, the default policy and these functions.
func newRebalanced(t *testing.T, names ...string) *nodeBed {
	t.Helper()
	b := newTwoGPUs(t)
	b.cfg.Shares.Policy = configs.PolicyGuarantee
	b.turns()
	for _, name := range names {
		must.OK(t, b.add(objective(name, time.Second)))
		b.turns()
	}
	return b
}

func TestOverloadMoves(t *testing.T) {
	b := newRebalanced(t, "a", "b", "c")
	for name, percent := range map[string]int{"a": 70, "b": 10, "c": 55} {
		b.need(b.instance(name, 0), percent)
	}
	b.tune(placement.Patience / 2)
	if on := b.instancesOn("c"); !slices.Equal(on, []string{"cuda"}) {
		t.Fatalf("c serves on %v before its device is overloaded for long", on)
	}
	b.tune(placement.Patience / 2)
	for name, want := range map[string]string{"a": "cuda", "b": "cuda:1", "c": "cuda:1"} {
		if on := b.instancesOn(name); !slices.Equal(on, []string{want}) {
			t.Errorf("%s serves on %v, want %s", name, on, want)
		}
	}
}

// A function that is alone on an overloaded device gets an instance on another one, and loses it when it needs less.
func TestOverloadGrows(t *testing.T) {
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	b := newRebalanced(t, "a")
	f, first := b.consumer("a")
	s := f.dial()
	b.need(b.instance("a", 0), 130)
	b.Tune()
	b.started = b.started.Add(-placement.Patience)
	b.Tune()
	b.turn()
	must.OK(t, b.Ready()) // the new instance joins, and the first serves
	s.Send(0)
	first.Answer(first.Await(1), nil)
	s.Next()
	b.turns()
	if on := b.instancesOn("a"); !slices.Equal(on, []string{"cuda", "cuda:1"}) {
		t.Fatalf("it serves on %v, want both", on)
	}
	if got := b.status("a").Instances; len(got) != 2 || got[1].Device != "cuda:1" {
		t.Errorf("status %+v, want two instances", got)
	}

	second := f.consumer(1, b.instance("a", 1).pair.Active().Generation)
	second.TakeRing()
	for tag := range uint64(8) {
		s.Send(tag)
	}
	f.eventually("all are published", func() bool { return f.port.Stats().InFlight == 8 })
	for i := range 2 {
		b.need(b.instance("a", i), 10)
	}
	taken := second.Await(2)
	second.Start(taken[:1])
	b.Tune()
	b.started = b.started.Add(-placement.Calm)
	b.Tune()
	second.Answer(taken[:1], nil)
	second.Release()
	b.turns()
	b.turns()
	first.Answer(first.Await(7), nil)
	for tag, status := range s.Statuses(8) {
		if status != client.StatusOK {
			t.Errorf("request %d is %v, want ok", tag, status)
		}
	}
	if on := b.instancesOn("a"); !slices.Equal(on, []string{"cuda"}) || len(b.functions.find("a").instances) != 1 || len(b.processes("a")) != 2 {
		t.Errorf("it serves on %v with the processes %+v, want one instance", on, b.processes("a"))
	}
	f.settled()
}

// An instance that cannot start is removed, and not tried again.
func TestOverloadGrowsInVain(t *testing.T) {
	b := newRebalanced(t, "a")
	b.need(b.instance("a", 0), 130)
	b.Tune()
	b.started = b.started.Add(-placement.Patience)
	b.Tune()
	b.turn()
	in := b.instance("a", 1)
	b.fakes[victim{in.id, in.pair.Last()}].die(control.Failed, "out of memory")
	b.turn()
	b.Tune()
	b.turns()
	for range 4 {
		b.tune(placement.Patience)
		if n := len(b.functions.find("a").instances); n != 1 {
			t.Fatalf("%d instances, want the one that can serve", n)
		}
	}
	must.OK(t, b.Ready())
}

// Instances of a configured number are spread.
func TestInstancesSpread(t *testing.T) {
	b := newTwoGPUs(t)
	b.turns()
	f := named("a", 20)
	f.Instances = 3
	must.OK(t, b.add(f))
	b.turns()
	if on := b.instancesOn("a"); !slices.Equal(on, []string{"cuda", "cuda:1", "cuda"}) {
		t.Errorf("the instances serve on %v", on)
	}
	f = named("b", 45)
	f.Instances = 4
	if err := b.add(f); err == nil || !strings.Contains(err.Error(), "instance 3 of 4") || b.functions.find("b") != nil {
		t.Errorf("%v, want it refused for its last instance", err)
	}
}

// The next manager has the instances on the same devices.
func TestRecordDevices(t *testing.T) {
	dir := t.TempDir()
	b := newTwoGPUs(t)
	b.recorder = recorder{dir: dir, run: "run"}
	b.turns()
	must.OK(t, b.add(named("a", 20)))
	must.OK(t, b.instance("a", 0).move(b.devices[1]))
	must.OK(t, b.functions.find("a").grow(b.devices[0]))
	b.instance("a", 1).percent = 7
	b.keep()
	next := newTwoGPUs(t)
	next.recorder = recorder{dir: dir, run: "run"}
	next.turns()
	must.OK(t, next.Begin())
	next.turns()
	if on := next.instancesOn("a"); !slices.Equal(on, []string{"cuda:1", "cuda"}) || next.instance("a", 1).percent != 7 {
		t.Errorf("the instances serve on %v, the second with a share of %v %%", on, next.instance("a", 1).percent)
	}
}

// The metrics of each device, and of instances, name it.
func TestDeviceMetrics(t *testing.T) {
	b := newTwoGPUs(t, configs.DeviceCPU)
	b.cfg.Shares.Policy = configs.PolicyGuarantee
	b.lost = map[string]string{"cuda:1": "NVML: GPU is lost"}
	b.turns()
	c := objective("a", time.Second)
	c.Devices = []configs.DeviceName{configs.DeviceCPU}
	must.OK(t, b.add(c))
	b.turns()
	for name, want := range map[string]string{
		"penstock_needs_ratio":          "cpu=0.9 cuda=0 cuda:1=0",
		"penstock_device_lost":          "cpu=0 cuda=0 cuda:1=1",
		"penstock_device_memory_bytes":  "cuda=1.51397597184e+11 cuda:1=1.51397597184e+11",
		"penstock_objective_guaranteed": "cpu=1",
		"penstock_device_faults_total":  "cuda=0 cuda:1=0",
		"penstock_device_seconds_total": "cpu=0 cpu=0",
		"penstock_objective_seconds":    "=1",
		"penstock_guarantee_ratio":      "cpu=0.9",
	} {
		var got []string
		for _, m := range b.series(name) {
			device := ""
			for _, l := range m.GetLabel() {
				if l.GetName() == "device" {
					device = l.GetValue()
				}
			}
			got = append(got, fmt.Sprintf("%s=%v", device, m.GetGauge().GetValue()+m.GetCounter().GetValue()))
		}
		if text := strings.Join(got, " "); text != want {
			t.Errorf("%s is %q, want %q", name, text, want)
		}
	}
}
