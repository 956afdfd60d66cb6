// Package device is what libml knows of the thing that models run on: something
// that turns the pieces of requests, where they lie in the slabs, into one
// contiguous batch tensor. device/cpu is the embedded default; a GPU stands
// behind the same interface.
//
// The way of a batch, for one slot:
//
//	Gather(slot, dst, requests)   1. Order copies and checks every descriptor
//	                              2. the pieces are read, converted, written to dst
//	Pad(slot, dst, from, to)      3. the images up to the ladder's step are blanked
//	Wait(slot)                    4. dst is whole; the slabs are not read any more
//
// Gather and Pad may return before they are done (a GPU queues them on the
// slot's stream), Wait returns when they are. Only then may a framework on
// another stream run on dst, and only then may the packets be released.
package device

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/shm"
)

// Slots is how many batches may be in flight on a device: one being gathered
// while another is inferred, and as much again for a device with more streams.
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

// Device gathers. What it is built for (models.Input: types, layouts,
// normalisation) is fixed when it is made.
//
// Goroutines: AddSlab, Tensors and Close are called with nothing in flight.
// Gather, Pad and Wait of one slot are called by one goroutine at a time;
// different slots may be used at once.
type Device interface {
	// Name is "cpu", or a GPU's UUID.
	Name() string

	// AddSlab registers a slab, mapped read-only; its index in descriptors is the
	// number of slabs added before. The mapping stays until Close has returned.
	AddSlab(mem []byte) error

	// Tensors returns the memory that batch tensors are cut from, as long as
	// shared, which active and shadow processes both map. On the CPU it is shared
	// itself. Where a device computes on memory of its own it is that memory's
	// address (not to be read by Go), and shared is where the process that made it
	// leaves its handle for the others. It lives until Close.
	Tensors(shared []byte) ([]byte, error)

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

	// Wait returns when all that was asked of the slot is done.
	Wait(slot int) error

	// Close gives back what New, AddSlab and Tensors took.
	Close() error
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
	// ErrOutsideRequest is returned when a piece's place is not all in the request.
	ErrOutsideRequest = errors.New("piece reaches outside its request")
	// ErrEmpty is returned when a piece has no bytes.
	ErrEmpty = errors.New("piece is empty")
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
			return ordered, i, ErrEmpty
		case uint64(p.Length) > slabBytes[p.Slab] || p.Offset > slabBytes[p.Slab]-uint64(p.Length):
			return ordered, i, ErrOutsideSlab
		case uint64(p.Place)+uint64(p.Length) > uint64(req.Bytes):
			return ordered, i, ErrOutsideRequest
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
