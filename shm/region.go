package shm

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// Memory is a mapped region that can be handed to another process.
type Memory interface {
	// Bytes is the mapping; it is valid until the region is closed.
	Bytes() []byte
	// File is the descriptor to pass on. The region owns it: to pass it on,
	// duplicate it, or keep the region open for as long as the file is in use.
	File() *os.File
	// Size is the requested size in bytes; the file may be larger by part of a
	// page.
	Size() int
}

// ErrTooSmall is returned by Map if the file is smaller than required.
var ErrTooSmall = errors.New("shared file is too small")

// Options of a new region. The zero value is a region of ordinary pages that
// only the process that created it can write.
type Options struct {
	// HugePages requests pages of 2 MiB. If Create cannot get them, the region
	// has ordinary pages, and Create asks the kernel to use huge ones if it can
	// (MADV_HUGEPAGE).
	HugePages bool
	// Writable lets any process that has File map it for writing too.
	Writable bool
	// Allocated, if it is not 0, is how many bytes at the beginning of a region of ordinary pages are allocated now. The
	// other pages are allocated when they are first touched.
	Allocated int
}

// Region is shared memory: an unnamed file that lives as long as a process maps
// it or has it open. A killed process therefore leaves nothing behind. Region
// implements Memory. Its methods may be called from any goroutine.
type Region struct {
	mem  []byte // whole pages
	size int
	file *os.File
	once sync.Once
}

var _ Memory = (*Region)(nil)

// Create makes a region of size bytes. All bytes are zero, and all pages are
// allocated unless o.Allocated is set: a lack of memory makes Create fail, not a later access. The name
// appears in /proc/PID/maps of each process that maps the region.
//
// The file is sealed: its size cannot change while others map it. Without
// o.Writable no process can map it for writing from now on.
func Create(name string, size int, o Options) (*Region, error) {
	r, err := create(name, size, o)
	if err != nil {
		return nil, fmt.Errorf("make shared memory %q of %d bytes: %w", name, size, err)
	}
	return r, nil
}

func create(name string, size int, o Options) (*Region, error) {
	if size <= 0 || size > maxRegionBytes {
		return nil, fmt.Errorf("size must be 1 to %d", maxRegionBytes)
	}
	if err := checkFileLimit(size); err != nil {
		return nil, err
	}
	if o.HugePages {
		// If this fails for any reason, use ordinary pages. Usually the
		// machine has no free huge pages, or the process may not use them.
		if r, err := createOn(name, size, hugePageBytes, unix.MFD_HUGETLB|unix.MFD_HUGE_2MB, o); err == nil {
			return r, nil
		}
	}
	// Not needed for huge pages: they have their own pool, and createOn fails if
	// too few are free.
	if err := checkMemory("/", size); err != nil {
		return nil, err
	}
	r, err := createOn(name, size, os.Getpagesize(), 0, o)
	if err == nil && o.HugePages {
		// A hint only; kernels without huge pages for shared memory refuse it.
		_ = unix.Madvise(r.mem, unix.MADV_HUGEPAGE)
	}
	return r, err
}

// maxRegionBytes is more than any machine has, and small enough that rounding a
// size up cannot overflow.
const maxRegionBytes = 1 << 46

// hugePageBytes is the size of huge page that both x86-64 and arm64 have.
const hugePageBytes = 2 << 20

// checkFileLimit refuses a size above RLIMIT_FSIZE. The kernel would send
// SIGXFSZ, which ends a Go process.
func checkFileLimit(size int) error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &limit); err != nil {
		return fmt.Errorf("read file size limit: %w", err)
	}
	if uint64(size) > limit.Cur {
		return fmt.Errorf("file size limit (ulimit -f) is %d bytes: %w", limit.Cur, unix.EFBIG)
	}
	return nil
}

func createOn(name string, size, page, flags int, o Options) (r *Region, err error) {
	fd, err := memfd(name, flags)
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), "memfd:"+name)
	defer func() {
		if err != nil {
			_ = file.Close()
		}
	}()

	mapped := (size + page - 1) / page * page
	if err := unix.Ftruncate(fd, int64(mapped)); err != nil {
		return nil, fmt.Errorf("set size: %w", err)
	}
	allocated := cmp.Or(o.Allocated, mapped)
	if err := ignoringEINTR(func() error { return unix.Fallocate(fd, 0, 0, int64(allocated)) }); err != nil {
		return nil, fmt.Errorf("take memory: %w", err)
	}
	mem, err := unix.Mmap(fd, 0, mapped, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map: %w", err)
	}
	defer func() {
		if err != nil {
			_ = unix.Munmap(mem)
		}
	}()

	if err := seal(fd, o.Writable); err != nil {
		return nil, err
	}
	if !o.Writable {
		// Pass on a read-only descriptor: the kernel refuses to map it for
		// writing, even if it has no F_SEAL_FUTURE_WRITE (before Linux 5.1).
		readOnly, err := unix.Open("/proc/self/fd/"+strconv.Itoa(fd), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, fmt.Errorf("open read-only (is /proc mounted?): %w", err)
		}
		name := file.Name()
		_ = file.Close()
		file = os.NewFile(uintptr(readOnly), name)
	}
	return &Region{mem: mem, size: size, file: file}, nil
}

// memfd makes the unnamed file. Kernels before 6.3 do not know MFD_NOEXEC_SEAL.
func memfd(name string, flags int) (int, error) {
	flags |= unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := unix.MemfdCreate(name, flags|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) {
		fd, err = unix.MemfdCreate(name, flags)
	}
	if err != nil {
		return -1, fmt.Errorf("make memfd: %w", err)
	}
	return fd, nil
}

// seal fixes the file's size. Unless writable, it also forbids new writable
// mappings.
func seal(fd int, writable bool) error {
	const size = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW
	if !writable {
		_, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, size|unix.F_SEAL_FUTURE_WRITE|unix.F_SEAL_SEAL)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EINVAL) { // EINVAL: before Linux 5.1
			return fmt.Errorf("seal: %w", err)
		}
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, size|unix.F_SEAL_SEAL); err != nil {
		return fmt.Errorf("seal: %w", err)
	}
	return nil
}

// Map maps size bytes of a file that another process made. It takes ownership
// of the file: Close closes it, and so does a Map that fails. Map refuses a
// file smaller than size (ErrTooSmall), which would fault later. The creator's
// seal keeps the file from shrinking afterwards.
func Map(f *os.File, size int, writable bool) (*Region, error) {
	return mapRegion(f, size, size, writable)
}

// MapSparse is Map, to read a region whose pages are allocated when they are first touched.
func MapSparse(f *os.File, size int) (*Region, error) { return mapRegion(f, size, 0, false) }

// mapRegion is Map for a region of which only as many bytes at the beginning are allocated.
func mapRegion(f *os.File, size, allocated int, writable bool) (*Region, error) {
	r, err := mapFile(f, size, allocated, writable)
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("map shared memory %q: %w", f.Name(), err)
	}
	return r, nil
}

func mapFile(f *os.File, size, allocated int, writable bool) (*Region, error) {
	if size <= 0 || size > maxRegionBytes {
		return nil, fmt.Errorf("size must be 1 to %d", maxRegionBytes)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, fmt.Errorf("stat: %w", err)
	}
	// A file on huge pages can only be mapped in units of huge pages; its
	// st_blksize is the page size.
	page := max(int(st.Blksize), os.Getpagesize())
	mapped := (size + page - 1) / page * page
	if st.Size < int64(mapped) {
		return nil, fmt.Errorf("%w: %d bytes, want %d", ErrTooSmall, st.Size, mapped)
	}
	prot := unix.PROT_READ
	if writable {
		prot |= unix.PROT_WRITE
	}
	// Map all allocated pages now. Otherwise a process that takes over a ring would stop for one page fault per page.
	flags := unix.MAP_SHARED
	if allocated == size {
		flags |= unix.MAP_POPULATE
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, mapped, prot, flags)
	if err != nil {
		return nil, err
	}
	if allocated > 0 && allocated != size {
		_ = unix.Madvise(mem[:allocated], unix.MADV_POPULATE_WRITE) // Linux before 5.14 cannot
	}
	return &Region{mem: mem, size: size, file: f}, nil
}

// Bytes is the mapping, valid until Close.
func (r *Region) Bytes() []byte { return r.mem[:r.size:r.size] }

// File is the descriptor to pass on, open until Close. It is read-only unless
// the region was made writable.
func (r *Region) File() *os.File { return r.file }

// Size is the requested size, in bytes.
func (r *Region) Size() int { return r.size }

// Close unmaps the region and closes its file. The kernel frees the memory when
// the last process has done so. Bytes must not be used afterwards. Closing
// twice is harmless.
func (r *Region) Close() (err error) {
	r.once.Do(func() {
		err = errors.Join(unix.Munmap(r.mem), r.file.Close())
		if err != nil {
			err = fmt.Errorf("close shared memory: %w", err)
		}
	})
	return err
}

func ignoringEINTR(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
