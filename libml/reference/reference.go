// Package reference answers single requests of a model in this process, without a node. Checks compare answers with it.
package reference

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/penstock/penstock/libml/cpu"
	"github.com/penstock/penstock/libml/decode"
	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/libml/framework"
	"github.com/penstock/penstock/libml/internal/tensors"
	"github.com/penstock/penstock/models"
)

// Model runs a model in this process, one picture at a time. It uses the same
// gather, framework and decoder as an inference function, and nothing else. An
// inference function must give the same answers. Only one goroutine may use a
// Model.
type Model struct {
	card      *models.Card
	framework framework.Framework
	memory    tensors.Scratch
	tensors   *tensors.Tensors
	decoder   *decode.Decoder
	image     [][]byte
}

// New loads and links a card's model, on one thread.
func New(card *models.Card, build framework.Build) (_ *Model, err error) {
	decoder, err := decode.New(card)
	if err != nil {
		return nil, err
	}
	loaded, err := build(card)
	if err != nil {
		return nil, err
	}
	memory, err := tensors.NewScratch(card.TensorBytes())
	if err != nil {
		return nil, err
	}
	r := &Model{
		card: card, framework: loaded, decoder: decoder, memory: memory,
		image: make([][]byte, len(card.Outputs)),
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.Close())
		}
	}()
	if r.tensors, err = tensors.New(card, memory); err != nil {
		return nil, err
	}
	if err := loaded.Init(framework.Environment{Card: card, Threads: 1, Log: slog.New(slog.DiscardHandler), Device: framework.DeviceCPU}); err != nil {
		return nil, fmt.Errorf("init %s: %w", card.Framework, err)
	}
	if err := loaded.LoadModel(); err != nil && !errors.Is(err, framework.ErrNoHostStage) {
		return nil, fmt.Errorf("load model %s: %w", card.Name, err)
	}
	if _, err := loaded.LinkModel(); err != nil {
		return nil, fmt.Errorf("link model %s: %w", card.Name, err)
	}
	if _, err := loaded.ConfigureBatch(0, r.batch(), r.tensors.InputsOf(r.batch()), r.tensors.OutputsOf(r.batch())); err != nil {
		return nil, fmt.Errorf("configure batch %d of %s: %w", r.batch(), card.Name, err)
	}
	return r, nil
}

// Answer returns the model's answer to a picture in its wire format: the result's
// payload, which the caller keeps, and its wire.Kind.
func (r *Model) Answer(picture []byte) (payload []byte, kind uint8, err error) {
	inputs := r.tensors.InputsOf(1)[:len(r.card.Input.Places())] // its states stay zero
	if err := cpu.Direct(r.card.Input, picture, device.Bytes(inputs)...); err != nil {
		return nil, 0, err
	}
	if err := r.framework.InferBatch(0, r.batch()); err != nil {
		return nil, 0, fmt.Errorf("infer %s: %w", r.card.Name, err)
	}
	r.tensors.Image(r.image, nil, 0)
	return r.decoder.Append(nil, r.image)
}

// batch is the smallest batch size of the model. The picture is the first image of
// the batch, the others are zero.
func (r *Model) batch() int { return r.card.Batches[0] }

// Close frees the framework and its memory.
func (r *Model) Close() error { return errors.Join(r.framework.Deinit(), r.memory.Free()) }
