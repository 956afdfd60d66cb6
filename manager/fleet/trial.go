package fleet

import (
	"fmt"

	"github.com/penstock/penstock/configs"
)

// A function that `penstock if add` adds is on trial until all its instances serve:
//
//	try ──every instance serves──> end gets nil; the node keeps the function
//	 │
//	 └──a process cannot serve──> takeBack ──the function is gone──> end gets the reason
//
// Removing the function, an entry for it in the configuration file, or the end of the node also
// ends the trial, with an error.
//
// The trial continues if the caller does not wait for its end. A function on trial does not
// affect the readiness of the node. Functions of the configuration are not on trial: the manager
// tries them again and again.

// trial is the state of an addition; nil for functions of the configuration. The control loop owns it.
type trial struct {
	failure string      // why it is taken back; empty while it may still serve
	end     func(error) // gets the result, once; nil: the trial has ended
}

// running reports whether the trial has not ended.
func (t *trial) running() bool { return t != nil && t.end != nil }

// fails records that a process of the function could not serve.
func (t *trial) fails(reason string) {
	if t.running() && t.failure == "" {
		t.failure = reason
	}
}

// failed reports whether the function is being taken back.
func (t *trial) failed() bool { return t.running() && t.failure != "" }

// settle ends the trial, if it is running.
func (t *trial) settle(err error) {
	if t.running() {
		t.end(err)
		t.end = nil
	}
}

// Add adds a function on trial. The order ends with the trial.
func (fl *Fleet) Add(c configs.Function) (Order, error) {
	if err := fl.add(c, 0); err != nil {
		return Order{}, err
	}
	f := fl.functions.find(c.Name)
	order, done := newOrder(withWarnings(fmt.Sprintf("%s serves at %s", f.name, f.port.LocalAddr()), f.model.desired))
	f.trial = &trial{end: done}
	return order, nil
}

// judge ends the trial of each function that serves. It takes back each function that failed its trial:
// the requests are answered `failed` if no process serves. reap ends the trial of a removed function.
func (fl *Fleet) judge() {
	for _, f := range fl.functions {
		switch {
		case !f.trial.running(), f.removing:
		case f.instances.serving():
			t := f.trial
			f.trial = nil
			fl.keep() // record the function before its caller learns that it serves
			t.settle(nil)
		case f.trial.failed():
			f.log.Error().Str("reason", f.trial.failure).Msg("process of an added function cannot start; removing the function")
			f.remove()
			f.leaves = true
			for _, in := range f.instances {
				if in.pair.Active() == nil {
					in.remove() // at once, so that no other process is started
				}
			}
		}
	}
}
