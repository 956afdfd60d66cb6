//go:build cgo

package onnx

import (
	"fmt"
	"os"
	"slices"

	"github.com/penstock/penstock/cuda"
)

// onnxRuntime is the backend that runs models.
type onnxRuntime struct{}

func (onnxRuntime) session(model []byte, s settings, weights *pool) (session, error) {
	made, err := newSession(model, s, weights, "")
	if err != nil {
		return nil, err // not made: a nil *ortSession is a non-nil session
	}
	return made, nil
}

func (onnxRuntime) optimise(model []byte, s settings, weights *pool, file string) ([]byte, error) {
	defer os.Remove(file)
	made, err := newSession(model, s, weights, file)
	if err != nil {
		return nil, err
	}
	made.close()
	return os.ReadFile(file)
}

type ortSession struct {
	handle uint64
	stream cuda.Stream
	values []uint64 // tensors of shared weights
}

// newSession makes a session. If saved is not empty, ONNX Runtime writes the optimised model
// there.
func newSession(model []byte, s settings, weights *pool, saved string) (*ortSession, error) {
	var c calls
	defer c.release()
	options := c.do(createSessionOptions)
	defer releaseSessionOptions.free(options)
	provider := c.do(createCUDAProviderOptions)
	defer releaseCUDAProviderOptions.free(provider)

	c.do(setSessionExecutionMode, options, sequential)
	c.do(setIntraOpNumThreads, options, 1)
	c.do(setInterOpNumThreads, options, 1)
	c.do(disableMemPattern, options)
	for _, o := range append([][2]string{{folderKey, s.folder}}, sessionOptions...) {
		c.do(addSessionConfigEntry, options, c.text(o[0]), c.text(o[1]))
	}
	c.setProvider(provider, providerOptions(s))
	c.do(updateCUDAProviderOptionsWithValue, provider, c.text("user_compute_stream"), uint64(s.stream.Handle()))
	if saved != "" {
		c.do(setOptimizedModelFilePath, options, c.text(saved))
	}

	made := &ortSession{stream: s.stream}
	made.share(&c, options, s.initializers)
	c.in(weights.all.At, sessionOptionsAppendExecutionProvider_CUDA_V2, options, provider)
	made.handle = c.in(weights.all.At, createSessionFromArray, library.environment, array(&c.arguments, model), uint64(len(model)), options)
	if c.err != nil {
		made.free()
		return nil, c.err
	}
	return made, nil
}

// share replaces the model's weights by those in the GPU's memory. The tensors have to outlive the session.
func (s *ortSession) share(c *calls, options uint64, weights []initializer) {
	if len(weights) > 0 {
		c.do(setSessionGraphOptimizationLevel, options, noOptimisation)
	}
	for _, i := range weights {
		value := c.tensor(i.at, i.bytes, i.shape, i.element)
		s.values = append(s.values, value)
		c.do(addInitializer, options, c.text(i.name), value)
		if c.err != nil {
			c.err = fmt.Errorf("weights %s: %w", i.name, c.err)
			return
		}
	}
}

// free releases the tensors of shared weights. No open session may use them.
func (s *ortSession) free() {
	for _, v := range s.values {
		releaseValue.free(v)
	}
	s.values = nil
}

// close releases the session. ONNX Runtime queues a call on the stream that releases pinned memory. If that call held
// the last reference to the allocator, it would call CUDA from the stream, which ends the process. So close has a
// reference until the stream is empty.
func (s *ortSession) close() {
	// Errors do not matter: a stream that failed has no queued work.
	rest, _ := createAllocator.in(0, s.handle, library.pinned)
	releaseSession.free(s.handle)
	_ = s.stream.Synchronize()
	releaseAllocator.free(rest)
	s.free()
}

func (s *ortSession) bind(inputs, outputs []place) (binding, error) {
	if hasRows(outputs) {
		return s.bindRows(inputs, outputs)
	}
	var c calls
	defer c.release()
	b := &ortBinding{session: s.handle, handle: c.do(createIoBinding, s.handle)}
	for i, p := range slices.Concat(inputs, outputs) {
		bind := bindInput
		if i >= len(inputs) {
			bind = bindOutput
		}
		value := c.place(p)
		c.do(bind, b.handle, c.text(p.name), value)
		releaseValue.free(value) // the binding has its own reference
		if c.err != nil {
			b.close()
			return nil, fmt.Errorf("bind tensor %s: %w", p.name, c.err)
		}
	}
	return b, c.err
}

type ortBinding struct{ session, handle uint64 }

func (b *ortBinding) run(scratch *pool) error {
	_, err := runWithBinding.in(scratch.all.At, b.session, library.queued, b.handle)
	return err
}

func (b *ortBinding) close() { releaseIoBinding.free(b.handle) }
