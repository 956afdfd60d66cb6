package manager

import (
	"context"
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

// trial is the state of an addition. The control loop owns it.
type trial struct {
	failure string     // why it is taken back; empty while it may still serve
	end     chan error // gets the result, once
}

// try adds a function on trial. end gets the result, or errStopped if the node stops first.
func (m *Manager) try(c configs.Function) (f *function, end <-chan error, err error) {
	if err := m.add(c); err != nil {
		return nil, nil, err
	}
	f = m.function(c.Name)
	f.trial = &trial{end: make(chan error, 1)}
	return f, f.trial.end, nil
}

// fails records that a process of the function could not serve.
func (f *function) fails(reason string) {
	if f.trial != nil && f.trial.failure == "" {
		f.trial.failure = reason
	}
}

// judge ends the trial of each function that serves, and begins to remove each function that failed
// its trial. endTrial ends the trial of a removed function.
func (m *Manager) judge() {
	for _, f := range m.functions {
		switch {
		case f.trial == nil, f.removing:
		case f.serving():
			end := f.trial.end
			f.trial = nil
			m.keep() // record the function before its caller learns that it serves
			end <- nil
		case f.trial.failure != "":
			f.takeBack()
		}
	}
}

// takeBack removes a function that failed its trial. If no process serves, its requests are
// answered `failed`.
func (f *function) takeBack() {
	f.log.Error().Str("reason", f.trial.failure).Msg("process of an added function cannot start; removing the function")
	f.remove()
	for _, in := range f.instances {
		if in.pair.Active() == nil {
			in.remove() // at once, so that no other process is started
		}
	}
	f.m.sharing.Remove(f.sharing)
}

// failed reports whether the function is being taken back.
func (f *function) failed() bool { return f.trial != nil && f.trial.failure != "" }

// settle ends the function's trial, if it is on one.
func (f *function) settle(err error) {
	if f.trial != nil {
		f.trial.end <- err
		f.trial = nil
	}
}

// endTrial ends the trial of a function that is gone.
func (f *function) endTrial() {
	if f.failed() {
		f.settle(fmt.Errorf("add function %s: its process cannot start: %s; the function was removed", f.name, f.trial.failure))
	}
	f.settle(errStopped)
}

// awaitTrial waits until an added function serves or is taken back. If the caller stops
// waiting, the trial continues.
func (m *Manager) awaitTrial(ctx context.Context, c configs.Function) (done string, err error) {
	var f *function
	var end <-chan error
	err = m.do(func() (err error) {
		f, end, err = m.try(c)
		return err
	})
	if err != nil {
		return "", err
	}
	select {
	case err := <-end:
		return withWarnings(fmt.Sprintf("%s serves at %s", f.name, f.localAddr()), f.model.desired), err
	case <-ctx.Done():
		return "", fmt.Errorf("wait for function %s: %w", f.name, ctx.Err())
	case <-m.done:
		return "", errStopped
	}
}
