//go:build cgo

// Package capitest has callbacks in C for tests of libml/capi: they count, remember what
// they were told, and fail to order.
//
//	c := capitest.New()
//	defer c.Free()
//	f, err := capi.New(c.Table(), c.Self())
//	c.Answer(capitest.Infer, 1, "why")
package capitest

/*
#cgo CFLAGS: -I${SRCDIR}/../../../libml/capi
#include <stdlib.h>
#include "callbacks.h"
*/
import "C"

import (
	"fmt"
	"unsafe"
)

// Callback is one of the six, in the table's order.
type Callback int

// The callbacks.
const (
	Init Callback = iota
	Load
	Link
	Configure
	Infer
	Deinit
)

// Callbacks are a table with its self, in C's memory.
type Callbacks struct {
	table *C.penstock_framework
	state *C.capitest_state
}

// New makes callbacks that succeed.
func New() *Callbacks {
	return &Callbacks{C.capitest_table(), (*C.capitest_state)(C.calloc(1, C.sizeof_capitest_state))}
}

// Free gives them back.
func (c *Callbacks) Free() {
	C.free(unsafe.Pointer(c.table))
	C.free(unsafe.Pointer(c.state))
}

// Table is the penstock_framework.
func (c *Callbacks) Table() unsafe.Pointer { return unsafe.Pointer(c.table) }

// Self is what the callbacks are called with.
func (c *Callbacks) Self() unsafe.Pointer { return unsafe.Pointer(c.state) }

// SetSize and SetABI change what the table says of itself.
func (c *Callbacks) SetSize(size uint32) { c.table.size = C.uint32_t(size) }

// SetABI is SetSize for the version.
func (c *Callbacks) SetABI(abi uint32) { c.table.abi = C.uint32_t(abi) }

// Remove makes a callback NULL.
func (c *Callbacks) Remove(callback Callback) {
	switch callback {
	case Init:
		c.table.init = nil
	case Load:
		c.table.load_model = nil
	case Link:
		c.table.link_model = nil
	case Configure:
		c.table.configure_batch = nil
	case Infer:
		c.table.infer_batch = nil
	case Deinit:
		c.table.deinit = nil
	}
}

// Answer has a callback return a code from now on, after leaving a reason, if any.
func (c *Callbacks) Answer(callback Callback, code int, reason string) {
	s := c.state
	s.code[callback] = C.int32_t(code)
	text := unsafe.Slice((*byte)(unsafe.Pointer(&s.reason[callback][0])), C.CAPITEST_TEXT)
	if len(reason) >= len(text) {
		panic(fmt.Sprintf("a reason of %d bytes", len(reason)))
	}
	text[copy(text, reason)] = 0
}

// Take has link_model or configure_batch say that it took these bytes.
func (c *Callbacks) Take(callback Callback, bytes int64) { c.state.bytes[callback] = C.int64_t(bytes) }

// HandOver has configure_batch hand over a graph from now on, 0 for none.
func (c *Callbacks) HandOver(graph uintptr) { c.state.graph = C.uint64_t(graph) }

// Calls is how often a callback was called.
func (c *Callbacks) Calls(callback Callback) int { return int(c.state.calls[callback]) }

// Configured are the last configure_batch's slot and size.
func (c *Callbacks) Configured() (slot, n int) { return int(c.state.slot), int(c.state.n) }

// Tensor is a penstock_tensor.
type Tensor struct {
	Name         string
	Shape        []int64
	Bytes        uint64
	Type, Layout uint32
}

// Environment is the penstock_environment that init was called with.
type Environment struct {
	Size, ABI, Version        uint32
	Threads                   int
	Name, Model, Card, Device string
	HasModel                  bool
	Input                     Tensor
	Outputs                   []Tensor
	Batches                   []int32
}

// Environment reads it now.
func (c *Callbacks) Environment() Environment {
	e := c.state.environment
	tensor := func(t *C.penstock_tensor) Tensor {
		shape := append([]int64(nil), unsafe.Slice((*int64)(unsafe.Pointer(t.shape)), t.rank)...)
		return Tensor{C.GoString(t.name), shape, uint64(t.bytes), uint32(t._type), uint32(t.layout)}
	}
	env := Environment{
		Size: uint32(e.size), ABI: uint32(e.abi), Version: uint32(e.version), Threads: int(e.threads),
		Name: C.GoString(e.name), Model: C.GoString(e.model), Card: C.GoString(e.card), Device: C.GoString(e.device),
		HasModel: e.model != nil, Input: tensor(e.input),
		Batches: append([]int32(nil), unsafe.Slice((*int32)(unsafe.Pointer(e.batches)), e.batch_count)...),
	}
	for i := range unsafe.Slice(e.outputs, e.output_count) {
		env.Outputs = append(env.Outputs, tensor(&unsafe.Slice(e.outputs, e.output_count)[i]))
	}
	return env
}

// Run is penstock_run, called from C, with penstock_last_error after it. The calling
// goroutine is locked to its thread.
func Run(table, self unsafe.Pointer) (code int, why string) {
	code = int(C.capitest_run((*C.penstock_framework)(table), self))
	return code, C.GoString(C.capitest_last_error())
}

// Stream is penstock_stream.
func Stream(slot int) uintptr { return uintptr(C.capitest_stream(C.int32_t(slot))) }

// Weights is penstock_weights, as Run is penstock_run.
func Weights(file string) (code int, address uintptr, bytes uint64, why string) {
	name := C.CString(file)
	defer C.free(unsafe.Pointer(name))
	out := (*struct {
		address unsafe.Pointer
		bytes   C.uint64_t
	})(C.calloc(1, 16))
	defer C.free(unsafe.Pointer(out))
	out.bytes = 1 // must be 0 after a failure
	code = int(C.capitest_weights(name, &out.address, &out.bytes))
	return code, uintptr(out.address), uint64(out.bytes), C.GoString(C.capitest_last_error())
}

// Graph is penstock_graph, as Run is penstock_run.
func Graph(slot, n int, graph uintptr) (code int, why string) {
	code = int(C.capitest_graph(C.int32_t(slot), C.int32_t(n), C.uint64_t(graph)))
	return code, C.GoString(C.capitest_last_error())
}

// HeapBytes is what C's heap has handed out in this process.
func HeapBytes() int64 { return int64(C.capitest_heap()) }
