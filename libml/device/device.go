// Package device is what libml knows of the thing that models run on: something
// that turns the pieces of requests, where they lie in the slabs, into one
// contiguous batch tensor, and brings a framework's outputs back. device/cpu is
// the embedded default; device/gpu stands behind the same interface.
//
// The way of a batch, for one slot:
//
//	Gather(slot, dst, requests)   1. Order copies and checks every descriptor
//	                              2. the pieces are read, converted, written to dst
//	Pad(slot, dst, from, to)      3. the images up to the ladder's step are blanked
//	(the framework's InferBatch)  4. dst is read, the slot's Outputs are written
//	Fetch(slot, images)           5. the outputs are brought to the slot's Results
//	Wait(slot)                    6. all of it is done; the slabs are not read any more
//
// On the CPU each step is done when its call returns. A GPU queues them on the
// slot's stream, where they are done in this order, and the calls return before;
// Done looks, without a system call, whether the stream has got there, and Wait
// waits for it. Only then may results be read and packets be released.
package device

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/penstock/penstock/control/budget"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/shm"
)

// Slots is how many places for batches a device has. Slots 0 and 1 may be in
// flight together; 2 and 3 stand by for 0 and 1 while the multiprocessors that
// these run on change, and the other way round.
const Slots = 4

// TensorAlign is the alignment of a batch tensor, in bytes: a cache line, and
// what every framework's fastest kernels ask for.
const TensorAlign = models.TensorAlignment

// Request is one request as the gather sees it. The pieces may lie in shared
// memory that somebody else can write to: a device reads them once, into memory
// of its own, and checks the copy.
type Request struct {
	Pieces []shm.Piece
	// Bytes is the size of the request's payload, which the pieces cover.
	Bytes uint32
}

// Sizes are those of the largest batch's tensors, in bytes. Input is a whole
// number of images (models.Input.TensorBytes), and each of Outputs, in the card's
// order, of as many parts.
type Sizes struct {
	Input   int
	Outputs []int
}

// Tensors is one slot's memory for the largest batch. Smaller batches are prefixes
// of each tensor. All are aligned to TensorAlign and live until Close.
type Tensors struct {
	// Input is where Gather writes and the framework reads, Outputs where the
	// framework writes. On a GPU both are device addresses, not to be read by Go.
	Input   []byte
	Outputs [][]byte
	// Results is where the CPU reads the outputs once Wait has returned. On the
	// CPU they are Outputs.
	Results [][]byte
}

// Device gathers. What it is built for (models.Input: types, layouts,
// normalisation) is fixed when it is made.
//
// Goroutines: every goroutine that calls the device, or a framework on it, is
// locked to its thread and calls Bind first. AddSlab, Tensors and Close are called
// with nothing in flight. Gather, Pad, Fetch, Done and Wait of one slot are called
// by one goroutine at a time; different slots may be used at once.
//
// Errors: any method of a device that failed for good wraps ErrLost.
type Device interface {
	// Name is "cpu", or a GPU's UUID.
	Name() string

	// Bind makes the calling thread, which is locked, one that may call the device
	// (it makes a GPU's context current). It may be called again.
	Bind() error

	// AddSlab registers a slab, mapped read-only; its index in descriptors is the
	// number of slabs added before. The mapping stays until Close has returned.
	AddSlab(mem []byte) error

	// Tensors makes the tensors of the slots, len Slots, by slot; it is called once.
	// shared is memory that active and shadow processes both map and that whoever
	// holds the ring writes; it stays mapped until Close has returned. How much of
	// it a device needs is said by its package; ErrShared is returned where it is
	// less. Slots s and s+2 may have the same memory, slots 0 and 1 only where
	// InFlight is 1.
	Tensors(shared []byte, sizes Sizes) ([]Tensors, error)

	// InFlight is how many batches may be in flight together: 1 on a CPU, 2 on a
	// GPU.
	InFlight() int

	// Gather fills image i of dst, at i*Input.TensorBytes(), from reqs[i]. dst is
	// cut from Tensors and aligned to TensorAlign. The requests, their pieces and
	// refused are the caller's again when Gather returns; dst and what the pieces
	// name are in use until Wait has returned.
	//
	// refused, as long as reqs, is set for each request whose descriptors are not
	// sound and cleared for the others. A refused request's image is blank; the
	// others are gathered all the same, and the error is a *RequestError that
	// names the first refused. Any other error means that no image can be used.
	Gather(slot int, dst []byte, reqs []Request, refused []bool) error

	// Pad blanks (all bytes zero) images from up to, not including, to.
	Pad(slot int, dst []byte, from, to int) error

	// Fetch brings the first images' part of the slot's Outputs to its Results. All
	// that is on the slot's stream when it is called, the framework's work too, is
	// then what Done and Wait speak of; Fetch of 0 images does just that.
	Fetch(slot int, images int) error

	// Done reports whether all that was asked of the slot is done; true with an
	// error where it failed, true where nothing was asked. It does not block and
	// costs no system call, so that a loop may look often.
	Done(slot int) (bool, error)

	// Wait returns when all that was asked of the slot is done. inferred is how
	// long the part after gather and padding took (the framework's batch, the
	// outputs on their way back), as the device measured it; 0 where the host's
	// clock serves.
	Wait(slot int) (inferred time.Duration, err error)

	// Close gives back what New, AddSlab and Tensors took.
	Close() error
}

// Partitioned is a device whose multiprocessors can be handed out in groups. A
// group's index names the same multiprocessors in every process on the device.
type Partitioned interface {
	Device

	// SMs is how many multiprocessors the slot's batches can use: those of its
	// groups, or all that there are for the process, which MPS may make fewer than
	// the device's.
	SMs(slot int) (int, error)

	// Stream is the stream (CUstream) on which the slot's batches are queued, by
	// the device and by the framework, unless Choose has another. It changes with
	// Repartition and Prioritize. Any goroutine may ask, but not during one of these of
	// that slot.
	Stream(slot int) uintptr

	// Prioritize moves these slots, with nothing in flight, to streams of this level, 1 or
	// higher, and keeps a stream of level budget.Demoted beside each. Slots that
	// Repartition moves from then on have both. It is called once. The error wraps
	// cuda.ErrNotSupported if the device does not have that level.
	Prioritize(slots []int, level budget.Level) error

	// Choose has the slot's next batches, with nothing in flight in it, run at a level from
	// budget.Demoted to that of Prioritize. It does nothing to a slot that was not
	// prioritized. Repartition undoes it. An error leaves the level as it was.
	Choose(slot int, level budget.Level) error

	// BatchStream is the stream that Choose chose. It is called from the goroutine that
	// calls Gather.
	BatchStream(slot int) uintptr

	// Repartition has these slots, with nothing in flight, run on the
	// multiprocessors of these groups, ascending, from now on; no groups: on all
	// that there are. Other slots may be in use meanwhile. What the slots ran on
	// before lives until their next Repartition or Close, as a framework may hold
	// graphs made there. On an error the slots run where they ran.
	Repartition(slots []int, groups []int) error
}

var (
	// ErrLost is wrapped by what any method returns once the device has failed for
	// good: nothing on it will work again in this process, which has to end.
	ErrLost = errors.New("device is lost")
	// ErrShared is returned when shared memory is too small for a device's tensors.
	ErrShared = errors.New("shared memory is too small for the tensors")
)

// Lay cuts tensors of these sizes off mem, one after the other, each aligned to
// TensorAlign where mem is, and without room to grow. The last need not be filled
// up to the alignment. ErrShared is returned when mem is too small.
func Lay(mem []byte, sizes ...int) ([][]byte, error) {
	tensors, at := make([][]byte, len(sizes)), 0
	for i, size := range sizes {
		if size < 0 || at > len(mem) || size > len(mem)-at {
			return nil, fmt.Errorf("%w: %d bytes for tensors of %v", ErrShared, len(mem), sizes)
		}
		tensors[i] = mem[at : at+size : at+size]
		at += models.Aligned(size)
	}
	return tensors, nil
}

// RequestError is returned by Gather when a request's descriptors are not sound.
type RequestError struct {
	Request int // index in the batch
	Piece   int // index in Request.Pieces; -1 where no single piece is to blame
	Err     error
}

func (e *RequestError) Error() string {
	if e.Piece < 0 {
		return fmt.Sprintf("gather request %d: %v", e.Request, e.Err)
	}
	return fmt.Sprintf("gather request %d, piece %d: %v", e.Request, e.Piece, e.Err)
}

func (e *RequestError) Unwrap() error { return e.Err }

// What Order finds.
var (
	// ErrSlab is returned when a piece names a slab that was never added.
	ErrSlab = errors.New("piece is in an unknown slab")
	// ErrOutsideSlab is returned when a piece's bytes are not all in its slab.
	ErrOutsideSlab = errors.New("piece reaches outside its slab")
	// errOutsideRequest is returned when a piece's place is not all in the request.
	errOutsideRequest = errors.New("piece reaches outside its request")
	// errEmpty is returned when a piece has no bytes.
	errEmpty = errors.New("piece is empty")
	// ErrOverlap is returned when two pieces cover the same byte.
	ErrOverlap = errors.New("pieces overlap")
	// ErrGap is returned when some byte of the request is in no piece.
	ErrGap = errors.New("pieces leave a gap")
	// ErrSize is returned when a request is not of the size that the model takes.
	ErrSize = errors.New("request is not of the model's size")
)

// Order copies a request's pieces to scratch[:0], sorts the copy by place, and
// checks it: every piece lies within its slab (slabBytes[i] is the size of slab
// i) and together they cover the request's bytes exactly once. It returns the
// copy, which is scratch grown where it was too small, so that a caller who keeps
// what it returns allocates nothing in the long run. The piece that an error is
// about is at index bad of the request's pieces, or bad is -1.
func Order(scratch []shm.Piece, req Request, slabBytes []uint64) (ordered []shm.Piece, bad int, err error) {
	ordered = append(scratch[:0], req.Pieces...)
	next, sorted := uint64(0), true
	for i := range ordered {
		p := &ordered[i]
		switch {
		case int(p.Slab) >= len(slabBytes):
			return ordered, i, ErrSlab
		case p.Length == 0:
			return ordered, i, errEmpty
		case uint64(p.Length) > slabBytes[p.Slab] || p.Offset > slabBytes[p.Slab]-uint64(p.Length):
			return ordered, i, ErrOutsideSlab
		case uint64(p.Place)+uint64(p.Length) > uint64(req.Bytes):
			return ordered, i, errOutsideRequest
		}
		sorted = sorted && uint64(p.Place) == next
		next = uint64(p.Place) + uint64(p.Length)
	}
	if sorted && next == uint64(req.Bytes) {
		return ordered, -1, nil
	}
	slices.SortFunc(ordered, func(a, b shm.Piece) int { return cmp.Compare(a.Place, b.Place) })
	next = 0
	for i := range ordered {
		switch place := uint64(ordered[i].Place); {
		case place > next:
			return ordered, -1, ErrGap
		case place < next:
			return ordered, -1, ErrOverlap
		}
		next += uint64(ordered[i].Length)
	}
	if next != uint64(req.Bytes) {
		return ordered, -1, ErrGap
	}
	return ordered, -1, nil
}
