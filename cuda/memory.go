package cuda

import "fmt"

// Pointer is an address that the device can use: device memory, or pinned host memory.
type Pointer uint64

// Allocate returns device memory, aligned to at least 256 bytes, not zeroed. The caller
// owns it until Free. If there is not enough, the error is ErrOutOfMemory.
func (c *Context) Allocate(bytes int) (Pointer, error) {
	if bytes <= 0 {
		return 0, fmt.Errorf("allocate %d bytes: %w", bytes, &Error{Op: "cuMemAlloc", Code: InvalidValue})
	}
	p, err := cuMemAlloc.get(out, uint64(bytes))
	if err != nil {
		return 0, fmt.Errorf("allocate %d bytes: %w", bytes, err)
	}
	return Pointer(p), nil
}

// Free releases memory from Allocate. It waits for all of this process's work on the
// device; Arena.Close does not.
func (c *Context) Free(p Pointer) error { return cuMemFree.do(uint64(p)) }

// Flags of cuMemHostAlloc and of cuMemHostRegister, which use the same values.
const (
	hostPortable  = 0x1
	hostDeviceMap = 0x2
	hostReadOnly  = 0x8
)

// AllocateHost returns pinned host memory, which may not be zeroed. The device reads
// and writes it at the same address (At) in every context. The caller owns it until
// FreeHost. The garbage collector does not know it.
func (c *Context) AllocateHost(bytes int) ([]byte, error) {
	if bytes <= 0 {
		return nil, fmt.Errorf("allocate %d bytes of pinned memory: %w", bytes, &Error{Op: "cuMemHostAlloc", Code: InvalidValue})
	}
	p, err := cuMemHostAlloc.get(out, uint64(bytes), hostPortable|hostDeviceMap)
	if err != nil {
		return nil, fmt.Errorf("allocate %d bytes of pinned memory: %w", bytes, err)
	}
	return Bytes(Pointer(p), bytes), nil
}

// FreeHost releases the whole slice from AllocateHost. It waits for all of this
// process's work on the device.
func (c *Context) FreeHost(mem []byte) error { return cuMemFreeHost.do(uint64(At(mem))) }

// Register pins existing host memory (a mapping, never memory of Go's heap). It returns
// the address at which the device reaches it. If Properties.HostPointer is set, that is
// At(mem). If this process has mapped the memory read-only, readOnly must be set, or
// the driver refuses; the device can then only read it. Register pins whole pages. The
// memory stays registered until Unregister, and must stay mapped at least as long. 1
// GiB takes some 20 to 40 ms.
func (c *Context) Register(mem []byte, readOnly bool) (Pointer, error) {
	if len(mem) == 0 {
		return 0, fmt.Errorf("register no memory: %w", &Error{Op: "cuMemHostRegister", Code: InvalidValue})
	}
	flags := uint64(hostPortable | hostDeviceMap)
	if readOnly {
		flags |= hostReadOnly
	}
	at := uint64(At(mem))
	if err := cuMemHostRegister.do(at, uint64(len(mem)), flags); err != nil {
		return 0, fmt.Errorf("register %d bytes at %#x: %w", len(mem), at, err)
	}
	p, err := cuMemHostGetDevicePointer.get(out, at, 0)
	if err != nil {
		cuMemHostUnregister.do(at)
		return 0, fmt.Errorf("register %d bytes at %#x: %w", len(mem), at, err)
	}
	return Pointer(p), nil
}

// Unregister undoes Register of the same memory.
func (c *Context) Unregister(mem []byte) error { return cuMemHostUnregister.do(uint64(At(mem))) }

// IsPinned reports whether an address is in pinned host memory.
func IsPinned(p Pointer) bool {
	const (
		memoryType = 2 // CU_POINTER_ATTRIBUTE_MEMORY_TYPE
		hostMemory = 1 // CU_MEMORYTYPE_HOST
	)
	kind, err := cuPointerGetAttribute.get(out, memoryType, uint64(p))
	return err == nil && kind == hostMemory
}
