package fleet

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/manager/policy/pair"
	"github.com/penstock/penstock/models"
)

// modelHistory has the models of a function: those that it runs, ran, and can go back to. The
// control loop owns it.
type modelHistory struct {
	desired   *models.Card
	served    *models.Card // the model that served last, nil before the first
	older     []olderModel // the models before it, newest last, for rollbacks
	replacing *replacement // nil if none runs
	// setups has the setup of each card that a process runs or is going to run.
	setups map[*models.Card]setup
}

// olderModel is a model that a function ran before.
type olderModel struct {
	card *models.Card
	name string // finds the model: a card's name or file
}

// replacement is a replacement of a function's model, or only of its setup. The processes of the old
// model serve until those of the new one do.
type replacement struct {
	old   *models.Card
	want  configs.Function
	older []olderModel // the rollback list for when every instance serves the new model
	waits []*instance  // those that have not ended it yet
	errs  []error
	done  func(error) // gets the result
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

// current is the model that serves, or that will serve if none has yet.
func (h *modelHistory) current() *models.Card { return cmp.Or(h.served, h.desired) }

// Load adds a function, or replaces its model by that of another card. If the function runs this model, there is nothing to do.
// The version may be lower: the newest version in a folder of models may have been removed.
func (fl *Fleet) Load(o control.LoadOrder) (Order, error) {
	name := o.Name
	f := fl.functions.find(name)
	if f == nil {
		return fl.Add(configs.Function{Name: name, Model: o.Model, Instances: max(1, o.Instances)})
	}
	model := cmp.Or(o.Model, f.config.Model, name)
	card, err := fl.findFor(&f.config, model)
	if err != nil {
		return Order{}, fmt.Errorf("replace model of %s: %w", name, err)
	}
	if served := f.model.served; served != nil && card.Name == served.Name && card.Version == served.Version {
		return Order{Done: fmt.Sprintf("%s: serves %s already", name, modelName(card))}, nil
	}
	return f.exchange(card, model, 0)
}

// Replace starts a newer model in a function. The order ends when every instance runs the model, or
// when one failed and all are back on the old one.
func (fl *Fleet) Replace(name, model string) (Order, error) {
	f := fl.functions.find(name)
	if f == nil {
		return Order{}, fl.functions.unknown(name)
	}
	card, err := fl.findFor(&f.config, model)
	if err != nil {
		return Order{}, fmt.Errorf("replace model of %s: %w", name, err)
	}
	var above uint32
	if served := f.model.served; served != nil {
		above = served.Version
	}
	return f.exchange(card, model, above)
}

// exchange replaces the function's model by that of a card, which model finds. Its version must be above that one.
func (f *function) exchange(card *models.Card, model string, above uint32) (Order, error) {
	want := f.config
	want.Model = model
	if err := f.takes(card, want); err != nil {
		return Order{}, err
	}
	if card.Version <= above {
		return Order{}, fmt.Errorf("replace model of %s: %s has version %d, and the function runs version %d; want a higher `version` in the card, or return to the previous model with `penstock if rollback %s`",
			f.name, card.Name, card.Version, above, f.name)
	}
	from := modelName(f.model.desired)
	order, done := newOrder(withWarnings(fmt.Sprintf("%s: replaced %s by %s", f.name, from, modelName(card)), card))
	return order, f.replace(card, want, f.model.olderAfter(cmp.Or(f.config.Model, f.name)), done)
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
	to, want := f.model.older[last], f.config
	want.Model = to.name
	order, done := newOrder(withWarnings(fmt.Sprintf("%s: rolled back from %s to %s", name, from, modelName(to.card)), to.card))
	return order, f.replace(to.card, want, f.model.older[:last], done)
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

// takes checks whether a card's model can replace the function's model, as an entry wants it. Its
// requests must be the same, and its results must fit.
func (f *function) takes(card *models.Card, want configs.Function) error {
	if have, needs := f.model.desired.Input.WireBytes(), card.Input.WireBytes(); have != needs {
		return fmt.Errorf("replace model of %s: %s takes pictures of %d bytes, and the function takes %d; add it as another function",
			f.name, card.Name, needs, have)
	}
	same := func(a, b models.Input) bool { return a.WireBytes() == b.WireBytes() && slices.Equal(a.Parts, b.Parts) }
	if !slices.EqualFunc(f.model.desired.Inputs, card.Inputs, func(a, b models.Tensor) bool { return a.Type == b.Type && slices.Equal(a.Shape, b.Shape) }) ||
		!slices.EqualFunc(f.model.desired.Sizes(), card.Sizes(), same) {
		return fmt.Errorf("replace model of %s: %s takes other tensors; add it as another function", f.name, card.Name)
	}
	if len(f.model.desired.State) > 0 != (len(card.State) > 0) {
		return fmt.Errorf("replace model of %s: only one of %s and %s has state; add it as another function", f.name, f.model.desired.Name, card.Name)
	}
	if problem := fits(&f.fleet.cfg, &want, card); problem != nil {
		return fmt.Errorf("replace model of %s: %s %w", f.name, problem.Key, problem.Err)
	}
	if f.camera != nil && *readerOf(&f.config, &card.Input) != *f.camera.Reader {
		return fmt.Errorf("replace model of %s: %s takes pictures of %d x %d pixels, and the camera sends %d x %d; add it as another function",
			f.name, card.Name, card.Input.Width, card.Input.Height, f.camera.Shape.Width, f.camera.Shape.Height)
	}
	if bytes := card.ResultBytes(); bytes > int(f.port.Geometry().ResultBytes) {
		return fmt.Errorf("replace model of %s: %s answers with up to %d bytes, and the function has room for %d; add it as another function",
			f.name, card.Name, bytes, f.port.Geometry().ResultBytes)
	}
	return nil
}

// replace gives every instance a model, and the setup that an entry wants. older is the rollback list
// for when all of them serve it. done gets the result; unless replace returns an error, it is called
// once.
func (f *function) replace(model *models.Card, want configs.Function, older []olderModel, done func(error)) error {
	if f.model.replacing != nil {
		return fmt.Errorf("replace model of %s: another replacement is running; try again when it has ended", f.name)
	}
	if err := f.takes(model, want); err != nil {
		return err
	}
	logWarnings(model, f.log)
	// Copy the card: for the instances the same model with another setup is another card.
	card := new(*model)
	f.model.setups[card] = setupUnder(&f.fleet.cfg, want, card)
	for _, in := range f.instances {
		if err := in.makeTensors(pair.Run{Card: card, Device: in.pair.Device()}); err != nil {
			return err
		}
	}
	f.fleet.forgetFaults(f.name) // they belong to the old model
	f.release()
	f.model.replacing = &replacement{old: f.model.desired, want: want, older: older, waits: slices.Clone(f.instances), done: done}
	f.want(card)
	f.log.Info().Str("model", card.Name).Uint32("version", card.Version).Msg("replacing processes")
	return nil
}

// want makes a model the desired one of every instance.
func (f *function) want(card *models.Card) {
	f.model.desired = card
	for _, in := range f.instances {
		in.pair.Replace(card)
	}
}

// replaced records the result of a replacement in one instance. The last one ends it.
func (in *instance) replaced(err error) {
	f, r := in.f, in.f.model.replacing
	if r == nil || !slices.Contains(r.waits, in) {
		return
	}
	r.waits = slices.DeleteFunc(r.waits, func(other *instance) bool { return other == in })
	if r.errs = append(r.errs, err); len(r.waits) > 0 {
		return
	}
	f.model.replacing = nil
	if err = errors.Join(r.errs...); err != nil {
		f.want(r.old)
		r.done(err)
		return
	}
	f.model.older = r.older
	if !r.old.Equal(f.model.desired) {
		f.byHand = 0 // it belonged to the old model
	}
	f.config.Model, f.config.Worker = r.want.Model, r.want.Worker
	f.adopt(f.model.setups[f.model.desired])
	if f.worker != "" {
		f.byHand = 0 // the worker's guarantee counts
	}
	maps.DeleteFunc(f.model.setups, func(card *models.Card, _ setup) bool {
		return !slices.ContainsFunc(f.instances, func(in *instance) bool {
			return card == in.pair.Card() || slices.ContainsFunc(in.pair.Processes(), func(q *pair.Process) bool { return q.Card == card })
		})
	})
	f.fleet.keep()
	r.done(nil)
}
