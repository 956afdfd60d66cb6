//go:build cgo

package onnx

// All calls into shim.c are in this file.

/*
// pon_take throws a C++ exception, which passes through its frame to ONNX Runtime.
#cgo CFLAGS: -fexceptions
#cgo LDFLAGS: -ldl -lpthread
#cgo noescape pon_run
#include <stdlib.h>
#include "shim.h"
*/
import "C"

import (
	"fmt"
	"os"
	"sync"
	"unsafe"

	"github.com/penstock/penstock/cuda"
)

// value returns the value of a call, or its error.
func value(r C.pon_result) (uint64, error) {
	if r.error == nil {
		return uint64(r.value), nil
	}
	err := &ortError{text: C.GoString(r.error)}
	C.free(unsafe.Pointer(r.error))
	return 0, err
}

func preload(library string) error {
	name := C.CString(library)
	defer C.free(unsafe.Pointer(name))
	_, err := value(C.pon_preload(name))
	return err
}

// global guards what is made once per process.
var global struct {
	mu      sync.Mutex
	started bool
}

// openProvider opens ONNX Runtime's C API and loads its CUDA provider. It calls
// nothing of CUDA.
func openProvider(library string) error {
	global.mu.Lock()
	defer global.mu.Unlock()
	name := C.CString(library)
	defer C.free(unsafe.Pointer(name))
	if _, err := value(C.pon_open(name)); err != nil {
		return fmt.Errorf("open its API, version %d: %w", C.PON_ORT_VERSION, err)
	}
	_, err := value(C.pon_provider())
	return err
}

// startPools gives the shim the addresses of the driver's functions. After that, sessions on a
// GPU take their memory from pools.
func startPools() error {
	global.mu.Lock()
	defer global.mu.Unlock()
	if global.started {
		return nil
	}
	var d C.pon_driver
	for _, f := range []struct {
		name string
		at   *C.uint64_t
	}{
		{"cuMemAddressReserve", &d.reserve}, {"cuMemAddressFree", &d.unreserve}, {"cuMemCreate", &d.create},
		{"cuMemRelease", &d.release}, {"cuMemMap", &d._map}, {"cuMemUnmap", &d.unmap}, {"cuMemSetAccess", &d.access},
		{"cuPointerGetAttribute", &d.attribute},
	} {
		at, err := cuda.Symbol(f.name)
		if err != nil {
			return err
		}
		*f.at = C.uint64_t(at)
	}
	if _, err := value(C.pon_start(&d)); err != nil {
		return err
	}
	global.started = true
	return nil
}

// pool allocates device memory, as described in shim.h. Several threads may use it, each bound
// to the context.
type pool struct{ handle C.uint64_t }

// poolState is the state of a pool.
type poolState struct {
	all          cuda.Range // its addresses
	mapped, used int64      // bytes that have memory, and that are allocated
	peak         int64      // bytes up to the highest address in use since resetPeak
	refused      error      // the driver's error since resetPeak, if it had no more memory
}

func newPool(d cuda.Device) (*pool, error) { return makePool(d, 0) }

// newScratchPool makes a pool whose free addresses graphs write to.
func newScratchPool(d cuda.Device) (*pool, error) { return makePool(d, 1) }

func makePool(d cuda.Device, scratch C.int) (*pool, error) {
	handle := C.pon_pool_new(C.int(d.Ordinal()), scratch)
	if handle == 0 {
		return nil, &cuda.Error{Op: "cuMemAddressReserve", Code: cuda.OutOfMemory}
	}
	return &pool{handle}, nil
}

// close releases the pool. No work that uses it may be in flight.
func (p *pool) close() error {
	if p == nil || p.handle == 0 {
		return nil
	}
	code := C.pon_pool_free(p.handle)
	p.handle = 0
	if code != 0 {
		return &cuda.Error{Op: "cuMemAddressFree", Code: cuda.Code(code)}
	}
	return nil
}

// trim releases memory without allocations in it, from an offset on.
func (p *pool) trim(from int64) { C.pon_pool_trim(p.handle, C.uint64_t(from)) }

// resetPeak resets peak and refused.
func (p *pool) resetPeak() { C.pon_pool_mark(p.handle) }

// allocate returns memory, 512-byte aligned. It returns 0 if the pool has no addresses or no
// memory for it; the pool's state then has refused.
func (p *pool) allocate(bytes int) cuda.Pointer {
	return cuda.Pointer(C.pon_pool_allocate(p.handle, C.uint64_t(bytes)))
}

// release releases memory that allocate of any pool returned.
func release(at cuda.Pointer) { C.pon_pool_release(C.uint64_t(at)) }

func (p *pool) readState() poolState {
	s := C.pon_pool_look(p.handle)
	state := poolState{
		all:    cuda.Range{At: cuda.Pointer(s.base), Bytes: int(s.reserved)},
		mapped: int64(s.mapped), used: int64(s.used), peak: int64(s.peak),
	}
	if s.refused != 0 {
		state.refused = &cuda.Error{Op: "cuMemCreate", Code: cuda.Code(s.refused)}
	}
	return state
}

// isPinned reports whether an address is in pinned host memory.
func isPinned(at cuda.Pointer) bool { return C.pon_pinned(C.uint64_t(at)) != 0 }

// copyHost copies host memory.
func copyHost(to, from cuda.Pointer, bytes int) {
	C.pon_copy(C.uint64_t(to), C.uint64_t(from), C.uint64_t(bytes))
}

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

// newSession makes a session. If saved is not empty, ONNX Runtime writes the optimised model
// there.
func newSession(model []byte, s settings, weights *pool, saved string) (_ *ortSession, err error) {
	options, err := value(C.pon_settings())
	if err != nil {
		return nil, err
	}
	defer C.pon_settings_free(C.uint64_t(options))
	for _, o := range append([][2]string{{folderKey, s.folder}}, sessionOptions...) {
		if err := withStrings(o[:], func(s []*C.char) C.pon_result { return C.pon_set(C.uint64_t(options), s[0], s[1]) }); err != nil {
			return nil, err
		}
	}
	var words []string // keys, then values
	provider := providerOptions(s)
	for i := range 2 {
		for _, o := range provider {
			words = append(words, o[i])
		}
	}
	if err := withStrings(words, func(s []*C.char) C.pon_result {
		return C.pon_set_provider(C.uint64_t(options), &s[0], &s[len(provider)], C.size_t(len(provider)))
	}); err != nil {
		return nil, err
	}
	if _, err := value(C.pon_set_stream(C.uint64_t(options), C.uint64_t(s.stream.Handle()))); err != nil {
		return nil, err
	}
	if saved != "" {
		if err := withStrings([]string{saved}, func(s []*C.char) C.pon_result { return C.pon_set_saved(C.uint64_t(options), s[0]) }); err != nil {
			return nil, err
		}
	}
	made := &ortSession{stream: s.stream}
	defer func() {
		if err != nil {
			made.free()
		}
	}()
	if len(s.initializers) > 0 {
		if err := made.share(C.uint64_t(options), s); err != nil {
			return nil, err
		}
	}
	handle, err := value(C.pon_session(C.uint64_t(options), unsafe.Pointer(unsafe.SliceData(model)), C.size_t(len(model)), weights.handle))
	if err != nil {
		return nil, err
	}
	made.handle = C.uint64_t(handle)
	return made, nil
}

// share replaces the model's weights by those in the GPU's memory.
func (s *ortSession) share(options C.uint64_t, with settings) error {
	if _, err := value(C.pon_set_level(options, 0)); err != nil {
		return err
	}
	for _, i := range with.initializers {
		v, err := value(C.pon_value(C.uint64_t(i.at), C.uint64_t(i.bytes),
			(*C.int64_t)(unsafe.Pointer(unsafe.SliceData(i.shape))), C.size_t(len(i.shape)), C.uint(i.element)))
		if err != nil {
			return fmt.Errorf("weights %s: %w", i.name, err)
		}
		s.values = append(s.values, C.uint64_t(v))
		if err := withStrings([]string{i.name}, func(w []*C.char) C.pon_result { return C.pon_set_initializer(options, w[0], C.uint64_t(v)) }); err != nil {
			return fmt.Errorf("weights %s: %w", i.name, err)
		}
	}
	return nil
}

// free releases the tensors of shared weights. No open session may use them.
func (s *ortSession) free() {
	for _, v := range s.values {
		C.pon_value_free(v)
	}
	s.values = nil
}

// withStrings calls a function with C strings, which it frees afterwards.
func withStrings(words []string, call func([]*C.char) C.pon_result) error {
	texts := make([]*C.char, len(words))
	for i, w := range words {
		texts[i] = C.CString(w)
		defer C.free(unsafe.Pointer(texts[i]))
	}
	_, err := value(call(texts))
	return err
}

type ortSession struct {
	handle C.uint64_t
	stream cuda.Stream
	values []C.uint64_t // tensors of shared weights
}

func (s *ortSession) close() {
	rest := C.pon_session_free(s.handle)
	// An error does not matter: a stream that failed has no queued work.
	_ = s.stream.Synchronize()
	if rest != 0 {
		C.pon_rest_free(rest)
	}
	s.free()
}

func (s *ortSession) bind(inputs, outputs []place) (binding, error) {
	handle, err := value(C.pon_binding(s.handle))
	if err != nil {
		return nil, err
	}
	b := &ortBinding{session: s.handle, handle: C.uint64_t(handle)}
	for output, tensors := range [][]place{inputs, outputs} {
		for _, p := range tensors {
			if err := b.add(C.int(output), p); err != nil {
				b.close()
				return nil, fmt.Errorf("bind tensor %s: %w", p.name, err)
			}
		}
	}
	return b, nil
}

type ortBinding struct{ session, handle C.uint64_t }

func (b *ortBinding) add(output C.int, p place) error {
	name := C.CString(p.name)
	defer C.free(unsafe.Pointer(name))
	element := C.uint(elementTypes[p.dtype]) // ONNX Runtime's numbers
	_, err := value(C.pon_bind(b.handle, output, name, C.uint64_t(p.at), C.uint64_t(p.bytes),
		(*C.int64_t)(unsafe.Pointer(unsafe.SliceData(p.shape))), C.size_t(len(p.shape)), element))
	return err
}

func (b *ortBinding) run(scratch *pool) error {
	r := C.pon_run(b.session, b.handle, scratch.handle)
	if r.error == nil {
		return nil
	}
	_, err := value(r)
	return err
}

func (b *ortBinding) close() { C.pon_binding_free(b.handle) }
