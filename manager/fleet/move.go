package fleet

import (
	"fmt"
	"os"
	"time"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/control/runclock"
	"github.com/penstock/penstock/manager/policy/pair"
	"github.com/penstock/penstock/models"
)

// A function runs in its own processes, or as a member of a worker, a process that hosts several
// functions. A move is a replacement of the model by itself with another setup: the old process
// serves until the new one takes over.

// Move moves a function to a worker; the empty name stands for its own processes. The order ends
// when the function runs there, or when it cannot and is back.
func (fl *Fleet) Move(name, worker string) (Order, error) {
	f := fl.functions.find(name)
	if f == nil {
		return Order{}, fl.functions.unknown(name)
	}
	if f.model.replacing != nil {
		return Order{}, fmt.Errorf("move %s: a replacement is running; try again when it has ended", name)
	}
	if f.worker == worker {
		return Order{}, fmt.Errorf("move %s: it %s already", name, hostText(worker))
	}
	want := f.config
	want.Worker = worker
	if err := want.Under(&fl.cfg); err != nil {
		return Order{}, fmt.Errorf("move %s: %w", name, err)
	}
	if err := checkMember(&fl.cfg, worker, f.model.desired); err != nil {
		return Order{}, fmt.Errorf("move %s: worker %w", name, err)
	}
	order, done := newOrder(fmt.Sprintf("%s: %s", name, hostText(worker)))
	return order, f.replace(f.model.desired, want, f.model.older, done)
}

// suspectPeriod is the time in which a member may be suspected once.
const suspectPeriod = time.Minute

// suspect records that the instance's batch ran when its worker died. If that happens again within
// suspectPeriod, the function moves to its own processes, so that it ends no other members again.
func (in *instance) suspect(worker string) {
	last, now := in.suspected, runclock.Time()
	in.suspected = now
	if last.IsZero() || now.Sub(last) > suspectPeriod {
		return
	}
	in.suspected = time.Time{}
	in.log.Error().Str("worker", worker).Msg("worker died twice within a minute while it ran a batch of this function; moving the function to its own processes")
	if _, err := in.fleet.Move(in.f.name, ""); err != nil {
		in.log.Warn().Err(err).Msg("cannot move the function out of its worker")
	}
}

// leave moves a function from a superseded process of its worker to the newer one. If that fails, the
// function stays.
func (in *instance) leave(q *pair.Process, o *control.ObservedProcess) {
	f, p := in.f, in.processes.of(o.Generation)
	if !o.Superseded || p.left || q != in.pair.Active() || q.State != control.Active || f.removing || f.model.replacing != nil {
		return
	}
	p.left = true
	in.log.Info().Msg("worker has a newer process; moving the function there")
	if err := f.replace(f.model.desired, f.config, f.model.older, func(error) {}); err != nil {
		in.log.Warn().Err(err).Msg("cannot move the function to the worker's newer process")
	}
}

// hostText describes the host of a function.
func hostText(worker string) string {
	if worker == "" {
		return "runs in its own process"
	}
	return "runs in worker " + worker
}

// checkMember returns an error if a model cannot be a member of a worker. An empty worker takes all
// models.
func checkMember(cfg *configs.Config, worker string, card *models.Card) error {
	switch {
	case worker == "":
		return nil
	case len(card.Command) > 0:
		return fmt.Errorf("is %q, and the model %s is a separate program (`command` in its card); leave the worker out", worker, card.Name)
	case card.SeparateProgram() != "":
		return fmt.Errorf("is %q, and a %s model such as %s is a separate program; leave the worker out", worker, card.SeparateProgram(), card.Name)
	case len(card.Sizes()) > 1 || card.PadLengths:
		return fmt.Errorf("is %q, and the model %s takes inputs of several sizes; leave the worker out", worker, card.Name)
	}
	w, _ := cfg.Worker(worker)
	return fitMemory(&w, card)
}

// fitMemory returns an error if a model is larger than the memory of its worker. Its file is the lower
// bound that is known before it is loaded.
func fitMemory(w *configs.Worker, card *models.Card) error {
	if w.Memory == 0 || card.Model == "" {
		return nil
	}
	var bytes int64
	for _, name := range card.Files() {
		info, err := os.Stat(name)
		if err != nil { // its process reports a missing file better
			return nil
		}
		bytes += info.Size()
	}
	if bytes <= int64(w.Memory) {
		return nil
	}
	need := (bytes + mib - 1) / mib
	return fmt.Errorf("is %q, with memory for models of %.1f MiB, and %s has %.1f MiB; want `memory: %dMiB` or more, because models take up to twice their file, or leave the worker out",
		w.Name, float64(w.Memory)/mib, card.Model, float64(bytes)/mib, 2*need)
}

const mib = 1 << 20
