//go:build cgo

package onnx

// All calls into shim.c are in this file, and its calls into Go.

/*
// pon_take throws a C++ exception, which passes through its frame to ONNX Runtime.
#cgo CFLAGS: -fexceptions
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stdlib.h>
#include "shim.h"
*/
import "C"

import (
	"fmt"
	"runtime"
	"unsafe"

	"github.com/penstock/penstock/cuda"
)

// preload loads a library. Libraries that are loaded later can use it.
func preload(library string) error {
	_, err := load(library, C.RTLD_GLOBAL)
	return err
}

// load loads a library, and returns the addresses of these symbols.
func load(library string, visible C.int, symbols ...string) (addresses []uint64, err error) {
	runtime.LockOSThread() // which has dlerror's message
	defer runtime.UnlockOSThread()
	name := C.CString(library)
	defer C.free(unsafe.Pointer(name))
	handle := C.dlopen(name, C.RTLD_NOW|visible)
	if handle == nil {
		return nil, &ortError{text: C.GoString(C.dlerror())}
	}
	for _, s := range symbols {
		name := C.CString(s)
		defer C.free(unsafe.Pointer(name))
		at := C.dlsym(handle, name)
		if at == nil {
			return nil, &ortError{text: C.GoString(C.dlerror())}
		}
		addresses = append(addresses, uint64(uintptr(at)))
	}
	return addresses, nil
}

// api is struct OrtApi, once it is open.
var api []uint64

func openAPI(path string) error {
	symbols, err := load(path, C.RTLD_LOCAL, "OrtGetApiBase", "_ZSt17__throw_bad_allocv")
	if err != nil {
		return err
	}
	at, _ := call(symbols[0], 0, nil)
	base := at64(&at, 2) // struct OrtApiBase: GetApi, GetVersionString
	version, _ := call(base[1], 0, nil)
	library.version = textAt(version)
	table, _ := call(base[0], 0, []uint64{apiVersion})
	if table == 0 {
		return &ortError{text: fmt.Sprintf("version %s has no API of version %d", library.version, apiVersion)}
	}
	api, library.noMemory = at64(&table, int(updateCUDAProviderOptionsWithValue)+1), symbols[1]
	return nil
}

// at64 returns n words of C at an address. Convert through a pointer to it, as the address does not come from Go.
func at64(address *uint64, n int) []uint64 {
	return unsafe.Slice(*(**uint64)(unsafe.Pointer(address)), n)
}

// bytesAt returns n bytes of C at an address.
func bytesAt(address *uint64, n int) []byte {
	return unsafe.Slice(*(**byte)(unsafe.Pointer(address)), n)
}

// textAt returns the string of C at an address.
func textAt(address uint64) string { return C.GoString(*(**C.char)(unsafe.Pointer(&address))) }

// call calls a function at an address. Its result is what it returned, and out what it wrote.
func call(address uint64, pool cuda.Pointer, arguments []uint64) (result, out uint64) {
	a := C.pon_arguments{count: C.size_t(len(arguments))}
	for i, word := range arguments {
		a.words[i] = C.uint64_t(word)
	}
	r := C.pon_call(C.uint64_t(address), a, C.uint64_t(pool))
	return uint64(r.result), uint64(r.out)
}

// allocator returns an OrtAllocator that takes this kind of memory from pools.
func allocator(memory, noMemory uint64) uint64 {
	return uint64(C.pon_pools(apiVersion, C.uint64_t(memory), C.uint64_t(noMemory)))
}

//export ponAllocate
func ponAllocate(pool, bytes C.uint64_t) C.uint64_t {
	return C.uint64_t(allocateFor(cuda.Pointer(pool), int(bytes)))
}

//export ponRelease
func ponRelease(at C.uint64_t) { release(cuda.Pointer(at)) }

// arguments keep Go's memory in its place until release.
type arguments struct{ pins runtime.Pinner }

func (a *arguments) release() { a.pins.Unpin() }

// text returns the address of a copy that ends with a zero byte.
func (a *arguments) text(s string) uint64 { return array(a, append([]byte(s), 0)) }

// array returns the address of a slice's first element, 0 if it is empty.
func array[T any](a *arguments, s []T) uint64 {
	if len(s) == 0 {
		return 0
	}
	a.pins.Pin(&s[0])
	return uint64(uintptr(unsafe.Pointer(&s[0])))
}
