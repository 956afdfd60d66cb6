package weights

import (
	"errors"
	"fmt"
	"math"
	"os"

	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/cuda"
)

// Resident is a file's bytes in memory of this process on the first GPU that it sees. Evict frees the
// memory, Load brings the bytes back to the same address. Sessions and graphs that use the address
// stay valid meanwhile, but must not run.
//
// Load copies from the page cache: the file is mapped, and the driver has pinned its pages, as far as a
// HostMemory allows. So host memory has the bytes once, and eviction copies nothing. A file that is truncated
// keeps its pinned pages (docs/adr/0030-evicting-weights.md).
//
// One goroutine at a time may call the methods, on threads that are bound to the primary context.
type Resident struct {
	file   *os.File
	id     Identity
	crc    uint32
	arena  *cuda.Arena
	stream cuda.Stream
	sent   [copiesAhead]cuda.Event
	in     *cuda.Context

	pins       *HostMemory // guards the rest
	host       []byte      // the mapped and pinned file; nil if it is not pinned
	unpinnable bool        // the file cannot be pinned, so each load reads it
	copying    bool        // host is in use
	onGPU      bool
}

// A load is copied in chunks. While one is copied, the next is queued. Larger chunks delay gathers of
// other processes longer, smaller ones copy more slowly (docs/adr/0030-evicting-weights.md).
const (
	copyBytes   = 4 << 20
	copiesAhead = 2
)

// OpenResident loads a file. The calling thread must be bound to c, the primary context. The caller
// owns the Resident until Close, and c must outlive it. pins limits what is pinned.
func OpenResident(c *cuda.Context, path string, pins *HostMemory) (r *Resident, err error) {
	r = &Resident{in: c, pins: pins}
	defer func() {
		if err == nil {
			return
		}
		if !errors.Is(err, cuda.ErrLost) { // on a lost device a release may wait for ever
			err = errors.Join(err, r.Close())
		}
		r, err = nil, fmt.Errorf("load weights %s: %w", path, err)
	}()
	if r.file, err = os.Open(path); err != nil {
		return r, err
	}
	if r.id, err = Identify(r.file); err != nil {
		return r, err
	}
	if r.id.Bytes > math.MaxInt {
		return r, fmt.Errorf("the file has %d bytes", r.id.Bytes)
	}
	if r.arena, err = c.NewArena(int(r.id.Bytes)); err != nil {
		return r, err
	}
	if r.stream, err = c.NewStream(); err != nil {
		return r, err
	}
	for i := range r.sent {
		if r.sent[i], err = c.NewBlockingEvent(); err != nil {
			return r, err
		}
	}
	if r.crc, err = Upload(c, r.file, r.arena.Pointer(), r.id.Bytes); err != nil {
		return r, err
	}
	_, err = pins.pin(r, false)
	pins.done(r, err == nil)
	return r, err
}

// pin maps the file and pins its pages.
func (r *Resident) pin() error {
	host, err := unix.Mmap(int(r.file.Fd()), 0, int(r.id.Bytes), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("map the file: %w", err)
	}
	if _, err := r.in.Register(host, true); err != nil {
		return errors.Join(err, unix.Munmap(host))
	}
	r.host = host
	return nil
}

// Pointer is the address of the file's first byte.
func (r *Resident) Pointer() cuda.Pointer { return r.arena.Pointer() }

// Bytes is the file's size, and MemoryBytes that of the memory: a multiple of the driver's page size.
func (r *Resident) Bytes() int64       { return r.id.Bytes }
func (r *Resident) MemoryBytes() int64 { return int64(r.arena.Bytes()) }

// CRC32C is the checksum (Castagnoli) of the bytes that were copied first.
func (r *Resident) CRC32C() uint32 { return r.crc }

// release undoes pin.
func (r *Resident) release() error {
	err := errors.Join(r.in.Unregister(r.host), unix.Munmap(r.host))
	r.host = nil
	return err
}

// Evict frees the memory. No work in flight may use it.
func (r *Resident) Evict() error {
	r.pins.done(r, false)
	return r.arena.Evict()
}

// errChanged is returned by Load for a file that was written, replaced or removed since it was opened.
var errChanged = errors.New("the file has changed since it was loaded")

// Load brings the bytes back, and returns when they are there. After an error the memory is evicted.
func (r *Resident) Load() (err error) {
	defer func() {
		if err != nil && !errors.Is(err, cuda.ErrLost) {
			err = errors.Join(err, r.arena.Evict())
		}
		if err != nil {
			err = fmt.Errorf("load weights %s: %w", r.file.Name(), err)
		}
	}()
	if id, err := Identify(r.file); err != nil {
		return err
	} else if id != r.id {
		return errChanged
	}
	if err := r.arena.Restore(); err != nil {
		return err
	}
	host, err := r.pins.pin(r, true)
	if err != nil {
		return err
	}
	defer func() { r.pins.done(r, err == nil) }()
	if host != nil {
		return r.copyPinned(host)
	}
	crc, err := Upload(r.in, r.file, r.arena.Pointer(), r.id.Bytes)
	if err == nil && crc != r.crc {
		err = errChanged
	}
	return err
}

// copyPinned copies the mapped file. It has ended all copies when it returns.
func (r *Resident) copyPinned(host []byte) error {
	var err error
	turn := 0
	for at := 0; at < len(host) && err == nil; turn++ {
		sent := r.sent[turn%copiesAhead]
		chunk := host[at:min(at+copyBytes, len(host))]
		if err = sent.Synchronize(); err == nil {
			err = r.stream.Copy(r.arena.Pointer()+cuda.Pointer(at), cuda.At(chunk), len(chunk))
		}
		if err == nil {
			err = sent.Record(r.stream)
		}
		at += len(chunk)
	}
	for i := range r.sent {
		err = errors.Join(err, r.sent[(turn+i)%copiesAhead].Synchronize())
	}
	return err
}

// Close frees everything. No work in flight may use the memory.
func (r *Resident) Close() error {
	errs := []error{r.pins.unpin(r)}
	for i, e := range r.sent {
		if e != (cuda.Event{}) {
			errs = append(errs, e.Destroy())
			r.sent[i] = cuda.Event{}
		}
	}
	if r.stream != (cuda.Stream{}) {
		errs = append(errs, r.stream.Destroy())
		r.stream = cuda.Stream{}
	}
	if r.arena != nil {
		errs = append(errs, r.arena.Close())
	}
	if r.file != nil {
		errs = append(errs, r.file.Close())
		r.file = nil
	}
	return errors.Join(errs...)
}
