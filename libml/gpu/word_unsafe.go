package gpu

import (
	"sync/atomic"
	"unsafe"

	"github.com/penstock/penstock/cuda"
)

// word reads four bytes that the device writes. at is a multiple of four;
// control is pinned memory, which is aligned.
func word(control []byte, at int) uint32 {
	_ = control[at+3]
	return atomic.LoadUint32((*uint32)(unsafe.Add(unsafe.Pointer(unsafe.SliceData(control)), at)))
}

// word64 reads eight bytes; at is a multiple of eight.
func word64(control []byte, at int) uint64 {
	_ = control[at+7]
	return atomic.LoadUint64((*uint64)(unsafe.Add(unsafe.Pointer(unsafe.SliceData(control)), at)))
}

// samplingOf returns the arguments of the kernel sample, which are samplingBytes long.
func samplingOf(args *cuda.Args) *samplingParameter {
	return (*samplingParameter)(unsafe.Pointer(unsafe.SliceData(args.Bytes(0))))
}
