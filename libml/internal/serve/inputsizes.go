package serve

import (
	"errors"
	"fmt"
	"time"

	"github.com/penstock/penstock/batching"
	"github.com/penstock/penstock/libml/framework"
	"github.com/penstock/penstock/libml/gpu"
	"github.com/penstock/penstock/libml/internal/loop"
	"github.com/penstock/penstock/libml/internal/tensors"
	"github.com/penstock/penstock/models"
)

// inputSize is a size of the model's input (models.Card.Sizes): the same model with another card. Its batches use the memory of those of
// the largest size.
type inputSize struct {
	loop.Size
	took time.Duration // by a batch of the smallest batch size
}

// openSizes prepares the sizes before the largest, which has run. It does not write the shared buffers.
func (p *process) openSizes() error {
	sizes := p.card.Sizes()
	for i, in := range sizes[:len(sizes)-1] {
		if p.exit.requested() {
			return nil
		}
		s, err := p.openSize(p.card.Sized(i))
		if err != nil {
			return fmt.Errorf("input of %d x %d: %w", in.Height, in.Width, err)
		}
		p.smaller = append(p.smaller, s)
	}
	return nil
}

func (p *process) openSize(card *models.Card) (s inputSize, err error) {
	model, ok := p.framework.(framework.Sizable)
	if !ok {
		return s, errors.New("this build runs one size")
	}
	sized, took, err := model.Sized(card)
	if err != nil {
		return s, err
	}
	s = inputSize{loop.Size{Card: card, Infer: sized.InferBatch}, took}
	if s.Decoders, err = loop.NewDecoders(card, p.threads()); err != nil {
		return s, err
	}
	if bytes, most := card.ResultBytes(), p.card.ResultBytes(); bytes > most {
		return s, fmt.Errorf("an answer has up to %d bytes, more than the %d of the largest size", bytes, most)
	}

	if s.Device, err = p.open(p.start, card.Input, gpu.Options{}); err != nil {
		return s, err
	}
	buffers, slabs := p.memory.regions[0], p.memory.regions[1:]
	for _, slab := range slabs {
		if err := s.Device.AddSlab(slab.Bytes()); err != nil {
			return s, err
		}
	}
	slots, err := s.Device.Tensors(buffers.Bytes(), tensors.MaxSizes(card))
	if err != nil {
		return s, err
	}
	for _, t := range slots {
		s.Tensors = append(s.Tensors, tensors.WithStates(card, t))
	}
	for _, n := range p.sizes.ladder {
		if _, err := sized.ConfigureBatch(0, n, s.Tensors[0].InputsOf(n), s.Tensors[0].OutputsOf(n)); err != nil {
			return s, fmt.Errorf("configure batch %d: %w", n, err)
		}
	}
	return s, nil
}

// warmed returns the state of a rule after the warm-up, for batches that take a part of those times.
func warmed(rule *batching.Rule, warm []warmUp, part float64) batching.State {
	state := rule.Start()
	for _, w := range warm {
		state = rule.Warm(state, w.size, time.Duration(part*float64(w.elapsed)))
	}
	return state
}
