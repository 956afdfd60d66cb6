//go:build cgo

package onnx

import (
	"errors"

	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/libml/answer"
	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/libml/framework"
)

// The answer check compares each batch size's answer to a picture of noise with the CPU's.
// A process with wrong answers does not serve: LinkModel or ConfigureBatch returns
// device.ErrWrongAnswers. Package answer has the reasons and the measure.
//
// Active: on every GPU, for models that ONNX Runtime can run on the CPU. The CPU answers in
// LoadModel, or has answered when the model was prepared. Otherwise the log says that
// answers are not checked. There is no setting. The known cause of wrong answers is an MPS
// percentage, for models in f16 (adr/0007).

// askReference has the CPU answer the sample. Without its answer, the reference has only the
// sample.
func (g *gpu) askReference() (err error) {
	if g.reference, err = g.ask(g.env, &g.file); err == nil {
		return nil
	}
	g.env.Log.Info("cannot run model on the CPU; its answers on the GPU are not checked", "error", summarize(g.env.Card, err))
	g.reference = new(answer.Reference)
	g.reference.Input, err = answer.Sample(g.env.Card, 0)
	return err
}

// newReference runs a model once, on the CPU.
func newReference(env framework.Environment, file *modelFile) (_ *answer.Reference, err error) {
	card := env.Card
	env.Threads = 1 // a shadow loads while other processes serve
	c := newCPU(env)
	defer func() { err = errors.Join(err, c.deinit()) }()
	if err := c.init(); err != nil {
		return nil, err
	}
	c.model = file.data
	if c.inputs, err = declaredInputs(card); err != nil {
		return nil, err
	}
	if _, err := c.linkModel(); err != nil {
		return nil, err
	}

	r := new(answer.Reference)
	if r.Input, err = answer.Sample(card, 0); err != nil {
		return nil, err
	}
	// A model with a fixed batch has no batch of 1. The sample is its first image; the
	// others are zero.
	n := card.Batches[0]
	var inputs, outputs [][]byte
	rest := r.Input
	for _, t := range card.InputTensors() {
		input := make([]byte, n*t.Bytes())
		rest = rest[copy(input[:t.Bytes()], rest):]
		inputs = append(inputs, input)
	}
	for _, t := range card.OutputTensors() {
		outputs = append(outputs, make([]byte, n*t.Bytes()))
	}
	if _, err := c.configureBatch(0, n, device.HostBuffers(inputs...), device.HostBuffers(outputs...)); err != nil {
		return nil, err
	}
	if err := c.inferBatch(0, n); err != nil && !isAboutImages(err) {
		return nil, err
	}
	for i := range card.Outputs {
		r.Outputs = append(r.Outputs, answer.Floats(card.Outputs[i].Type, outputs[i][:card.Outputs[i].Bytes()]))
	}
	return r, nil
}

// checkAnswer fills the inputs with copies of the sample, and states with zeros, calls launch, which queues the batch
// on the session's stream, and compares each image's answer.
func (s *size) checkAnswer(ins, outs []place, launch func() error) (err error) {
	r := s.g.reference
	bytes := len(r.Input)
	for _, o := range outs {
		bytes = max(bytes, o.bytes)
	}
	host, err := s.g.context.AllocateHost(bytes)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.g.context.FreeHost(host)) }()

	from := cuda.At(host[:copy(host, r.Input)])
	first := len(ins) - len(s.g.env.Card.State)
	for _, in := range ins[first:] {
		if err := s.stream.Set(in.at, 0, in.bytes); err != nil {
			return err
		}
	}
	for _, in := range ins[:first] {
		each := in.bytes / s.n
		for i := range s.n {
			if err := s.stream.Copy(in.at+cuda.Pointer(i*each), from, each); err != nil {
				return err
			}
		}
		from += cuda.Pointer(each)
	}
	if err := launch(); err != nil && !isAboutImages(err) {
		return err
	}
	if err := s.stream.Synchronize(); err != nil {
		return err
	}

	for k, o := range outs[:min(len(outs), len(r.Outputs))] {
		if isHosted(outs, o) {
			continue // a box that is barely found on one device may be missing on the other
		}
		if err := errors.Join(s.stream.Copy(cuda.At(host), o.at, o.bytes), s.stream.Synchronize()); err != nil {
			return err
		}
		if err := r.Compare(k, o.name, answer.Floats(o.dtype, host[:o.bytes]), s.n); err != nil {
			return err
		}
	}
	return nil
}
