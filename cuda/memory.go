package cuda

import "fmt"

// Pointer is an address that the device can use: device memory, or host memory
// that is pinned.
type Pointer uint64

// Allocate returns memory of the device, at least 256-byte aligned, not zeroed.
// It is the caller's until Free. ErrOutOfMemory where there is not enough.
func (c *Context) Allocate(bytes int) (Pointer, error) {
	if bytes <= 0 {
		return 0, fmt.Errorf("allocate %d bytes: %w", bytes, &Error{Op: "cuMemAlloc", Code: InvalidValue})
	}
	p, code := memoryAllocate(uint64(bytes))
	if code != 0 {
		return 0, fmt.Errorf("allocate %d bytes: %w", bytes, refused("cuMemAlloc_v2", code))
	}
	return Pointer(p), nil
}

// Free gives back what Allocate returned. It waits until all that this process has
// on the device is done; Arena.Close does not.
func (c *Context) Free(p Pointer) error { return check("cuMemFree_v2", memoryFree(uint64(p))) }

// Flags of cuMemHostAlloc and cuMemHostRegister, which are the same.
const (
	hostPortable  = 0x1
	hostDeviceMap = 0x2
	hostReadOnly  = 0x8
)

// AllocateHost returns pinned host memory, zeroed or not, that the device reads
// and writes at the same address (At) in every context. It is the caller's until
// FreeHost; the garbage collector knows nothing of it.
func (c *Context) AllocateHost(bytes int) ([]byte, error) {
	if bytes <= 0 {
		return nil, fmt.Errorf("allocate %d bytes of pinned memory: %w", bytes, &Error{Op: "cuMemHostAlloc", Code: InvalidValue})
	}
	p, code := memoryAllocateHost(uint64(bytes), hostPortable|hostDeviceMap)
	if code != 0 {
		return nil, fmt.Errorf("allocate %d bytes of pinned memory: %w", bytes, refused("cuMemHostAlloc", code))
	}
	return Bytes(Pointer(p), bytes), nil
}

// FreeHost gives back what AllocateHost returned, the whole slice. It waits until
// all that this process has on the device is done.
func (c *Context) FreeHost(mem []byte) error {
	return check("cuMemFreeHost", memoryFreeHost(uint64(At(mem))))
}

// Register pins host memory that is there already (a mapping: never memory of
// Go's heap) and returns the address at which the device reaches it, which is
// At(mem) where Properties.HostPointer says so. readOnly is for what is mapped
// read-only in this process, which the driver refuses without it; the device can
// only read it then. Whole pages are pinned. It stays registered until
// Unregister, and mapped at least as long. 1 GiB takes some 20 to 40 ms.
func (c *Context) Register(mem []byte, readOnly bool) (Pointer, error) {
	if len(mem) == 0 {
		return 0, fmt.Errorf("register no memory: %w", &Error{Op: "cuMemHostRegister", Code: InvalidValue})
	}
	flags := uint32(hostPortable | hostDeviceMap)
	if readOnly {
		flags |= hostReadOnly
	}
	at := uint64(At(mem))
	if err := check("cuMemHostRegister_v2", memoryRegister(at, uint64(len(mem)), flags)); err != nil {
		return 0, fmt.Errorf("register %d bytes at %#x: %w", len(mem), at, err)
	}
	p, code := memoryHostPointer(at)
	if err := check("cuMemHostGetDevicePointer_v2", code); err != nil {
		memoryUnregister(at)
		return 0, fmt.Errorf("register %d bytes at %#x: %w", len(mem), at, err)
	}
	return Pointer(p), nil
}

// Unregister undoes Register of the same memory.
func (c *Context) Unregister(mem []byte) error {
	return check("cuMemHostUnregister", memoryUnregister(uint64(At(mem))))
}

// Handle names an allocation of another process's (CUipcMemHandle). It may be
// sent anywhere on this machine, and is good while the memory is allocated.
type Handle [64]byte

// Export returns a handle that other processes Import. p is what Allocate
// returned, not an address inside; arenas are exported with ExportFD.
func (c *Context) Export(p Pointer) (Handle, error) {
	var h Handle
	code := ipcExport(uint64(p), &h)
	return h, check("cuIpcGetMemHandle", code)
}

// Import maps another process's memory into this one (the driver refuses a
// handle of this process's own); it is good until CloseImport, also when the
// other process has ended or freed it.
func (c *Context) Import(h Handle) (Pointer, error) {
	p, code := ipcImport(&h)
	return Pointer(p), check("cuIpcOpenMemHandle_v2", code)
}

// CloseImport gives back what Import returned.
func (c *Context) CloseImport(p Pointer) error {
	return check("cuIpcCloseMemHandle", ipcClose(uint64(p)))
}
