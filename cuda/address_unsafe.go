package cuda

import "unsafe"

// Bytes returns n bytes at an address as a slice, for interfaces that carry slices. Go
// must not read or write it unless it is host memory (AllocateHost, a registered
// mapping). The garbage collector does not know this memory.
func Bytes(p Pointer, n int) []byte {
	if p == 0 {
		return nil
	}
	address := uintptr(p)
	// Convert through a pointer to the address, as the address does not come from Go.
	return unsafe.Slice(*(**byte)(unsafe.Pointer(&address)), n)
}

// textAt returns the string of C at an address, "" for 0.
func textAt(p Pointer) string {
	n := 0
	for p != 0 && Bytes(p, n+1)[n] != 0 {
		n++
	}
	return string(Bytes(p, n))
}

// At returns the address of a slice's first byte, 0 for a slice without memory. The
// memory must not be in Go's heap: it comes from Bytes or AllocateHost, or is in a
// mapping.
func At(mem []byte) Pointer { return Pointer(uintptr(unsafe.Pointer(unsafe.SliceData(mem)))) }
