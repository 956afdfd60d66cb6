//go:build cgo

// Package capitest provides callbacks in C for tests of libml/capi. They count their
// calls, record their arguments, and fail on demand.
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

// Callback is one of the six callbacks, in the table's order.
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

// Callbacks are a callback table and its self, in C's memory.
type Callbacks struct {
	table *C.penstock_framework
	state *C.capitest_state
}

// New returns callbacks that succeed. The caller frees them with Free.
func New() *Callbacks {
	return &Callbacks{C.capitest_table(), (*C.capitest_state)(C.calloc(1, C.sizeof_capitest_state))}
}

// Free frees their memory.
func (c *Callbacks) Free() {
	C.free(unsafe.Pointer(c.table))
	C.free(unsafe.Pointer(c.state))
}

// Table returns the penstock_framework.
func (c *Callbacks) Table() unsafe.Pointer { return unsafe.Pointer(c.table) }

// Self returns the pointer that the callbacks are called with.
func (c *Callbacks) Self() unsafe.Pointer { return unsafe.Pointer(c.state) }

// SetSize changes the size in the table.
func (c *Callbacks) SetSize(size uint32) { c.table.size = C.uint32_t(size) }

// SetABI changes the ABI version in the table.
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

// Answer makes a callback return a code from now on. If reason is not empty, the
// callback reports it first.
func (c *Callbacks) Answer(callback Callback, code int, reason string) {
	s := c.state
	s.code[callback] = C.int32_t(code)
	text := unsafe.Slice((*byte)(unsafe.Pointer(&s.reason[callback][0])), C.CAPITEST_TEXT)
	if len(reason) >= len(text) {
		panic(fmt.Sprintf("a reason of %d bytes", len(reason)))
	}
	text[copy(text, reason)] = 0
}

// Take makes link_model or configure_batch report that it took this many bytes.
func (c *Callbacks) Take(callback Callback, bytes int64) { c.state.bytes[callback] = C.int64_t(bytes) }

// HandOver makes configure_batch hand over a graph from now on; 0 is no graph.
func (c *Callbacks) HandOver(graph uintptr) { c.state.graph = C.uint64_t(graph) }

// Calls returns how often a callback was called.
func (c *Callbacks) Calls(callback Callback) int { return int(c.state.calls[callback]) }

// Configured returns the slot and size of the last configure_batch.
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

// Environment reads its current content.
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

// Run calls penstock_run from C, and then penstock_last_error. The calling goroutine is
// locked to its thread.
func Run(table, self unsafe.Pointer) (code int, why string) {
	code = int(C.capitest_run((*C.penstock_framework)(table), self))
	return code, C.GoString(C.capitest_last_error())
}

// Stream calls penstock_stream.
func Stream(slot int) uintptr { return uintptr(C.capitest_stream(C.int32_t(slot))) }

// Weights calls penstock_weights, in the same way as Run.
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

// Graph calls penstock_graph, in the same way as Run.
func Graph(slot, n int, graph uintptr) (code int, why string) {
	code = int(C.capitest_graph(C.int32_t(slot), C.int32_t(n), C.uint64_t(graph)))
	return code, C.GoString(C.capitest_last_error())
}

// HeapBytes returns the bytes that C's heap has allocated in this process.
func HeapBytes() int64 { return int64(C.capitest_heap()) }
