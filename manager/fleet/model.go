package fleet

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/penstock/penstock/models"
)

// modelHistory has the models of a function: those that it runs, ran, and can go back to. The
// control loop owns it.
type modelHistory struct {
	desired   *models.Card
	served    *models.Card // the model that served last, nil before the first
	older     []olderModel // the models before it, newest last, for rollbacks
	replacing bool         // processes of the desired model are replacing those of another
	// setups has the setup of each card that a process runs or is going to run.
	setups map[*models.Card]setup
}

// olderModel is a model that a function ran before.
type olderModel struct {
	card *models.Card
	name string // finds the model: a card's name or file
}

// maxOlder is how many models back a function can be rolled back.
const maxOlder = 16

// olderAfter is the list of older models after a replacement of the desired model, which name
// finds. It leaves out a model that never served.
func (h *modelHistory) olderAfter(name string) []olderModel {
	if h.served != h.desired {
		return h.older
	}
	list := append(slices.Clone(h.older), olderModel{h.desired, name})
	return list[max(0, len(list)-maxOlder):]
}

// begin starts the replacement of the desired model, and returns that one.
func (h *modelHistory) begin(card *models.Card) (old *models.Card) {
	old, h.desired, h.replacing = h.desired, card, true
	return old
}

// commit ends a replacement. older is the new list of older models.
func (h *modelHistory) commit(older []olderModel) { h.older, h.replacing = older, false }

// abort ends a replacement that failed: the old model is desired again.
func (h *modelHistory) abort(old *models.Card) { h.desired, h.replacing = old, false }

// current is the model that serves, or that will serve if none has yet.
func (h *modelHistory) current() *models.Card { return cmp.Or(h.served, h.desired) }

// Replace starts another model in a function. The order ends when every instance runs the model, or
// when one failed and all are back on the old one.
func (fl *Fleet) Replace(name, model string) (Order, error) {
	f := fl.functions.find(name)
	if f == nil {
		return Order{}, fl.functions.unknown(name)
	}
	card, err := fl.find(model)
	if err != nil {
		return Order{}, fmt.Errorf("replace model of %s: %w", name, err)
	}
	with := setupUnder(&fl.cfg, f.config, card)
	if err := f.takes(card, with); err != nil {
		return Order{}, err
	}
	if served := f.model.served; served != nil && card.Version <= served.Version {
		return Order{}, fmt.Errorf("replace model of %s: %s has version %d, and the function runs version %d; want a higher `version` in the card, or return to the previous model with `penstock if rollback %s`",
			name, card.Name, card.Version, served.Version, name)
	}
	from := modelName(f.model.desired)
	end, err := f.replace(card, model, with, f.model.olderAfter(cmp.Or(f.config.Model, name)))
	return Order{withWarnings(fmt.Sprintf("%s: replaced %s by %s", name, from, modelName(card)), card), end}, err
}

// Rollback restores the model that the function ran before the present one. Each rollback goes one
// model further back. Use Replace to return to a model that was rolled back.
func (fl *Fleet) Rollback(name string) (Order, error) {
	f := fl.functions.find(name)
	if f == nil {
		return Order{}, fl.functions.unknown(name)
	}
	last := len(f.model.older) - 1
	from := modelName(f.model.desired)
	if last < 0 {
		return Order{}, fmt.Errorf("roll back %s: no model before %s; replace it with `penstock if replace %s CARD`", name, from, name)
	}
	to := f.model.older[last]
	end, err := f.replace(to.card, to.name, setupUnder(&fl.cfg, f.config, to.card), f.model.older[:last])
	return Order{withWarnings(fmt.Sprintf("%s: rolled back from %s to %s", name, from, modelName(to.card)), to.card), end}, err
}

// withWarnings appends the warnings of a function's card to an answer, a line each.
func withWarnings(text string, card *models.Card) string {
	for _, w := range card.Warnings {
		text += "\nwarning: " + w
	}
	return text
}

// modelName names a model with its version, for users.
func modelName(card *models.Card) string { return fmt.Sprintf("%s v%d", card.Name, card.Version) }

// takes checks whether a card's model with that setup can replace the function's model. Its
// requests must be the same, and its results must fit.
func (f *function) takes(card *models.Card, s setup) error {
	if have, want := f.model.desired.Input.WireBytes(), card.Input.WireBytes(); have != want {
		return fmt.Errorf("replace model of %s: %s takes pictures of %d bytes, and the function takes %d; add it as another function",
			f.name, card.Name, want, have)
	}
	if err := checkMember(&f.fleet.cfg, s.worker, card); err != nil {
		return fmt.Errorf("replace model of %s: worker %w", f.name, err)
	}
	if err := checkCamera(f.config.Format, &card.Input); err != nil {
		return fmt.Errorf("replace model of %s: format %w", f.name, err)
	}
	if f.camera != nil && *readerOf(f.config.Format, &card.Input) != *f.camera.Reader {
		in := &card.Input
		return fmt.Errorf("replace model of %s: %s takes pictures of %d x %d x %d, and the camera sends %d x %d x %d; add it as another function",
			f.name, card.Name, in.Height, in.Width, in.Channels, f.camera.Height, f.camera.Width, f.camera.PixelBytes)
	}
	if err := f.fleet.cfg.Lab.FitsBatches(card.Batches, s.slo, s.hangTimeout); err != nil {
		return fmt.Errorf("replace model of %s: %w", f.name, err)
	}
	if bytes := card.ResultBytes(); bytes > int(f.port.Geometry().ResultBytes) {
		return fmt.Errorf("replace model of %s: %s answers with up to %d bytes, and the function has room for %d; add it as another function",
			f.name, card.Name, bytes, f.port.Geometry().ResultBytes)
	}
	return nil
}

// replace gives every instance a model with a setup. older is the rollback list for when all of
// them serve it.
func (f *function) replace(model *models.Card, name string, s setup, older []olderModel) (<-chan error, error) {
	if f.model.replacing {
		return nil, fmt.Errorf("replace model of %s: another replacement is running; try again when it has ended", f.name)
	}
	if err := f.takes(model, s); err != nil {
		return nil, err
	}
	logWarnings(model, f.log)
	// Copy the card: for the instances the same model with another setup is another card.
	card := new(*model)
	f.model.setups[card] = s
	if f.fleet.sharing.Device.Known { // tensor sizes depend on it; else admit creates them
		for _, in := range f.instances {
			if err := in.tensors.make(card, in.place, f.fleet.sharing.Device.GPU != nil); err != nil {
				return nil, err
			}
		}
	}
	f.forgetFaults()
	ends := make([]<-chan error, 0, len(f.instances))
	for _, in := range f.instances {
		ends = append(ends, in.replace(card))
	}
	old := f.model.begin(card)
	f.log.Info().Str("model", card.Name).Uint32("version", card.Version).Msg("replacing processes")
	done := make(chan error, 1)
	go func() {
		var errs []error
		for _, end := range ends {
			errs = append(errs, <-end)
		}
		err := errors.Join(errs...)
		f.fleet.loop.Post(func() { f.replaced(old, name, older, err) })
		done <- err
	}()
	return done, nil
}

// replaced records the result of a replacement of the card old by model.
func (f *function) replaced(old *models.Card, model string, older []olderModel, err error) {
	if err != nil {
		f.model.abort(old)
		for _, in := range f.instances {
			in.pair.Replace(old)
		}
		return
	}
	f.model.commit(older)
	if !old.Equal(f.model.desired) {
		f.sharing.ByHand = 0 // it belonged to the old model
	}
	f.config.Model = model
	f.adopt(f.model.setups[f.model.desired])
	if f.config.Worker = f.worker; f.worker != "" {
		f.sharing.ByHand = 0 // the worker's guarantee counts
	}
	maps.DeleteFunc(f.model.setups, func(card *models.Card, _ setup) bool {
		return !slices.ContainsFunc(f.instances, func(in *instance) bool { return in.pair.Uses(card) })
	})
	f.fleet.keep()
}
