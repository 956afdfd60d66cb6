package shm

import (
	"fmt"
	"sync/atomic"
	"unsafe"
)

// view returns n values of type T at an offset of a mapping. It is the only
// conversion from bytes to words. Offsets come from this process's own
// geometry, never from shared memory. A view that leaves the mapping, or is not
// aligned, is a bug of this package and panics.
//
// The garbage collector does not know the mapping: a view is valid until the
// mapping is closed.
func view[T any](mem []byte, at, n int) []T {
	var zero T
	size := int(unsafe.Sizeof(zero))
	if at < 0 || n < 0 || at > len(mem) || n > (len(mem)-at)/size {
		panic(fmt.Sprintf("shm: view of %d×%d bytes at %d leaves a mapping of %d", n, size, at, len(mem)))
	}
	if n == 0 {
		return nil
	}
	p := unsafe.Pointer(&mem[at])
	if uintptr(p)%unsafe.Alignof(zero) != 0 {
		panic(fmt.Sprintf("shm: view at %d is not aligned", at))
	}
	return unsafe.Slice((*T)(p), n)
}

func word32(mem []byte, at int) *atomic.Uint32 { return &view[atomic.Uint32](mem, at, 1)[0] }

func word64(mem []byte, at int) *atomic.Uint64 { return &view[atomic.Uint64](mem, at, 1)[0] }
