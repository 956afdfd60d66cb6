package cuda

import (
	"fmt"
	"unsafe"
)

// alignedBytes returns n zero bytes at a multiple of 16.
func alignedBytes(n int) []byte {
	blocks := make([][2]uint64, n/16+1)
	all := unsafe.Slice((*byte)(unsafe.Pointer(&blocks[0])), len(blocks)*16)
	skip := -uintptr(unsafe.Pointer(&blocks[0])) & 15
	return all[skip : int(skip)+n]
}

// word returns argument i as a T, in the machine's byte order, which is also the
// device's.
func word[T uint32 | uint64](a *Args, i int) *T {
	var t T
	if int(a.sizes[i]) != int(unsafe.Sizeof(t)) {
		panic(fmt.Sprintf("cuda: argument %d is of %d bytes, not %d", i, a.sizes[i], unsafe.Sizeof(t)))
	}
	return (*T)(unsafe.Pointer(&a.values[a.offsets[i]]))
}

// SetUint64 sets argument i, of 8 bytes.
func (a *Args) SetUint64(i int, v uint64) { *word[uint64](a, i) = v }

// SetUint32 sets argument i, of 4 bytes.
func (a *Args) SetUint32(i int, v uint32) { *word[uint32](a, i) = v }
