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
	memory uint64      // kind of its inputs and outputs
	stream cuda.Stream // on a GPU
	values []uint64    // tensors of shared weights
}

// newCPUSession makes a session on the CPU. ONNX Runtime copies the model.
func newCPUSession(model []byte, folder string, threads int) (*ortSession, error) {
	var c calls
	defer c.release()
	options := c.options(threads, [][2]string{
		{folderKey, folder},
		{"session.set_denormal_as_zero", "1"}, // a denormal costs a hundred cycles and changes no answer
	})
	defer releaseSessionOptions.free(options)
	handle := c.do(createSessionFromArray, library.environment, array(&c.arguments, model), uint64(len(model)), options)
	if c.err != nil {
		return nil, c.err
	}
	return &ortSession{handle: handle, memory: library.onCPU}, nil
}

// newSession makes a session on a GPU. If saved is not empty, ONNX Runtime writes the optimised model
// there.
func newSession(model []byte, s settings, weights *pool, saved string) (*ortSession, error) {
	var c calls
	defer c.release()
	options := c.options(1, [][2]string{
		{folderKey, s.folder},
		{"session.use_device_allocator_for_initializers", "1"}, // weights are in our pools, too
	})
	defer releaseSessionOptions.free(options)
	provider := c.do(createCUDAProviderOptions)
	defer releaseCUDAProviderOptions.free(provider)
	c.setProvider(provider, providerOptions(s))
	c.do(updateCUDAProviderOptionsWithValue, provider, c.text("user_compute_stream"), uint64(s.stream.Handle()))
	if saved != "" {
		c.do(setOptimizedModelFilePath, options, c.text(saved))
	}

	made := &ortSession{memory: library.onGPU, stream: s.stream}
	made.share(&c, options, s.initializers)
	c.in(weights.all.At, sessionOptionsAppendExecutionProvider_CUDA_V2, options, provider)
	made.handle = c.in(weights.all.At, createSessionFromArray, library.environment, array(&c.arguments, model), uint64(len(model)), options)
	if c.err != nil {
		made.free()
		return nil, c.err
	}
	return made, nil
}

// options makes the options of a session, with these entries besides those of all sessions.
func (c *calls) options(threads int, entries [][2]string) uint64 {
	options := c.do(createSessionOptions)
	c.do(setSessionExecutionMode, options, sequential)
	c.do(setIntraOpNumThreads, options, uint64(threads))
	c.do(setInterOpNumThreads, options, 1)
	c.do(disableMemPattern, options) // it keeps one block of memory per batch size, and is not faster
	for _, o := range append(entries, sessionOptions...) {
		c.do(addSessionConfigEntry, options, c.text(o[0]), c.text(o[1]))
	}
	return options
}

// share replaces the model's weights by those in the GPU's memory. The tensors have to outlive the session.
func (s *ortSession) share(c *calls, options uint64, weights []initializer) {
	if len(weights) > 0 {
		c.do(setSessionGraphOptimizationLevel, options, noOptimisation)
	}
	for _, i := range weights {
		value := c.tensor(s.memory, i.at, i.bytes, i.shape, i.element)
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

// close releases the session. On a GPU, ONNX Runtime queues a call on the stream that releases pinned memory. If that call held
// the last reference to the allocator, it would call CUDA from the stream, which ends the process. So close has a
// reference until the stream is empty.
func (s *ortSession) close() {
	if s.memory == library.onCPU {
		releaseSession.free(s.handle)
		return
	}
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
	if s.memory == library.onGPU {
		b.options = library.queued
	}
	for i, p := range slices.Concat(inputs, outputs) {
		bind := bindInput
		if i >= len(inputs) {
			bind = bindOutput
		}
		value := c.place(s.memory, p)
		c.do(bind, b.handle, c.text(p.name), value)
		releaseValue.free(value) // the binding has its own reference
		if c.err != nil {
			b.close()
			return nil, fmt.Errorf("bind tensor %s: %w", p.name, c.err)
		}
	}
	return b, c.err
}

// ortBinding has no options on a CPU: a run waits there.
type ortBinding struct{ session, options, handle uint64 }

func (b *ortBinding) run(scratch *pool) error {
	_, err := runWithBinding.in(scratch.address(), b.session, b.options, b.handle)
	return err
}

func (b *ortBinding) close() { releaseIoBinding.free(b.handle) }
