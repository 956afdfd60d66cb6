package devicetest

import (
	"unsafe"

	"github.com/penstock/penstock/libml/device"
)

// Aligned returns n zero bytes that start at a multiple of device.TensorAlign.
func Aligned(n int) []byte {
	b := make([]byte, n+device.TensorAlign)
	skip := -uintptr(unsafe.Pointer(unsafe.SliceData(b))) % device.TensorAlign
	return b[skip:][:n:n]
}
