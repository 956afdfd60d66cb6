//go:build cgo

package onnx

/*
#include <malloc.h>
#include <stddef.h>

static size_t pon_allocated(void) {
#ifdef __GLIBC__
#if __GLIBC_PREREQ(2, 33)
	struct mallinfo2 m = mallinfo2();
	return m.uordblks + m.hblkhd;
#endif
#endif
	return 0;
}

static void pon_trim(void) {
#ifdef __GLIBC__
	malloc_trim(0);
#endif
}
*/
import "C"

// allocatedBytes returns the memory that the C library has given out and not got back. It is 0 with a
// C library that does not count it. Sessions take their weights from there.
func allocatedBytes() int64 { return int64(C.pon_allocated()) }

// trim returns free memory of the C library to the system. Otherwise the library keeps it, in an arena
// per thread: after a model was linked and again after it was released.
func trim() { C.pon_trim() }
