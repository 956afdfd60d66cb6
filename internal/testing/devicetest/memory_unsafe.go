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

// View returns a tensor of the device, or a part of one, as readable and writable
// memory: what a kernel sees. It panics for memory that is not the device's.
func (q *Queued) View(tensor []byte) []byte {
	if len(tensor) == 0 {
		return nil
	}
	at := uintptr(unsafe.Pointer(unsafe.SliceData(tensor))) - uintptr(unsafe.Pointer(unsafe.SliceData(q.private.device)))
	return q.private.host[at:][:len(tensor):len(tensor)]
}
