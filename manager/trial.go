package manager

import (
	"context"
	"fmt"

	"github.com/penstock/penstock/configs"
)

// An addition by hand, `penstock if add`, is on trial until it has served once:
//
//	try ──every instance is served──> settled: one of the node's functions
//	 │
//	 └──a process of it fails──> takeBack ──its processes are gone──> settled: why
//
// Who asked for it may wait for the end or not: it comes to the same. Until then the node is
// as ready as it was without it. The functions of the configuration are not on trial: what
// the file says is tried again and again.

// trial is how an addition stands. It belongs to the control loop.
type trial struct {
	failure string     // why it is taken back; empty while it may still come to serve
	end     chan error // takes how it ended, once
}

// try adds a function on trial. end says how that ended, errStopped if the node did
// before.
func (m *Manager) try(c configs.Function) (f *function, end <-chan error, err error) {
	if err := m.add(c); err != nil {
		return nil, nil, err
	}
	f = m.function(c.Name)
	f.trial = &trial{end: make(chan error, 1)}
	return f, f.trial.end, nil
}

// fails notes that a process of the function could not come to serve.
func (f *function) fails(reason string) {
	if f.trial != nil && f.trial.failure == "" {
		f.trial.failure = reason
	}
}

// judge ends the trials that are decided.
func (m *Manager) judge() {
	for _, f := range m.functions {
		switch {
		case f.trial == nil, f.removing:
		case f.serving():
			end := f.trial.end
			f.trial = nil
			m.keep() // before anybody is told that it is there
			end <- nil
		case f.trial.failure != "":
			f.takeBack()
		}
	}
}

// takeBack removes a function that failed its trial. What is asked of it is answered
// `failed` where nobody serves.
func (f *function) takeBack() {
	f.log.Error().Str("reason", f.trial.failure).Msg("function was added by hand and its process cannot start: it is taken off again")
	f.remove()
	for _, in := range f.instances {
		if in.pair.Active() == nil {
			in.remove() // at once, so that no other process is started
		}
	}
	f.m.shareOut(f)
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

// gone ends the trial of a function that is gone.
func (f *function) gone() {
	if f.failed() {
		f.settle(fmt.Errorf("add function %s: its process cannot start: %s; it was taken off again", f.name, f.trial.failure))
	}
	f.settle(errStopped)
}

// awaitTrial waits until a function that was added serves, or is taken back. That nobody
// waits any more changes nothing for the function.
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
		return fmt.Sprintf("%s serves at %s", f.name, f.localAddr()), err
	case <-ctx.Done():
		return "", fmt.Errorf("wait for function %s: %w", f.name, ctx.Err())
	case <-m.done:
		return "", errStopped
	}
}
