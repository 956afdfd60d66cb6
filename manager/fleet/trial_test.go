package fleet

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/manager/policy/gslice"
	"github.com/penstock/penstock/manager/sharing"
	"github.com/penstock/penstock/shm"
)

// on adds a function on trial.
func (b *nodeBed) on(c configs.Function) <-chan error {
	b.t.Helper()
	end, err := b.try(c)
	must.OK(b.t, err)
	return end
}

// cannotStart ends every process of a function before it is ready, until the function is
// gone or has been tried a few times.
func (b *nodeBed) cannotStart(name, reason string) {
	b.t.Helper()
	for range 4 {
		b.Step()
		b.follow()
		for v, p := range b.fakes {
			if v.IF == name && !p.state.Ended() {
				p.die(control.Failed, reason)
			}
		}
		b.report()
	}
	b.turns()
}

// ended returns the result of a trial that must have ended.
func (b *nodeBed) ended(end <-chan error) error {
	b.t.Helper()
	select {
	case err := <-end:
		return err
	default:
		b.t.Fatal("the trial goes on")
		return nil
	}
}

func TestAdditionCannotStart(t *testing.T) {
	b := newNode(t, configs.DeviceCPU, nil, "governor", wanting("a", 60))
	b.turns()
	share := b.status("a").SharePercent
	for range 2 { // its name is free at once
		end := b.on(wanting("b", 80))
		b.cannotStart("b", "no memory for the model")
		if err := b.ended(end); err == nil || !strings.Contains(err.Error(), "no memory for the model; the function was removed") {
			t.Errorf("the addition ended with %v, want why", err)
		}
		if b.functions.find("b") != nil {
			t.Fatal("b is there, though its addition failed")
		}
		for _, p := range b.told.Processes {
			if p.IF == "b" {
				t.Errorf("generation %d of b is desired", p.Generation)
			}
		}
		if now := b.status("a").SharePercent; now != share {
			t.Errorf("a has %v %%, and had %v before", now, share)
		}
	}
	end := b.on(wanting("b", 20))
	b.turns()
	if err := b.ended(end); err != nil {
		t.Errorf("an addition that serves ended with %v", err)
	}
}

// A function that has served once is tried again, however often it fails.
func TestAFunctionThatServedStays(t *testing.T) {
	b := newNode(t, configs.DeviceCPU, nil, "governor")
	end := b.on(named("b", 20))
	b.turns()
	must.OK(t, b.ended(end))
	b.cannotStart("b", "killed")
	b.serves("b")
}

// A function of the configuration is also tried again.
func TestConfiguredFunctionStays(t *testing.T) {
	b := newNode(t, configs.DeviceCPU, nil, "governor", named("a", 20))
	b.cannotStart("a", "no memory for the model")
	b.serves("a")
}

func TestAdditionRemoved(t *testing.T) {
	b := newNode(t, configs.DeviceCPU, nil, "governor")
	end := b.on(named("b", 20))
	b.turn()
	must.OK(t, b.remove("b"))
	if err := b.ended(end); err == nil || !strings.Contains(err.Error(), "it was removed again") {
		t.Errorf("the addition ended with %v", err)
	}
	b.turns()
	end = b.on(named("b", 20))
	b.Drain()
	b.turns()
	if err := b.ended(end); !errors.Is(err, ErrStopped) {
		t.Errorf("in a drain the addition ended with %v, want %v", err, ErrStopped)
	}
}

// All instances are one addition.
func TestAdditionOneInstanceFails(t *testing.T) {
	b := newNode(t, configs.DeviceCPU, nil, "governor")
	end := b.on(configs.Function{Name: "b", Instances: 2, SharePercent: 20})
	for range 6 {
		b.Step()
		b.follow()
		for v, p := range b.fakes {
			if v.Instance == 1 && !p.state.Ended() {
				p.die(control.Failed, "no room for a second one")
			}
			b.live(v, p)
		}
		b.report()
	}
	b.turns()
	if err := b.ended(end); err == nil || !strings.Contains(err.Error(), "no room for a second one") || b.functions.find("b") != nil {
		t.Errorf("the addition ended with %v, and b is %v", err, b.functions.find("b"))
	}
}

// An instance that has served counts as started, even if the others have yet to start.
func TestAdditionOneInstanceServed(t *testing.T) {
	b := newNode(t, configs.DeviceCPU, nil, "governor")
	end := b.on(configs.Function{Name: "b", Instances: 2, SharePercent: 20})
	served := false
	for range 12 {
		b.Step()
		b.follow()
		for v, p := range b.fakes {
			switch {
			case v.Instance == 0:
				b.live(v, p)
			case p.state == control.Starting && served: // the second one takes longer
				b.live(v, p)
			}
		}
		b.report()
		if q := b.instance("b", 0).pair.Active(); !served && q != nil && q.State == control.Active {
			served = true
			b.fakes[victim{gslice.ID{IF: "b"}, q.Generation}].die(control.Failed, "killed")
			b.report()
		}
	}
	b.turns()
	if err := b.ended(end); err != nil || !served {
		t.Errorf("the addition ended with %v after one served: %v", err, served)
	}
}

// Requests that arrived before the failure was known are answered.
func TestAdditionFailureAnswers(t *testing.T) {
	b := newNode(t, configs.DeviceCPU, nil, "governor")
	end := b.on(named("b", 20))
	b.turn()
	f := &bed{b.functions.find("b"), t}
	s := f.dial()
	for tag := range uint64(3) {
		s.Send(tag)
	}
	f.eventually("the requests are there", func() bool { return f.port.Stats().InFlight == 3 })
	began := shm.Now()
	b.cannotStart("b", "no memory for the model")
	for tag, status := range s.Statuses(3) {
		if status != client.StatusFailed {
			t.Errorf("request %d is %v, want failed", tag, status)
		}
	}
	f.eventually("the function is gone", func() bool {
		b.turn()
		return b.functions.find("b") == nil
	})
	if waited := shm.Now() - began; waited > int64(b.cfg.DrainTimeout) {
		t.Errorf("it was gone after %d ns, with nobody to wait for", waited)
	}
	if err := b.ended(end); err == nil {
		t.Error("the addition is said to serve")
	}
}

// A model that needs more multiprocessors than it got at first gets more.
func TestAdditionTooFewGroups(t *testing.T) {
	b := newNode(t, "cuda", h200(), sharing.MechanismMPS, named("a", 30))
	b.needs = func(v victim) int { return map[string]int{"b": 2}[v.IF] }
	b.turns()
	end := b.on(named("b", 6))
	b.turns()
	b.turns()
	if err := b.ended(end); err != nil {
		t.Errorf("the addition ended with %v", err)
	}
	b.serves("b")
}

// A fault of the device counts against the function that caused it.
func TestAdditionOtherFault(t *testing.T) {
	for blamed, stays := range map[string]bool{"a": true, "b": false} {
		t.Run(blamed+" faults", func(t *testing.T) {
			b := newNode(t, "cuda", h200(), sharing.MechanismMPS, named("a", 30))
			b.turns()
			end := b.on(named("b", 30))
			for range 20 {
				if q := b.functions.find("b").instances[0].pair.Processes(); len(q) > 0 && q[0].State == control.Ready {
					break
				}
				b.turn()
			}
			var last victim
			for v := range b.fakes {
				if v.IF == "b" {
					last = v
				}
			}
			if blamed == "a" {
				b.fault("a")
			}
			p := b.fakes[last]
			p.lost, p.server = true, blamed == "a"
			p.die(control.Failed, "cuStreamSynchronize: CUDA_ERROR_ILLEGAL_ADDRESS (700)")
			b.report()
			b.turns()
			b.turns()
			err := b.ended(end)
			if there := b.functions.find("b") != nil; there != stays || (err == nil) != stays {
				t.Errorf("b is there: %v, ended with %v; want it to stay: %v", there, err, stays)
			}
		})
	}
}

// A new model that starts ends the trial: no need to remove the function and add it
// again.
func TestAdditionModelReplaced(t *testing.T) {
	for name, fails := range map[string]bool{"that starts": false, "that fails": true} {
		t.Run(name, func(t *testing.T) {
			b := newNode(t, configs.DeviceCPU, nil, "governor")
			end := b.on(named("b", 20))
			b.turn()
			must.Get(b.replace("b", "other"))(t)
			for range 4 {
				b.Step()
				b.follow()
				for v, p := range b.fakes {
					q := b.instance(v.IF, v.Instance)
					if q == nil || p.state.Ended() {
						continue
					}
					if of := q.pair.Process(v.generation); of != nil && (fails || of.Card.Name == "b") {
						p.die(control.Failed, "no memory for "+of.Card.Name)
					}
				}
				b.report()
			}
			b.turns()
			err := b.ended(end)
			if there := b.functions.find("b") != nil; there == fails || (err != nil) != fails {
				t.Errorf("b is there: %v, ended with %v; want it to fail: %v", there, err, fails)
			}
			if fails && err != nil && !strings.Contains(err.Error(), "no memory for other") {
				t.Errorf("it ended with %v, want why the new model cannot start", err)
			}
		})
	}
}

// A record of more functions would be invalid.
func TestMaxFunctions(t *testing.T) {
	b := newNode(t, configs.DeviceCPU, nil, "governor", named("a", 20))
	one := b.functions
	b.functions = slices.Repeat(one, configs.MaxFunctions)
	_, err := b.try(named("b", 20))
	b.functions = one
	if err == nil || !strings.Contains(err.Error(), "want at most") {
		t.Errorf("one more than there may be: %v", err)
	}
}
