package cuda

import (
	"errors"
	"fmt"
)

// Arena is device memory with addresses of its own (cuMemAddressReserve,
// cuMemCreate, cuMemMap) that other processes can map through a file descriptor.
// It is there, and gone, within a millisecond, and waits for no work on the device,
// as Free does.
type Arena struct {
	address Pointer
	bytes   int
	memory  uint64
	mapped  bool
}

// NewArena allocates at least so many bytes, rounded up to the driver's
// granularity (2 MiB): see Bytes. Kernels of this context read and write it. It
// is the caller's until Close. Where the driver has no virtual memory
// (Properties.VirtualMemory) the error is ErrNotSupported.
func (c *Context) NewArena(bytes int) (*Arena, error) {
	if bytes <= 0 {
		return nil, fmt.Errorf("make an arena of %d bytes: %w", bytes, &Error{Op: "cuMemCreate", Code: InvalidValue})
	}
	whole, err := c.wholePages(bytes)
	if err != nil {
		return nil, fmt.Errorf("make an arena of %d bytes: %w", bytes, err)
	}
	memory, code := memoryCreate(c.device.handle, uint64(whole))
	if err := check("cuMemCreate", code); err != nil {
		return nil, fmt.Errorf("make an arena of %d bytes: %w", whole, err)
	}
	a, err := c.place(memory, whole, true)
	if err != nil {
		return nil, fmt.Errorf("make an arena of %d bytes: %w", whole, err)
	}
	return a, nil
}

// ImportArena maps the arena whose ExportFD gave the descriptor, in this process
// or another; bytes is the Bytes of the one that was exported. The descriptor is
// still the caller's. With readOnly, kernels of this context can only read it.
// The memory is freed when all who have it have closed it.
func (c *Context) ImportArena(fd, bytes int, readOnly bool) (*Arena, error) {
	if fd < 0 || bytes <= 0 {
		return nil, fmt.Errorf("import an arena of %d bytes: %w", bytes, &Error{Op: "cuMemImportFromShareableHandle", Code: InvalidValue})
	}
	memory, code := memoryImportFD(fd)
	if err := check("cuMemImportFromShareableHandle", code); err != nil {
		return nil, fmt.Errorf("import an arena of %d bytes: %w", bytes, err)
	}
	a, err := c.place(memory, bytes, !readOnly)
	if err != nil {
		return nil, fmt.Errorf("import an arena of %d bytes: %w", bytes, err)
	}
	return a, nil
}

// wholePages rounds up to what memory is handed out in.
func (c *Context) wholePages(bytes int) (int, error) {
	granularity, code := memoryGranularity(c.device.handle)
	if err := check("cuMemGetAllocationGranularity", code); err != nil {
		return 0, err
	}
	page := max(int(granularity), 1)
	return (bytes + page - 1) / page * page, nil
}

// place gives memory an address. It owns memory: on an error it is released.
func (c *Context) place(memory uint64, bytes int, write bool) (*Arena, error) {
	a := &Arena{memory: memory, bytes: bytes}
	address, code := memoryReserve(uint64(bytes))
	if err := check("cuMemAddressReserve", code); err != nil {
		return nil, errors.Join(err, a.Close())
	}
	a.address = Pointer(address)
	if err := check("cuMemMap", memoryMap(address, uint64(bytes), memory)); err != nil {
		return nil, errors.Join(err, a.Close())
	}
	a.mapped = true
	if err := check("cuMemSetAccess", memorySetAccess(address, uint64(bytes), c.device.handle, write)); err != nil {
		return nil, errors.Join(err, a.Close())
	}
	return a, nil
}

// Pointer is the arena's first address.
func (a *Arena) Pointer() Pointer { return a.address }

// Bytes is how much memory it has.
func (a *Arena) Bytes() int { return a.bytes }

// ExportFD returns a new file descriptor, the caller's to close, that other
// processes ImportArena once it was sent to them over a Unix socket. It keeps
// the memory alive.
func (a *Arena) ExportFD() (int, error) {
	fd, code := memoryExportFD(a.memory)
	if err := check("cuMemExportToShareableHandle", code); err != nil {
		return -1, err
	}
	return int(fd), nil
}

// Close unmaps the arena and gives back memory and addresses. Nothing that uses
// it is in flight any more.
func (a *Arena) Close() error {
	var errs []error
	if a.mapped {
		errs = append(errs, check("cuMemUnmap", memoryUnmap(uint64(a.address), uint64(a.bytes))))
		a.mapped = false
	}
	if a.address != 0 {
		errs = append(errs, check("cuMemAddressFree", memoryUnreserve(uint64(a.address), uint64(a.bytes))))
		a.address = 0
	}
	if a.memory != 0 {
		errs = append(errs, check("cuMemRelease", memoryRelease(a.memory)))
		a.memory = 0
	}
	return errors.Join(errs...)
}
