//go:build cgo

package cuda

// This file has all calls into C. calls_nocgo.go has the same functions for a build without cgo.

/*
#cgo LDFLAGS: -ldl
#cgo noescape pcu_call
#cgo nocallback pcu_call
#cgo noescape pcu_launch
#cgo nocallback pcu_launch
#include <stdlib.h>
#include "shim.h"
*/
import "C"

import (
	"fmt"
	"unsafe"
)

// notLoaded is the result of a call before Open has succeeded.
const notLoaded = int32(notInitialized)

// The constants of function.go are those of the shim.
var _ = [1]struct{}{}[out-C.PCU_OUT|buffer-C.PCU_BUFFER|maxParameters-C.PCU_MAX_PARAMETERS]

// library is what load has opened.
var library C.uint64_t

// load opens the driver's library, finds its functions, and returns its path.
func load(name string) (path string, err error) {
	file := C.CString(name)
	defer C.free(unsafe.Pointer(file))
	var text [1024]byte
	library = C.pcu_open(file, (*C.char)(unsafe.Pointer(&text[0])), C.size_t(len(text)))
	if library == 0 {
		return "", fmt.Errorf("%w: %s", ErrNoDriver, untilZero(text[:]))
	}
	for _, f := range functions {
		f.address = symbol(f.symbol)
		if f.address == 0 && f.needed {
			for _, f := range functions {
				f.address = 0
			}
			return "", &SymbolError{Symbol: f.symbol, Library: name}
		}
	}
	return untilZero(text[:]), nil
}

// symbol returns the address of the driver's function, 0 if there is none.
func symbol(name string) uint64 {
	text := C.CString(name)
	defer C.free(unsafe.Pointer(text))
	return uint64(C.pcu_symbol(library, text))
}

func unpack(r C.pcu_result) ([2]uint64, int32) {
	return [2]uint64{uint64(r.out[0]), uint64(r.out[1])}, int32(r.code)
}

func call(address uint64, at *byte, arguments []uint64) ([2]uint64, int32) {
	return unpack(C.pcu_call(C.uint64_t(address), (*C.uint64_t)(unsafe.SliceData(arguments)), C.size_t(len(arguments)), unsafe.Pointer(at)))
}

func moduleLoad(address uint64, image, log []byte) ([2]uint64, int32) {
	return unpack(C.pcu_module_load(C.uint64_t(address), unsafe.Pointer(&image[0]), (*C.char)(unsafe.Pointer(&log[0])), C.size_t(len(log))))
}

func launch(address, kernel uint64, grid, block [3]uint32, sharedBytes uint32, stream uint64, args *Args) int32 {
	var values unsafe.Pointer
	var offsets *C.uint32_t
	var count C.uint32_t
	if args != nil && len(args.offsets) > 0 {
		values = unsafe.Pointer(&args.values[0])
		offsets = (*C.uint32_t)(unsafe.Pointer(&args.offsets[0]))
		count = C.uint32_t(len(args.offsets))
	}
	return int32(C.pcu_launch(C.uint64_t(address), C.uint64_t(kernel),
		C.uint32_t(grid[0]), C.uint32_t(grid[1]), C.uint32_t(grid[2]),
		C.uint32_t(block[0]), C.uint32_t(block[1]), C.uint32_t(block[2]),
		C.uint32_t(sharedBytes), C.uint64_t(stream), values, offsets, count))
}

func graphNodes(address, graph uint64, nodes []uint64) ([2]uint64, int32) {
	return unpack(C.pcu_graph_nodes(C.uint64_t(address), C.uint64_t(graph), (*C.uint64_t)(unsafe.SliceData(nodes)), C.size_t(len(nodes))))
}

func resourceSplit(address uint64, whole *resource, smallest int, groups []resource, rest *resource) ([2]uint64, int32) {
	return unpack(C.pcu_resource_split(C.uint64_t(address), unsafe.Pointer(whole), C.uint(smallest),
		unsafe.Pointer(unsafe.SliceData(groups)), C.uint32_t(len(groups)), unsafe.Pointer(rest)))
}
