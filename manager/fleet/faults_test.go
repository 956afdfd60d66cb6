package fleet

import (
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testing/datapathtest"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/manager/policy/gslice"
	"github.com/penstock/penstock/manager/policy/pair"
	"github.com/penstock/penstock/manager/sharing"
)

// fault lets a function's active process fault the device: it reports the fault and
// ends. Under MPS the driver ends the other processes when they next use the device.
func (b *nodeBed) fault(name string) {
	b.t.Helper()
	generation, p := b.serves(name)
	p.lost = true
	p.die(control.Failed, "cuStreamSynchronize: CUDA_ERROR_ILLEGAL_ADDRESS (700)")
	// Its connection breaks first.
	b.instance(name, 0).lost(generation)
}

// consumer returns the process that serves a function; the test is its thread.
func (b *nodeBed) consumer(name string) (*bed, *datapathtest.Process) {
	b.t.Helper()
	generation, _ := b.serves(name)
	f := &bed{b.functions.find(name), b.t}
	c := f.consumer(0, generation)
	c.TakeRing()
	return f, c
}

func TestFaultWakesShadows(t *testing.T) {
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	b := newNode(t, "cuda", h200(), sharing.MechanismMPS, named("a", 30), named("b", 30), named("c", 30))
	b.turns()
	was, next := map[string]uint32{}, map[string]uint32{}
	for _, name := range []string{"a", "b", "c"} {
		was[name], _ = b.serves(name)
		next[name], _ = b.shadow(name)
	}
	f, first := b.consumer("b")
	s := f.dial()
	s.Send(1)
	first.Answer(first.Await(1), nil)
	s.Next()
	for tag := range uint64(4) {
		s.Send(10 + tag)
	}
	slots := first.Await(4)
	first.Start(slots[:2])

	b.fault("a")
	b.report()
	b.Step()
	b.follow()
	for _, name := range []string{"a", "b", "c"} {
		if p := b.fakes[victim{gslice.ID{IF: name}, was[name]}]; p != nil && !p.state.Ended() {
			t.Errorf("%s generation %d lives on in a lost device", name, was[name])
		}
		if p := b.fakes[victim{gslice.ID{IF: name}, next[name]}]; p == nil || p.role != control.Serve {
			t.Errorf("shadow of %s is %+v, want it woken", name, p)
		}
	}
	b.turn()
	b.turn()
	for tag, status := range s.Statuses(2) {
		if status != client.StatusFailed {
			t.Errorf("request %d, which was started, is %v; want failed", tag, status)
		}
	}
	b.turns()
	for name, want := range next {
		if got, p := b.serves(name); got != want || len(p.on) == 0 {
			t.Errorf("%s: generation %d serves on %v, want its shadow, %d", name, got, p.on, want)
		}
	}
	_, second := b.consumer("b")
	rest := second.Recover(nil)
	if len(rest) != 2 {
		t.Fatalf("the next process finds %d requests, want the 2 that were not started", len(rest))
	}
	second.Answer(rest, nil)
	for tag, status := range s.Statuses(2) {
		if status != client.StatusOK {
			t.Errorf("request %d is %v, want ok", tag, status)
		}
	}
	if got := b.page().Devices[0].Faults.Count; got != 1 {
		t.Errorf("%d faults, want one", got)
	}
	f.settled()
}

func TestFaultCountsOnce(t *testing.T) {
	b := newNode(t, "cuda", h200(), sharing.MechanismMPS, named("a", 30), named("b", 30), named("c", 30))
	b.turns()
	generation, p := b.serves("b")
	b.fault("a")
	b.report()
	// b reports the fault before it is killed.
	p.lost = true
	p.die(control.Failed, "cuLaunchKernel: CUDA_ERROR_ILLEGAL_ADDRESS (700)")
	b.instance("b", 0).lost(generation)
	b.report()
	b.turns()
	if got := b.devices[0].faults.count; got != 1 {
		t.Errorf("%d faults, want one", got)
	}
	b.fault("c")
	b.turns()
	if got := b.devices[0].faults.count; got != 2 {
		t.Errorf("%d faults, want another", got)
	}
}

func TestFaultTwiceHoldsFunction(t *testing.T) {
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	b := newNode(t, "cuda", h200(), sharing.MechanismMPS, named("bad", 30), named("good", 30))
	b.turns()
	b.fault("bad")
	b.turns()
	b.serves("bad")
	f := &bed{b.functions.find("bad"), t}
	s := f.dial()
	s.Send(1)
	f.eventually("it is published", func() bool { return f.port.Stats().InFlight == 1 })
	b.fault("bad")
	b.turns()

	if got := b.instance("bad", 0).pair.Active(); got != nil {
		t.Errorf("%+v serves, want the function held back", got)
	}
	if _, shadow := b.shadow("bad"); shadow.state != control.Loaded || shadow.role != control.Shadow {
		t.Errorf("shadow %+v, want it standing by", shadow)
	}
	b.Watch()
	if e := s.Next(); e.Status != client.StatusFailed {
		t.Errorf("what was whole is %v, want failed", e.Status)
	}
	s.Send(2)
	if e := s.Next(); e.Status != client.StatusBusy {
		t.Errorf("what is new is %v, want busy", e.Status)
	}
	if got := b.functions.find("bad").held; !strings.Contains(got, "held back") {
		t.Errorf("the reason is %q", got)
	}
	if got := b.status("bad").Instances[0].Processes[0].Reason; !strings.Contains(got, "held back") {
		t.Errorf("the status says %q", got)
	}
	b.serves("good")

	// The hold is over.
	b.started = b.started.Add(-b.cfg.FaultHold)
	b.turns()
	b.serves("bad")
	_, c := b.consumer("bad")
	for answered := false; !answered; {
		s.Send(3)
		f.eventually("it is answered or published", func() bool { return s.Ended() > 0 || f.port.Stats().InFlight > 0 })
		if f.port.Stats().InFlight > 0 {
			c.Answer(append(c.Recover(nil), c.Await(1)...), nil)
		}
		answered = s.Next().Status == client.StatusOK
	}
	f.settled()
}

// MPS reports a little later whether a process that ended while linking had lost the
// device. No model's kernel caused this fault, however often it happens.
func TestFaultOfServer(t *testing.T) {
	b := newNode(t, "cuda", h200(), sharing.MechanismMPS, named("a", 30), named("b", 30))
	b.turns()
	for n := range uint64(4) {
		_, p := b.serves("a")
		p.server = true
		b.fault("a")
		b.turns()
		if got := b.devices[0].faults.count; got != n+1 {
			t.Fatalf("%d faults after %d", got, n+1)
		}
		for _, name := range []string{"a", "b"} {
			if b.functions.find(name).held != "" {
				t.Fatalf("%s is held back for the MPS server's end", name)
			}
			b.serves(name)
		}
	}
}

func TestGuardBlamesWarmup(t *testing.T) {
	b := newNode(t, "cuda", h200(), sharing.MechanismMPS, named("bad", 30), named("good", 30))
	b.turns()
	must.Get(b.replace("bad", "worse"))(t)
	in := b.instance("bad", 0)
	var v victim
	for range 20 {
		b.turn()
		for w, p := range b.fakes {
			if q := in.pair.Process(w.generation); w.IF == "bad" && q != nil && q.Card.Name == "worse" && q.State == control.Linking && p.state == control.Linking {
				v = w
			}
		}
		if v.generation != 0 {
			break
		}
	}
	p := b.fakes[v]
	if p == nil {
		t.Fatal("the new model never links")
	}
	p.die(control.Failed, "warm up: CUDA_ERROR_ILLEGAL_ADDRESS (700)")
	b.turn()
	b.turn()
	if in.pair.Process(v.generation) == nil || b.devices[0].faults.count != 0 {
		t.Fatal("its end was believed before MPS was heard")
	}
	p.lost = true
	b.turn()
	if b.devices[0].faults.count != 1 {
		t.Errorf("%d faults, want one", b.devices[0].faults.count)
	}
	b.turns()
	if q := in.pair.Active(); q == nil || q.Card.Name != "bad" {
		t.Errorf("%+v serves, want the old model: the new one faults", q)
	}
}

func TestFaultWhileReplacing(t *testing.T) {
	b := newNode(t, "cuda", h200(), sharing.MechanismMPS, named("bad", 30), named("good", 30))
	b.turns()
	must.Get(b.replace("good", "better"))(t)
	in := b.instance("good", 0)
	linking := func() *fakeProcess {
		for v, p := range b.fakes {
			if q := in.pair.Process(v.generation); v.IF == "good" && q != nil && q.Card.Name == "better" && q.State == control.Linking {
				return p
			}
		}
		return nil
	}
	for range 20 {
		if b.turn(); linking() != nil {
			break
		}
	}
	p := linking()
	if p == nil {
		t.Fatal("the new model never links")
	}
	b.fault("bad")
	b.report()
	p.lost = true
	p.die(control.Failed, "the device failed under all")
	b.turns()
	b.turns()
	if q := in.pair.Active(); q == nil || q.Card.Name != "better" || b.devices[0].faults.count != 1 {
		t.Errorf("%+v serves after %d faults, want the new model after one", q, b.devices[0].faults.count)
	}
}

func TestDeathWhileLinking(t *testing.T) {
	known := processes{}
	q, o, now := &pair.Process{Generation: 1, State: control.Linking}, &control.ObservedProcess{State: control.Failed}, time.Now()
	if !known.awaitsVerdict(q, o, now) || !known.awaitsVerdict(q, o, now.Add(verdictTimeout/2)) || known.awaitsVerdict(q, o, now.Add(verdictTimeout)) {
		t.Error("want its end believed after the time that MPS has, not before")
	}
}

func TestNewModelEndsHold(t *testing.T) {
	b := newNode(t, "cuda", h200(), sharing.MechanismMPS, named("bad", 30))
	b.turns()
	b.fault("bad")
	b.turns()
	b.fault("bad")
	b.turns()
	if b.functions.find("bad").held == "" {
		t.Fatal("it is not held back")
	}
	must.Get(b.replace("bad", "better"))(t)
	b.turns()
	b.serves("bad")
	if q := b.instance("bad", 0).pair.Active(); q.Card.Name != "better" {
		t.Errorf("%s serves, want the new model", q.Card.Name)
	}
}

// Processes use the GPU in turn, and a fault affects only the process that caused it.
func TestFaultWithoutMPS(t *testing.T) {
	alone := h200()
	alone.GroupSMs = nil
	b := newNode(t, "cuda", alone, sharing.MechanismTimeSlicing, named("a", 30), named("b", 30))
	b.turns()
	other, _ := b.serves("b")
	next, _ := b.shadow("a")
	b.fault("a")
	b.turns()
	if got, _ := b.serves("b"); got != other {
		t.Error("b was swapped for a's fault")
	}
	if got, _ := b.serves("a"); got != next {
		t.Errorf("generation %d serves a, want its shadow, %d", got, next)
	}
	if b.devices[0].faults.count != 0 {
		t.Errorf("%d faults of the device, want none", b.devices[0].faults.count)
	}
}
