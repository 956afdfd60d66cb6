package libml

import (
	"errors"
	"fmt"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/libml/decode"
	"github.com/penstock/penstock/libml/device/cpu"
	"github.com/penstock/penstock/models"
)

// Reference runs a model in this process, one picture at a time. It uses the same
// gather, framework and decoder as an inference function, and nothing else. An
// inference function must give the same answers. Only one goroutine may use a
// Reference.
type Reference struct {
	card      *models.Card
	framework Framework
	memory    scratch
	tensors   *tensors
	decoder   decode.Decoder
	image     [][]byte
}

// NewReference loads and links a card's model, on one thread.
func NewReference(card *models.Card, build Build) (_ *Reference, err error) {
	decoder, err := decode.New(card)
	if err != nil {
		return nil, err
	}
	framework, err := build(card)
	if err != nil {
		return nil, err
	}
	memory, err := newScratch(card.TensorBytes())
	if err != nil {
		return nil, err
	}
	r := &Reference{
		card: card, framework: framework, decoder: decoder, memory: memory,
		image: make([][]byte, len(card.Outputs)),
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.Close())
		}
	}()
	if r.tensors, err = newTensors(card, memory); err != nil {
		return nil, err
	}
	if err := framework.Init(Environment{Card: card, Threads: 1, Log: zerolog.Nop(), Device: DeviceCPU}); err != nil {
		return nil, fmt.Errorf("init %s: %w", card.Framework, err)
	}
	if err := framework.LoadModel(); err != nil && !errors.Is(err, ErrNoHostStage) {
		return nil, fmt.Errorf("load model %s: %w", card.Name, err)
	}
	if _, err := framework.LinkModel(); err != nil {
		return nil, fmt.Errorf("link model %s: %w", card.Name, err)
	}
	if _, err := framework.ConfigureBatch(0, r.batch(), r.tensors.input(r.batch()), r.tensors.outputs(r.batch())); err != nil {
		return nil, fmt.Errorf("configure batch %d of %s: %w", r.batch(), card.Name, err)
	}
	return r, nil
}

// Answer returns the model's answer to a picture in its wire format: the result's
// payload, which the caller keeps, and its wire.Kind.
func (r *Reference) Answer(picture []byte) (payload []byte, kind uint8, err error) {
	if err := cpu.Direct(r.card.Input, picture, r.tensors.input(1)); err != nil {
		return nil, 0, err
	}
	if err := r.framework.InferBatch(0, r.batch()); err != nil {
		return nil, 0, fmt.Errorf("infer %s: %w", r.card.Name, err)
	}
	r.tensors.image(r.image, 0)
	return r.decoder.Append(nil, r.image)
}

// batch is the smallest batch size of the model. The picture is the first image of
// the batch, the others are zero.
func (r *Reference) batch() int { return r.card.Batches[0] }

// Close frees the framework and its memory.
func (r *Reference) Close() error { return errors.Join(r.framework.Deinit(), r.memory.free()) }
