package cuda

import "unsafe"

// with calls f with memory that it reads or fills: a struct or an array of the driver's. The argument buffer is its
// address. The result is that of the argument out, if there is one.
func with[T any](f *function, at *T, arguments ...uint64) (uint64, error) {
	results, code := f.call((*byte)(unsafe.Pointer(at)), arguments...)
	return results[0], f.check(code)
}
