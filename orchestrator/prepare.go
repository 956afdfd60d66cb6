package orchestrator

import (
	"context"
	"fmt"
	"slices"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/orchestrator/program"
	"github.com/penstock/penstock/orchestrator/sandbox"
)

// The processes of all functions that run a model share the prepared model. No such process may write it: an
// attacker who controls one process would control the others.
//
//	process                       orchestrator                    penstock prepare
//	1 Notice{prepare}  ─────────> one run per card, GPU ────────> 2 optimises the model on the
//	                                                                GPU, writes the entry, ends
//	4 opens the entry <────────── 3 Order{prepared}
//
// The card is always the one that the manager named, never one that a process names. The preparing process
// runs as the node's user, without capabilities, in a sandbox that may write the folder of prepared models.
// Like the loaders of weights, it is no client of MPS.

// preparations are the models that are being prepared.
type preparations struct {
	waiting map[preparedModel][]key
	results chan preparation
}

// preparedModel is the model of a card's file, on a device.
type preparedModel struct {
	card   string
	device *device
}

// preparation is the result of preparing a model.
type preparation struct {
	preparedModel
	err error
}

// prepareModel starts the preparation of a process's model, unless one is under way.
func (s *supervisor) prepareModel(k key, c *child) {
	card := c.desired.Card
	if s.o.Prepared == "" || s.o.Sandbox == nil || !c.device.onGPU() || card == "" {
		s.order(k, c, control.Order{Do: control.DoPrepared, Failed: "this orchestrator does not prepare models"})
		return
	}
	m := preparedModel{card, c.device}
	waiting, running := s.preparations.waiting[m]
	s.preparations.waiting[m] = append(waiting, k)
	if running {
		return
	}
	s.addProcess(s.log.Info(), k).Str("card", card).Msg("preparing model for the GPU")
	p := preparer{
		self: s.o.Self, dir: s.o.Dir, prepared: s.o.Prepared, uuid: c.device.UUID, card: card,
		read: slices.Concat([]string{card}, nonEmpty(c.desired.Dir), modelFiles(&c.desired)), log: s.log,
	}
	s.closing.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), s.limits.load)
		defer cancel()
		go func() {
			select {
			case <-s.done:
				cancel()
			case <-ctx.Done():
			}
		}()
		err := p.run(ctx)
		select {
		case s.preparations.results <- preparation{m, err}:
		case <-s.done:
		}
	})
}

// notePrepared answers the processes that wait for a model.
func (s *supervisor) notePrepared(p preparation) {
	order := control.Order{Do: control.DoPrepared}
	if p.err != nil {
		s.log.Warn().Err(p.err).Str("card", p.card).Msg("cannot prepare model; its processes load their own weights")
		order.Failed = program.Line(p.err.Error())
	}
	for _, k := range s.preparations.waiting[p.preparedModel] {
		if c := s.processes[k]; c != nil && c.process != nil && !c.state.Ended() {
			s.order(k, c, order)
		}
	}
	delete(s.preparations.waiting, p.preparedModel)
}

// preparer is one run of `penstock prepare`.
type preparer struct {
	self, dir, prepared, uuid, card string
	read                            []string
	log                             zerolog.Logger
}

func (p *preparer) run(ctx context.Context) error {
	spec := sandbox.Base(true)
	spec.Read = append(spec.Read, p.read...)
	spec.Write = append(spec.Write, p.prepared)
	arguments := []string{"prepare", "--card", p.card, "--device", p.uuid, "--dir", p.prepared}
	if _, err := program.Run(ctx, p.log, p.self, arguments, program.BesideMPS(p.uuid, p.dir), &spec); err != nil {
		return fmt.Errorf("prepare model: %w", err)
	}
	return nil
}
