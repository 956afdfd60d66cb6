//go:build cgo

package capi

/*
#include <stdlib.h>
#include <string.h>
#include "shim.h"
*/
import "C"

import (
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/libml/framework"
	"github.com/penstock/penstock/models"
)

// ErrTable is wrapped by New's errors for an invalid table.
var ErrTable = errors.New("table of callbacks is invalid")

// Framework is a framework.Framework that calls a table of C callbacks. The same goroutines may use
// it.
type Framework struct {
	handle *C.pcapi_handle // it and all that it points to are C's memory
	memory []unsafe.Pointer
	env    atomic.Pointer[framework.Environment] // from Init on
	linked atomic.Bool                           // streams exist

	mu   sync.Mutex // guards pins
	pins map[batch]*runtime.Pinner

	graphs      graphs
	configuring atomic.Pointer[batch] // the batch that configure_batch runs for
	tooFew      atomic.Bool           // a graph of that batch did not fit the stream's multiprocessors
}

// batch is a configured batch size of a slot.
type batch struct{ slot, n int }

var (
	_ framework.Framework = (*Framework)(nil)
	_ framework.Demotable = (*Framework)(nil)
)

// New makes a framework from a penstock_framework and its argument self. It copies the table. The
// error wraps ErrTable.
func New(table, self unsafe.Pointer) (*Framework, error) {
	t := (*C.penstock_framework)(table)
	const abi, size = C.PENSTOCK_ABI, C.sizeof_penstock_framework
	switch {
	case t == nil:
		return nil, fmt.Errorf("penstock_run: %w: it is NULL", ErrTable)
	case uintptr(table)%unsafe.Alignof(*t) != 0:
		return nil, fmt.Errorf("penstock_run: %w: its address %p is not aligned to %d bytes", ErrTable, table, unsafe.Alignof(*t))
	case t.size < 8:
		return nil, fmt.Errorf("penstock_run: %w: size is %d, want sizeof(penstock_framework), %d (PENSTOCK_FRAMEWORK sets it)", ErrTable, t.size, size)
	case t.abi != abi:
		return nil, fmt.Errorf("penstock_run: %w: abi is %d, want %d; rebuild the program with the penstock.h of this libpenstock.so", ErrTable, t.abi, abi)
	case t.size != size:
		return nil, fmt.Errorf("penstock_run: %w: size is %d, want sizeof(penstock_framework), %d", ErrTable, t.size, size)
	}
	for _, c := range []struct {
		name    string
		missing bool
	}{
		{"init", t.init == nil}, {"load_model", t.load_model == nil}, {"link_model", t.link_model == nil},
		{"configure_batch", t.configure_batch == nil}, {"infer_batch", t.infer_batch == nil}, {"deinit", t.deinit == nil},
	} {
		if c.missing {
			return nil, fmt.Errorf("penstock_run: %w: %s is NULL, want all six callbacks", ErrTable, c.name)
		}
	}
	f := &Framework{pins: map[batch]*runtime.Pinner{}}
	f.handle = (*C.pcapi_handle)(f.allocate(C.sizeof_pcapi_handle))
	f.handle.table, f.handle.self = *t, self
	return f, nil
}

// Close frees the memory that the callbacks were given. They must not be called any more.
func (f *Framework) Close() {
	f.unpin()
	for _, p := range f.memory {
		C.free(p)
	}
	f.memory, f.handle = nil, nil
}

// allocate returns zeroed memory of C's that is valid until Close.
func (f *Framework) allocate(bytes int) unsafe.Pointer {
	p := C.calloc(1, C.size_t(max(1, bytes)))
	f.memory = append(f.memory, p)
	return p
}

// text returns a C string that is valid until Close.
func (f *Framework) text(s string) *C.char {
	p := C.CString(s)
	f.memory = append(f.memory, unsafe.Pointer(p))
	return p
}

// failed returns the error of a callback, with the reason that it left on this thread.
func failed(name string, code C.int) error {
	return errorOf(name, errorCode(code), C.GoString(C.pcapi_reason()))
}

// Init is framework.Framework's.
func (f *Framework) Init(env framework.Environment) error {
	if err := f.describe(&env); err != nil {
		return err
	}
	f.env.Store(&env)
	if code := C.pcapi_init(f.handle); code != 0 {
		return failed("init", code)
	}
	return nil
}

// describe fills in penstock_environment.
func (f *Framework) describe(env *framework.Environment) error {
	e, card := &f.handle.environment, env.Card
	keys := card.Keys()
	keys["slo"], keys["file"], keys["dir"] = card.SLO.Seconds(), card.File, card.Dir
	text, err := json.Marshal(keys)
	if err != nil {
		return fmt.Errorf("write card %s as JSON: %w", card.Name, err)
	}
	e.size, e.abi = C.sizeof_penstock_environment, C.PENSTOCK_ABI
	e.name, e.version, e.card = f.text(card.Name), C.uint32_t(card.Version), f.text(string(text))
	e.threads, e.device = C.int32_t(env.Threads), f.text(env.Device)
	if card.Model != "" {
		e.model = f.text(card.Model)
	}
	inputs := f.tensors(card.InputTensors())
	for i, p := range card.Input.Places() {
		inputs[i].offset = C.uint32_t(p.At)
	}
	if len(card.Inputs) == 0 {
		inputs[0].layout = map[models.Layout]C.uint32_t{models.HWC: C.PENSTOCK_HWC, models.CHW: C.PENSTOCK_CHW}[card.Input.TensorLayout]
	}
	e.input, e.input_count = &inputs[0], C.uint32_t(len(inputs))
	outputs := f.tensors(card.Outputs)
	e.outputs, e.output_count = unsafe.SliceData(outputs), C.uint32_t(len(outputs))
	batches := (*C.int32_t)(f.allocate(len(card.Batches) * C.sizeof_int32_t))
	for i, n := range card.Batches {
		unsafe.Slice(batches, len(card.Batches))[i] = C.int32_t(n)
	}
	e.batches, e.batch_count = batches, C.uint32_t(len(card.Batches))
	return nil
}

func (f *Framework) tensors(of []models.Tensor) []C.penstock_tensor {
	list := unsafe.Slice((*C.penstock_tensor)(f.allocate(len(of)*C.sizeof_penstock_tensor)), len(of))
	for i := range of {
		t := &of[i]
		dims := (*C.int64_t)(f.allocate(len(t.Shape) * C.sizeof_int64_t))
		for axis, d := range t.Shape {
			unsafe.Slice(dims, len(t.Shape))[axis] = C.int64_t(d)
		}
		list[i] = C.penstock_tensor{
			name: f.text(t.Name), shape: dims, rank: C.uint32_t(len(t.Shape)), bytes: C.uint64_t(t.Bytes()),
			_type: types[t.Type],
		}
	}
	return list
}

var types = map[models.DType]C.uint32_t{
	models.Bool: C.PENSTOCK_BOOL, models.I8: C.PENSTOCK_I8, models.I16: C.PENSTOCK_I16, models.I32: C.PENSTOCK_I32, models.I64: C.PENSTOCK_I64,
	models.U8: C.PENSTOCK_U8, models.U16: C.PENSTOCK_U16, models.U32: C.PENSTOCK_U32, models.U64: C.PENSTOCK_U64,
	models.F16: C.PENSTOCK_F16, models.BF16: C.PENSTOCK_BF16, models.F32: C.PENSTOCK_F32, models.F64: C.PENSTOCK_F64,
}

// LoadModel is framework.Framework's.
func (f *Framework) LoadModel() error {
	if code := C.pcapi_load(f.handle); code != 0 {
		return failed("load_model", code)
	}
	return nil
}

// LinkModel is framework.Framework's.
func (f *Framework) LinkModel() (int64, error) {
	f.linked.Store(true)
	var bytes C.int64_t
	if code := C.pcapi_link(f.handle, &bytes); code != 0 {
		return 0, failed("link_model", code)
	}
	if bytes < 0 {
		return 0, fmt.Errorf("persistent_bytes is %d, want 0 or more", bytes)
	}
	return int64(bytes), nil
}

// ConfigureBatch is framework.Framework's. The buffers are pinned until they are replaced.
func (f *Framework) ConfigureBatch(slot, n int, inputs, outputs []device.Buffer) (int64, error) {
	pins := new(runtime.Pinner)
	pin := func(b device.Buffer) C.uint64_t {
		if !b.OnDevice() && b.Len() > 0 {
			pins.Pin(&b.Bytes()[0]) // does nothing if the memory is not in Go's heap
		}
		return C.uint64_t(b.Address())
	}
	for i, p := range f.env.Load().Card.Input.Places() {
		if inputs[i].Address() != inputs[0].Address()+uintptr(p.At) {
			return 0, fmt.Errorf("input %d is at %#x, want %d bytes behind the first", i, inputs[i].Address(), p.At)
		}
	}
	at := make([]C.uint64_t, max(1, len(outputs)))
	for i, out := range outputs {
		at[i] = pin(out)
	}
	now := batch{slot, n}
	before := f.graphs.find(now)
	var bytes C.int64_t
	f.tooFew.Store(false)
	f.configuring.Store(&now)
	code := C.pcapi_configure(f.handle, C.int32_t(slot), C.int32_t(n), pin(inputs[0]), &at[0], &bytes)
	f.configuring.Store(nil)
	if code != 0 {
		pins.Unpin() // those of the call before, if any, stay
		return 0, f.markTooFew(failed("configure_batch", code))
	}
	f.keep(now, pins)
	if before != nil && f.graphs.find(now) == before {
		// The call handed over no graph: infer_batch runs the batch again.
		if err := f.graphs.set(now, nil); err != nil {
			return 0, err
		}
	}
	if bytes < 0 {
		return 0, fmt.Errorf("ephemeral_bytes is %d, want 0 or more", bytes)
	}
	return int64(bytes), nil
}

// InferBatch is framework.Framework's. It makes one call of C, or launches a graph, and allocates
// nothing.
func (f *Framework) InferBatch(slot, n int) error {
	if l := f.graphs.find(batch{slot, n}); l != nil {
		return l.run(cuda.StreamOf(f.batchStream(slot)))
	}
	if code := C.pcapi_infer(f.handle, C.int32_t(slot), C.int32_t(n)); code != 0 {
		return failed("infer_batch", code)
	}
	return nil
}

// Demotable reports true for a batch that was handed over as a graph. infer_batch queues its work
// on the stream that configure_batch requested.
func (f *Framework) Demotable(slot, n int) bool { return f.graphs.find(batch{slot, n}) != nil }

// Deinit is framework.Framework's. The memory that the callbacks were given stays until Close.
func (f *Framework) Deinit() error {
	f.linked.Store(false)
	graphErr := f.graphs.clear()
	code := C.pcapi_deinit(f.handle)
	f.unpin()
	if code != 0 {
		return failed("deinit", code)
	}
	return graphErr
}

// keep replaces the pins of a batch.
func (f *Framework) keep(b batch, pins *runtime.Pinner) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if old := f.pins[b]; old != nil {
		old.Unpin()
	}
	f.pins[b] = pins
}

func (f *Framework) unpin() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.pins {
		p.Unpin()
	}
	clear(f.pins)
}

// stream is penstock_stream.
func (f *Framework) stream(slot int) uintptr {
	env := f.env.Load()
	if env == nil || env.Stream == nil || !f.linked.Load() || slot < 0 || slot >= slots {
		return 0
	}
	return env.Stream(slot)
}

// batchStream is the stream of a batch that is a graph.
func (f *Framework) batchStream(slot int) uintptr {
	env := f.env.Load()
	if env.BatchStream == nil {
		return env.Stream(slot)
	}
	return env.BatchStream(slot)
}
