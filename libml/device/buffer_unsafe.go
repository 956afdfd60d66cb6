package device

import (
	"fmt"
	"unsafe"
)

// Buffer is the memory of a tensor, or a part of one: in host memory, or in that of a GPU, which Go cannot
// read. It does not own the memory. The zero value has no bytes.
type Buffer struct {
	onDevice bool
	host     []byte  // unless onDevice
	address  uintptr // if onDevice
	length   int
}

// HostBuffer returns the buffer of host memory, which it keeps alive as a slice does.
func HostBuffer(mem []byte) Buffer { return Buffer{host: mem, length: len(mem)} }

// HostBuffers returns the buffers of pieces of host memory.
func HostBuffers(mem ...[]byte) []Buffer {
	buffers := make([]Buffer, len(mem))
	for i := range mem {
		buffers[i] = HostBuffer(mem[i])
	}
	return buffers
}

// DeviceBuffer returns the buffer of device memory (CUdeviceptr).
func DeviceBuffer(address uintptr, bytes int) Buffer {
	return Buffer{onDevice: true, address: address, length: bytes}
}

// OnDevice reports whether the buffer is in device memory.
func (b Buffer) OnDevice() bool { return b.onDevice }

// Address is the address of the first byte. In host memory it may be an address of Go's heap, which C code may
// keep only while it is pinned (runtime.Pinner).
func (b Buffer) Address() uintptr {
	if b.onDevice {
		return b.address
	}
	return uintptr(unsafe.Pointer(unsafe.SliceData(b.host)))
}

// Len is the number of bytes.
func (b Buffer) Len() int { return b.length }

// Bytes returns the memory of a buffer on the host. It panics for device memory.
func (b Buffer) Bytes() []byte {
	if b.onDevice {
		panic(fmt.Sprintf("read %d bytes at %#x: this is device memory; copy it to the host first", b.length, b.address))
	}
	return b.host
}

// Slice returns the bytes from..to-1. It panics if there are none such.
func (b Buffer) Slice(from, to int) Buffer {
	if from < 0 || to < from || to > b.length {
		panic(fmt.Sprintf("slice bytes %d to %d of a buffer of %d", from, to, b.length))
	}
	if b.onDevice {
		return DeviceBuffer(b.address+uintptr(from), to-from)
	}
	return HostBuffer(b.host[from:to:to])
}
