package cpu

import "unsafe"

// element is a tensor element as bits.
type element interface{ uint8 | uint16 | uint32 }

// view returns b as elements, in the machine's byte order, which is the
// tensor's. b is aligned for E (see aligned). The view omits bytes after the
// last complete element. It keeps b's memory alive as b does.
func view[E element](b []byte) []E {
	var e E
	return unsafe.Slice((*E)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/int(unsafe.Sizeof(e)))
}

// aligned reports whether b starts at a multiple of n bytes.
func aligned(b []byte, n int) bool {
	return uintptr(unsafe.Pointer(unsafe.SliceData(b)))%uintptr(n) == 0
}
