package cuda

import (
	"errors"
	"fmt"
)

// Arena is device memory with its own address range (cuMemAddressReserve, cuMemCreate,
// cuMemMap), which other processes can map through a file descriptor. Making or closing
// one takes less than a millisecond. Unlike Free, Close does not wait for work on the
// device.
type Arena struct {
	device  uint64
	address Pointer
	bytes   int
	memory  uint64
	mapped  bool
}

// NewArena allocates this many bytes, rounded up to the driver's granularity (2 MiB):
// see Bytes. Kernels of this context may read and write it. The caller owns it until
// Close. If the driver has no virtual memory (Properties.VirtualMemory), the error is
// ErrNotSupported.
func (c *Context) NewArena(bytes int) (*Arena, error) {
	if bytes <= 0 {
		return nil, fmt.Errorf("make an arena of %d bytes: %w", bytes, &Error{Op: "cuMemCreate", Code: InvalidValue})
	}
	whole, err := c.roundToPages(bytes)
	if err != nil {
		return nil, fmt.Errorf("make an arena of %d bytes: %w", bytes, err)
	}
	memory, err := createMemory(c.device.handle, whole)
	if err != nil {
		return nil, fmt.Errorf("make an arena of %d bytes: %w", whole, err)
	}
	a, err := c.place(memory, whole, true)
	if err != nil {
		return nil, fmt.Errorf("make an arena of %d bytes: %w", whole, err)
	}
	return a, nil
}

// ImportArena maps an arena that this process or another exported. fd comes from
// ExportFD, and the caller still owns it. bytes is the exported arena's Bytes. With
// readOnly, kernels of this context can only read it. The memory is freed when all its
// users have closed it.
func (c *Context) ImportArena(fd, bytes int, readOnly bool) (*Arena, error) {
	if fd < 0 || bytes <= 0 {
		return nil, fmt.Errorf("import an arena of %d bytes: %w", bytes, &Error{Op: "cuMemImportFromShareableHandle", Code: InvalidValue})
	}
	memory, err := cuMemImportFromShareableHandle.get(out, uint64(fd), handleFD)
	if err != nil {
		return nil, fmt.Errorf("import an arena of %d bytes: %w", bytes, err)
	}
	a, err := c.place(memory, bytes, !readOnly)
	if err != nil {
		return nil, fmt.Errorf("import an arena of %d bytes: %w", bytes, err)
	}
	return a, nil
}

// Reserve returns addresses without memory, at a multiple of the driver's granularity. The caller owns them until
// Unreserve.
func Reserve(bytes int) (Range, error) {
	at, err := cuMemAddressReserve.get(out, uint64(bytes), 0, 0, 0)
	return Range{Pointer(at), bytes}, err
}

// Unreserve gives the addresses back. No arena may be at them.
func (r Range) Unreserve() error { return cuMemAddressFree.do(uint64(r.At), uint64(r.Bytes)) }

// ArenaAt gives memory to whole granules of reserved addresses. Evict frees it; the arena needs no Close.
func (d Device) ArenaAt(r Range) (*Arena, error) {
	a := &Arena{device: d.handle, address: r.At, bytes: r.Bytes}
	return a, a.Restore()
}

// location is a CUmemLocation. kind is locationDevice.
type location struct{ kind, id uint32 }

// allocation is a CUmemAllocationProp.
type allocation struct {
	kind, handles uint32
	at            location
	_             [2]uint64
}

// access is a CUmemAccessDesc.
type access struct {
	at    location
	flags uint32
}

// Constants of cuda.h.
const (
	locationDevice         = 1 // CU_MEM_LOCATION_TYPE_DEVICE
	allocationPinned       = 1 // CU_MEM_ALLOCATION_TYPE_PINNED
	handleFD               = 1 // CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
	granularityRecommended = 1 // CU_MEM_ALLOC_GRANULARITY_RECOMMENDED
	accessRead             = 1 // CU_MEM_ACCESS_FLAGS_PROT_READ
	accessReadWrite        = 3 // CU_MEM_ACCESS_FLAGS_PROT_READWRITE
)

func allocationOn(device uint64) *allocation {
	return &allocation{kind: allocationPinned, handles: handleFD, at: location{locationDevice, uint32(device)}}
}

func createMemory(device uint64, bytes int) (uint64, error) {
	return with(cuMemCreate, allocationOn(device), out, uint64(bytes), buffer, 0)
}

// roundToPages rounds up to the driver's allocation granularity.
func (c *Context) roundToPages(bytes int) (int, error) {
	granularity, err := with(cuMemGetAllocationGranularity, allocationOn(c.device.handle), out, buffer, granularityRecommended)
	if err != nil {
		return 0, err
	}
	page := max(int(granularity), 1)
	return (bytes + page - 1) / page * page, nil
}

// place gives memory an address. It takes ownership of memory, and releases it on an
// error.
func (c *Context) place(memory uint64, bytes int, write bool) (*Arena, error) {
	a := &Arena{device: c.device.handle, memory: memory, bytes: bytes}
	address, err := cuMemAddressReserve.get(out, uint64(bytes), 0, 0, 0)
	if err != nil {
		return nil, errors.Join(err, a.Close())
	}
	a.address = Pointer(address)
	if err := a.mapMemory(write); err != nil {
		return nil, errors.Join(err, a.Close())
	}
	return a, nil
}

func (a *Arena) mapMemory(write bool) error {
	if err := cuMemMap.do(uint64(a.address), uint64(a.bytes), 0, a.memory, 0); err != nil {
		return err
	}
	a.mapped = true
	right := access{location{locationDevice, uint32(a.device)}, accessRead}
	if write {
		right.flags = accessReadWrite
	}
	_, err := with(cuMemSetAccess, &right, uint64(a.address), uint64(a.bytes), buffer, 1)
	return err
}

// Evict frees the memory and keeps the addresses: nothing else gets them until Close. Graphs and
// other objects with addresses of the arena stay valid, but must not run until Restore. No work in
// flight may use the arena. Evict of an evicted arena does nothing.
func (a *Arena) Evict() error {
	if a.mapped {
		if err := cuMemUnmap.do(uint64(a.address), uint64(a.bytes)); err != nil {
			return fmt.Errorf("evict an arena of %d bytes: %w", a.bytes, err)
		}
		a.mapped = false
	}
	if a.memory != 0 {
		if err := cuMemRelease.do(a.memory); err != nil {
			return fmt.Errorf("evict an arena of %d bytes: %w", a.bytes, err)
		}
		a.memory = 0
	}
	return nil
}

// Restore gives an evicted arena new memory, which is not zeroed, at its old addresses. Kernels may
// read and write it. After an error the arena is evicted.
func (a *Arena) Restore() error {
	if a.mapped {
		return nil
	}
	memory, err := createMemory(a.device, a.bytes)
	if err == nil {
		a.memory = memory
		err = a.mapMemory(true)
	}
	if err != nil {
		return fmt.Errorf("restore an arena of %d bytes: %w", a.bytes, errors.Join(err, a.Evict()))
	}
	return nil
}

// Pointer is the arena's first address.
func (a *Arena) Pointer() Pointer { return a.address }

// Bytes is the arena's size.
func (a *Arena) Bytes() int { return a.bytes }

// ExportFD returns a new file descriptor, which the caller closes. Other processes that
// receive it over a Unix socket pass it to ImportArena. It keeps the memory alive.
func (a *Arena) ExportFD() (int, error) {
	fd, err := cuMemExportToShareableHandle.get(out, a.memory, handleFD, 0)
	if err != nil {
		return -1, err
	}
	return int(fd), nil
}

// Close unmaps the arena and releases the memory and the addresses. No work in flight
// may use it.
func (a *Arena) Close() error {
	var errs []error
	if a.mapped {
		errs = append(errs, cuMemUnmap.do(uint64(a.address), uint64(a.bytes)))
		a.mapped = false
	}
	if a.address != 0 {
		errs = append(errs, cuMemAddressFree.do(uint64(a.address), uint64(a.bytes)))
		a.address = 0
	}
	if a.memory != 0 {
		errs = append(errs, cuMemRelease.do(a.memory))
		a.memory = 0
	}
	return errors.Join(errs...)
}
