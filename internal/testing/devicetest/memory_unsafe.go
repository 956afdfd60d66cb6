package devicetest

import (
	"unsafe"

	"github.com/penstock/penstock/libml/device"
)

// Aligned makes n zero bytes that start at a multiple of device.TensorAlign.
func Aligned(n int) []byte {
	b := make([]byte, n+device.TensorAlign)
	skip := -uintptr(unsafe.Pointer(unsafe.SliceData(b))) % device.TensorAlign
	return b[skip:][:n:n]
}

// View is a tensor of the device, or a part of one, as memory that can be read and
// written: what a kernel sees. It panics for memory that is not the device's.
func (q *Queued) View(tensor []byte) []byte {
	if len(tensor) == 0 {
		return nil
	}
	at := uintptr(unsafe.Pointer(unsafe.SliceData(tensor))) - uintptr(unsafe.Pointer(unsafe.SliceData(q.private.device)))
	return q.private.host[at:][:len(tensor):len(tensor)]
}
