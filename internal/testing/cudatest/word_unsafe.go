package cudatest

import (
	"sync/atomic"
	"unsafe"
)

// word returns the first word of memory that a device writes.
func word(mem []byte) uint32 { return atomic.LoadUint32((*uint32)(unsafe.Pointer(&mem[0]))) }
