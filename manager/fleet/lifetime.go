package fleet

import (
	"fmt"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control/runclock"
	"github.com/penstock/penstock/models"
)

// add opens a function's port and requests its processes. The function serves as soon as one is
// ready. Adding reallocates the shares at once. byHand is a share that was set by hand before; 0: none was.
func (fl *Fleet) add(c configs.Function, byHand float64) error {
	if fl.draining {
		return ErrStopped
	}
	card, err := fl.checked(c)
	if err != nil {
		return err
	}
	if fl.functions.find(c.Name) != nil {
		return fmt.Errorf("add function: function %q exists already", c.Name)
	}
	if n := len(fl.functions); n >= configs.MaxFunctions {
		return fmt.Errorf("add function %s: the node has %d functions, want at most %d", c.Name, n, configs.MaxFunctions)
	}
	on, err := fl.place(c)
	if err != nil {
		return fmt.Errorf("add function %s: %w", c.Name, err)
	}
	if other := fl.functions.portHolder(c.Port); other != "" {
		return fmt.Errorf("add function %s: port %d belongs to function %q; choose another, or 0 for any free one", c.Name, c.Port, other)
	}
	f, err := newFunction(fl, c, card, on)
	if err != nil {
		return err
	}
	f.byHand = byHand
	fl.functions = append(fl.functions, f)
	for range c.Instances - 1 {
		if len(fl.cfg.DevicesOf(&c)) > 1 {
			on, err = fl.place(c)
		}
		if err == nil {
			err = f.grow(on)
		}
		if err != nil {
			fl.functions = fl.functions[:len(fl.functions)-1]
			f.close()
			return fmt.Errorf("add function %s: instance %d of %d: %w", c.Name, len(f.instances)+1, c.Instances, err)
		}
	}
	fl.decide(occasion{})
	f.port.Start(fl.metrics.Of(f.name))
	f.log.Info().Str("device", on.Device.Name).Stringer("port", f.port.LocalAddr()).Str("model", card.Name).Dur("slo", f.slo).
		Int("request_bytes", card.Input.WireBytes()).Str("change", string(fl.cfg.ChangeOf(c))).Msg("function added")
	return nil
}

// checked finds the card of a function to add. It checks what can be checked while other functions
// still occupy its place.
func (fl *Fleet) checked(c configs.Function) (*models.Card, error) {
	card, problem := checkFunction(&fl.cfg, c, func(model string) (*models.Card, error) { return fl.findFor(&c, model) })
	if problem == nil {
		return card, nil
	}
	switch problem.Key {
	case "worker", "format", "pictures", "max_picture": // their errors begin with the value
		return nil, fmt.Errorf("add function %s: %s %w", c.Name, problem.Key, problem.Err)
	}
	return nil, fmt.Errorf("add function %s: %w", c.Name, problem.Err)
}

// Remove takes a function off: its port refuses new requests, accepted ones are answered, its
// processes end, and its memory is freed. Removing reallocates the shares at once. The order ends
// when all that has happened; a second Remove does nothing else.
func (fl *Fleet) Remove(name string) (Order, error) {
	f := fl.functions.find(name)
	if f == nil {
		return Order{}, fl.functions.unknown(name)
	}
	order := Order{name + " is removed", f.gone}
	if f.removing {
		return order, nil
	}
	f.remove()
	f.leaves = true
	fl.file.dropWaiting(name)
	f.trial.settle(fmt.Errorf("add function %s: it was removed again", name))
	f.log.Info().Msg("function is being removed")
	fl.keep()
	return order, nil
}

// remove refuses new requests; reap does the rest later.
func (f *function) remove() {
	f.removing = true
	f.removeBy = runclock.Time().Add(f.fleet.cfg.DrainTimeout)
	f.port.Drain()
}

// reap advances the removal of a function and reports whether the function is gone.
func (f *function) reap() bool {
	if !f.removing {
		return false
	}
	now := runclock.Time()
	if f.port.Unanswered() && now.Before(f.removeBy) {
		if f.trial.failed() && !f.instances.served() {
			f.port.GiveUp()
		}
		return false
	}
	gone := true
	for _, in := range f.instances {
		in.remove()
		gone = gone && in.pair.Removed()
	}
	if !gone && now.Before(f.removeBy.Add(f.fleet.cfg.DrainTimeout)) {
		return false
	}
	// No process is left to answer the remaining requests, but every accepted request gets an
	// answer.
	if f.port.Unanswered() && now.Before(f.removeBy.Add(2*f.fleet.cfg.DrainTimeout)) {
		f.port.GiveUp()
		return false
	}
	f.close()
	f.fleet.metrics.Forget(f.name)
	f.fleet.forgetFaults(f.name)
	f.log.Info().Msg("function removed")
	if f.trial.failed() {
		f.trial.settle(fmt.Errorf("add function %s: its process cannot start: %s; the function was removed", f.name, f.trial.failure))
	}
	f.trial.settle(ErrStopped)
	close(f.gone)
	return true
}

// close ends the function's threads and frees its memory and its port.
func (f *function) close() {
	if f.port == nil {
		return
	}
	if f.unfollow != nil {
		f.unfollow()
		f.following.Wait()
	}
	f.port.Stop()
	for _, in := range f.instances {
		in.close()
	}
	if err := f.port.Close(); err != nil {
		f.log.Warn().Err(err).Msg("cannot free memory of function")
	}
}

// SetShare sets the share of each instance by hand.
func (fl *Fleet) SetShare(name string, percent float64) (Order, error) {
	f := fl.functions.find(name)
	if f == nil {
		return Order{}, fl.functions.unknown(name)
	}
	err := fl.setByHand(f, percent)
	fl.keep()
	return Order{Done: fmt.Sprintf("%s: share set to %v %%", name, percent)}, err
}
