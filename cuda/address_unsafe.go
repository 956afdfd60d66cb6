package cuda

import "unsafe"

// Bytes is n bytes at an address as a slice, for interfaces that carry slices.
// Go must not read or write it unless it is host memory (AllocateHost, a
// registered mapping). The garbage collector knows nothing of it.
func Bytes(p Pointer, n int) []byte {
	if p == 0 {
		return nil
	}
	address := uintptr(p)
	// Through a pointer to the word, since the address is none that Go gave.
	return unsafe.Slice(*(**byte)(unsafe.Pointer(&address)), n)
}

// At is the address of a slice's first byte, 0 of a slice without memory. The
// memory is not of Go's heap: it is what Bytes or AllocateHost returned or lies
// in a mapping.
func At(mem []byte) Pointer { return Pointer(uintptr(unsafe.Pointer(unsafe.SliceData(mem)))) }
