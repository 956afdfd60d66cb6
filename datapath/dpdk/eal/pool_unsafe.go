//go:build dpdk

package eal

// #cgo noescape pst_alloc
// #cgo nocallback pst_alloc
// #cgo noescape pst_free
// #cgo nocallback pst_free
// #include "shim.h"
import "C"

import (
	"errors"
	"fmt"
	"math/bits"
	"os"
	"slices"
	"sort"
	"unsafe"

	"github.com/yerden/go-dpdk/mempool"
	"golang.org/x/sys/unix"
)

// Burst is the max number of mbufs that one call allocates or sends.
const Burst = C.PST_BURST

// HeadroomBytes is the size of what precedes a frame in its mbuf (RTE_PKTMBUF_HEADROOM of
// Debian's build).
const HeadroomBytes = 128

// cacheMbufs is the max number of mbufs that an lcore caches, below
// RTE_MEMPOOL_CACHE_MAX_SIZE.
const cacheMbufs = 256

// cacheOf returns the cache size for a pool that so many lcores use. A single lcore can use
// its whole cache itself. With several lcores, each may keep 1.5 times its cache, which the
// others cannot use. All of them together may keep 3 of 128 mbufs, so that the pool does not
// look fuller than it is.
func cacheOf(mbufs, lcores int) int {
	if lcores > 1 {
		return min(cacheMbufs, mbufs/(64*lcores))
	}
	return min(cacheMbufs, mbufs/8)
}

// Pool is packet memory: mbufs of one size, in one file. Any goroutine may call its methods.
type Pool struct {
	pool   *mempool.Mempool
	memory Memory
	room   int
	mbufs  int
	runs   []run
}

// run is a row of mbufs with a constant distance.
type run struct {
	first, stride uint64
	inverse       uint64 // 2^64 / stride, rounded up
	mbuf          int    // number of the first mbuf
	n             int
}

// Memory is the mapping that holds a pool: DPDK's own, from its first byte up to the pool's
// end. A span's offset is therefore an offset in the file. It implements shm.Memory. The
// mapping may hold other pools too.
type Memory struct {
	bytes []byte
	file  *os.File
}

// Bytes is DPDK's mapping, valid until the process ends.
func (m *Memory) Bytes() []byte { return m.bytes }

// File is a descriptor that can only be mapped for reading.
func (m *Memory) File() *os.File { return m.file }

// Size is the size in bytes, in whole pages.
func (m *Memory) Size() int { return len(m.bytes) }

// NewPool makes a pool of mbufs whose frames have room for roomBytes, including the headroom,
// at most 65535. Socket is a NUMA node, or -1 for any.
//
// dma says whether a device accesses the pool by DMA. If so, no mbuf crosses the end of a
// page. Otherwise mbufs are packed closely, whatever the page size. On small pages the other
// layout would waste a third. net_af_xdp also assumes close packing: it would drop what is
// received into the last third.
func NewPool(name string, mbufs, roomBytes, socket int, dma bool) (*Pool, error) {
	options := []mempool.Option{
		mempool.OptCacheSize(uint32(cacheOf(mbufs, polling()))), mempool.OptSocket(socket),
		mempool.OptPrivateDataSize(C.sizeof_struct_pst_private),
	}
	if !dma {
		options = append(options, mempool.OptFlag(C.PST_NO_DMA))
	}
	pool, err := mempool.CreateEmpty(name, uint32(mbufs), uint32(mbufHeaderBytes+roomBytes), options...)
	if err == nil {
		if err = code(C.pst_fill_pool(unsafe.Pointer(pool), C.uint16_t(roomBytes))); err != nil {
			pool.Free()
		}
	}
	if err != nil {
		return nil, fmt.Errorf("make a pool of %d mbufs of %d bytes: %w", mbufs, roomBytes, explainPool(err, mbufs, roomBytes))
	}
	p := &Pool{pool: pool, room: roomBytes, mbufs: mbufs}
	if err := p.map_(); err != nil {
		pool.Free()
		return nil, fmt.Errorf("find the memory of a pool of %d mbufs: %w", mbufs, err)
	}
	return p, nil
}

// StrideBytes is the max memory that an mbuf takes with its bookkeeping, if it has room for a
// frame of frameBytes. It depends on the memory with which the environment was started.
func StrideBytes(frameBytes int) int {
	return strideIn(smallestPage(), HeadroomBytes+frameBytes+mbufBytes) + ringBytes
}

// strideIn returns the memory per object if no object may cross the end of a page, as a NIC
// requires of mbufs. An mbuf of 2 KB takes a whole ordinary page.
func strideIn(page, size int) int {
	if each := page / size; each > 0 {
		return page / each
	}
	return (size + page - 1) / page * page
}

// smallestPage is the size of the environment's pages, or a smaller one.
func smallestPage() int {
	e := &environment
	e.mu.Lock()
	defer e.mu.Unlock()
	if slices.Contains(e.args, "--no-huge") {
		return os.Getpagesize()
	}
	return 2 << 20
}

// ringBytes is an mbuf's share of the pool's ring, whose size is a power of two.
const ringBytes = 2 * 8

// mbufBytes is what surrounds the room: the pool's header and struct rte_mbuf, and the
// padding between neighbours.
const mbufBytes = 64 + mbufHeaderBytes + 64

// mbufHeaderBytes is the size of struct rte_mbuf.
const mbufHeaderBytes = 128

// explainPool adds how much memory is needed: DPDK's errno is about whatever it tried last.
func explainPool(err error, mbufs, room int) error {
	return fmt.Errorf("%w: they take %d MiB; give DPDK more memory, or configure fewer mbufs", err, (mbufs*(room+mbufBytes+ringBytes)+1<<20-1)>>20)
}

func (p *Pool) handle() unsafe.Pointer { return unsafe.Pointer(p.pool) }

func (p *Pool) map_() error {
	var base *C.uint8_t
	var size C.uint64_t
	var fd C.int
	if err := code(C.pst_memory(p.handle(), &base, &size, &fd)); err != nil {
		if errors.Is(err, unix.EXDEV) || errors.Is(err, unix.ENXIO) {
			return fmt.Errorf("it does not lie in one file from its beginning (--single-file-segments, memory taken at the start): %w", err)
		}
		return err
	}
	// A new descriptor is read-only; DPDK's own could write.
	file, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", int(fd)), os.O_RDONLY, 0)
	if err != nil {
		return fmt.Errorf("open it for reading: %w", err)
	}
	p.memory = Memory{bytes: unsafe.Slice((*byte)(base), int(size)), file: file}
	offsets := make([]uint64, p.mbufs)
	n := int(C.pst_objects(p.handle(), base, (*C.uint64_t)(&offsets[0]), C.uint32_t(len(offsets))))
	if n != p.mbufs {
		file.Close()
		return fmt.Errorf("it has %d mbufs", n)
	}
	slices.Sort(offsets)
	p.runs = runsOf(offsets)
	return nil
}

// runsOf finds the rows in sorted offsets. Usually there is one. If no mbuf may cross a
// page's end, there is one per page.
func runsOf(offsets []uint64) (runs []run) {
	for i := 0; i < len(offsets); {
		r := run{first: offsets[i], mbuf: i, n: 1, stride: 1 << 62}
		if i+1 < len(offsets) {
			r.stride = offsets[i+1] - offsets[i]
		}
		for i += 1; i < len(offsets) && offsets[i]-offsets[i-1] == r.stride; i++ {
			r.n++
		}
		r.inverse = (1<<64-1)/r.stride + 1
		runs = append(runs, r)
	}
	return runs
}

// Memory is the memory that holds the mbufs. The pool owns it.
func (p *Pool) Memory() *Memory { return &p.memory }

// Mbufs is the number of mbufs.
func (p *Pool) Mbufs() int { return p.mbufs }

// FrameBytes is the longest frame that one mbuf holds.
func (p *Pool) FrameBytes() int { return p.room - HeadroomBytes }

// StrideBytes is the memory that one mbuf takes.
func (p *Pool) StrideBytes() int {
	if p.runs[0].n == 1 {
		return p.room + mbufBytes
	}
	return int(p.runs[0].stride)
}

// Available is the number of mbufs not in use, including those in caches of lcores. It reads
// every lcore's cache: use it for statistics, not per frame.
func (p *Pool) Available() int { return int(C.pst_available(p.handle())) }

// Mbuf returns the number and the offset of the mbuf whose room contains the byte at. ok is
// false if there is none.
func (p *Pool) Mbuf(at uint64) (number int, offset uint64, ok bool) {
	r := &p.runs[0]
	if len(p.runs) > 1 {
		i := sort.Search(len(p.runs), func(i int) bool { return p.runs[i].first > at })
		if i == 0 {
			return 0, 0, false
		}
		r = &p.runs[i-1]
	}
	if at < r.first {
		return 0, 0, false
	}
	// (at - first) / stride: exact while their product is below 2^64, and the memory is far
	// smaller than that.
	i, _ := bits.Mul64(at-r.first, r.inverse)
	if i >= uint64(r.n) {
		return 0, 0, false
	}
	return r.mbuf + int(i), r.first + i*r.stride, true
}

// Offset returns the offset of an mbuf, given its number.
func (p *Pool) Offset(number int) uint64 {
	i := sort.Search(len(p.runs), func(i int) bool { return p.runs[i].mbuf > number }) - 1
	return p.runs[i].first + uint64(number-p.runs[i].mbuf)*p.runs[i].stride
}

// Alloc takes len(mbufs) mbufs, at most Burst: all or none. It stores the offset of each, and
// the offset at which its frame may begin, both from the memory's first byte.
func (p *Pool) Alloc(mbufs, data []uint64) error {
	if len(mbufs) == 0 {
		return nil
	}
	_ = data[len(mbufs)-1]
	return code(C.pst_alloc(p.handle(), p.base(), (*C.uint64_t)(&mbufs[0]), (*C.uint64_t)(&data[0]), C.uint32_t(len(mbufs))))
}

// Free returns mbufs to the pool, given their offsets.
func (p *Pool) Free(mbufs []uint64) {
	if len(mbufs) > 0 {
		C.pst_free(p.base(), (*C.uint64_t)(&mbufs[0]), C.uint32_t(len(mbufs)))
	}
}

func (p *Pool) base() *C.uint8_t { return (*C.uint8_t)(&p.memory.bytes[0]) }

// Close frees the pool. Every mbuf must be back in it, or must not be used any more.
func (p *Pool) Close() error {
	p.pool.Free()
	if err := p.memory.file.Close(); err != nil {
		return fmt.Errorf("close packet memory: %w", err)
	}
	return nil
}
