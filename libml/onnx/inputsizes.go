//go:build cgo

package onnx

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/libml/framework"
	"github.com/penstock/penstock/models"
)

// Batches of all sizes of an input (models.Card.Sizes) run in one session. Each size has its bindings.
//
// Active: on a CPU, for cards with several sizes.

var _ framework.Sizable = (*Framework)(nil)

// Sized runs the model with blank inputs of a size, to see the shapes of its outputs.
func (f *Framework) Sized(card *models.Card) (_ framework.Framework, took time.Duration, err error) {
	c, ok := f.runner.(*cpu)
	if !ok {
		return nil, 0, errors.New("a GPU runs one size")
	}
	sized := &cpu{card: card, log: c.log, session: c.session, inputs: c.inputs, batches: map[key]*batch{}}
	c.sized = append(c.sized, sized)
	for range 2 { // the first run pays for lazy initialisation
		if took, err = sized.observe(card.Batches[0]); err != nil {
			return nil, 0, fmt.Errorf("run %s: %w", card.Model, summarize(card, err))
		}
	}
	return &Framework{card: card, runner: sized}, took, nil
}

// observe runs a batch of n images and sets the shapes of the card's outputs.
func (c *cpu) observe(n int) (took time.Duration, err error) {
	var inputs []device.Buffer
	for _, t := range c.card.InputTensors() {
		inputs = append(inputs, device.HostBuffer(make([]byte, n*t.Bytes())))
	}
	var b batch
	defer b.pins.Unpin()
	ins, err := c.places(n, inputs, &b)
	if err != nil {
		return 0, err
	}
	var outs []place // without an address
	for _, t := range c.card.OutputTensors() {
		outs = append(outs, place{name: t.Name, dtype: t.Type})
	}
	v, err := c.session.newInvocation(ins, outs)
	if err != nil {
		return 0, err
	}
	defer v.close()
	began := time.Now()
	err = v.run(nil, func(made func(int) ([]int64, []byte)) error {
		took = time.Since(began)
		for i := range c.card.Outputs {
			t := &c.card.Outputs[i]
			if t.Rows != nil {
				continue
			}
			shape, _ := made(i)
			if len(shape) != len(t.Batch(n)) || t.BatchAxis >= 0 && shape[t.BatchAxis] != int64(n) {
				return fmt.Errorf("output %q has shape %v in a batch of %d, and %v in the card without the batch", t.Name, shape, n, t.Shape)
			}
			if t.BatchAxis >= 0 {
				shape = slices.Delete(shape, t.BatchAxis, t.BatchAxis+1)
			}
			t.Shape = shape
		}
		return nil
	})
	return took, err
}
