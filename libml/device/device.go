// Package device is libml's interface to the device that models run on. A device gathers
// the fragments of requests from the slabs into one contiguous batch tensor, and fetches
// a framework's outputs. libml/cpu is the default; libml/gpu implements the same
// interface.
//
// A batch takes these steps in one slot:
//
//	Gather(slot, dst, requests)   1. Order copies and checks every descriptor
//	                              2. read and convert the fragments, write them to dst
//	Pad(slot, dst, from, to)      3. blank the images up to the ladder's step
//	(the framework's InferBatch)  4. read dst, write the slot's Outputs
//	Fetch(slot, images)           5. bring the outputs to the slot's Results
//	Wait(slot)                    6. all is done; the slabs are no longer read
//
// On the CPU each step is done when its call returns. A GPU queues the steps on the
// slot's stream, which does them in this order, and the calls return earlier. Done
// checks, without a system call, whether the stream has finished, and Wait waits for it.
// Only then may results be read and packets be released.
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
	"github.com/penstock/penstock/wire"
)

// Slots is the number of a device's places for batches. Slots 0 and 1 may be in flight
// together. Slots 2 and 3 replace 0 and 1 while the multiprocessors of these change, and
// the other way round.
const Slots = 4

// TensorAlign is the alignment of a batch tensor, in bytes: a cache line, which is also
// what the fastest kernels of every framework require.
const TensorAlign = models.TensorAlignment

// Request is one request to gather. Its fragments may lie in shared memory that another
// process can write to. So a device reads the descriptors once, into its own memory, and
// checks the copy.
type Request struct {
	Fragments []shm.Fragment
	// Bytes is the size of the request's payload, which the fragments cover.
	Bytes uint32
	// Picture is the format and shape of the request's picture; the zero value is the card's. Another process wrote it.
	Picture wire.Picture
}

// Sampled returns the request's picture with its stride if it must be sampled: its format or size is not the card's. Otherwise
// the result is zero, and the request has the bytes of the card, or fewer that may be filled up.
func (r *Request) Sampled(in *models.Input) (p wire.Picture, err error) {
	if p = r.Picture; p.Format != 0 && p.Stride == 0 {
		p.Stride = p.RowBytes()
	}
	if p.Format == 0 || p == in.Picture() {
		if _, fits := in.Missing(int(r.Bytes)); !fits {
			err = ErrSize
		}
		return wire.Picture{}, err
	}

	switch bytes, err := p.Bytes(); {
	case !in.IsPicture():
		return p, errNoPicture
	case err != nil:
		return p, fmt.Errorf("%w: %w", ErrPicture, err)
	case bytes != int(r.Bytes):
		return p, fmt.Errorf("%w: request has %d bytes, and a picture of %d x %d pixels of %s has %d", ErrPicture, r.Bytes, p.Width, p.Height, p.Format, bytes)
	}
	return p, nil
}

// Sizes are the sizes of the largest batch's tensors, in bytes. Input is that of all inputs
// (models.Input.BatchBytes). Each of Outputs, in the card's order, has a part for each image. States is that of all
// states, before and after a run.
type Sizes struct {
	Input   int
	Outputs []int
	States  int
	// Selections are the rows of outputs that are read. A device may leave out the others from the results.
	Selections []Selection
}

// Selection says which rows of a model's outputs are read: those with a score that is not below the threshold, or not
// finite.
type Selection struct {
	Rows      int
	Scores    Table
	Threshold float32
	Read      []Table // of a row, the scores included if they are read
}

// Table is columns of an output of type f32, for each row. Numbers are in elements.
type Table struct {
	Output                  int
	First, Columns          int // the first element of row 0
	RowStride, ColumnStride int
}

// ResultStride is the distance of selected rows in the results. There, the columns of a row are neighbours: an output that
// has rows as columns is transposed.
func (t *Table) ResultStride() int {
	if t.ColumnStride == 1 {
		return t.RowStride
	}
	return t.Columns
}

// Tensors is one slot's memory for the largest batch. Smaller batches are prefixes of
// each tensor. All are aligned to TensorAlign and valid until Close.
type Tensors struct {
	// Gather writes Input and the framework reads it; the framework writes Outputs. Input has all
	// inputs, at models.Input.Places.
	Input   Buffer
	Outputs []Buffer
	// Results is the memory in which the CPU reads the outputs once Wait has returned, until the slot's next Fetch.
	// On the CPU it is that of Outputs.
	Results [][]byte
	// Selected has a bitmap for each output with the scores of a Selection, image after image: a bit per row, in a u32 for
	// 32 rows. The results have only these rows. It is nil if the device copies all.
	Selected [][]byte
	// States is memory of the process on the host, which a GPU can read and write.
	States []byte
}

// Device gathers. Its input format (models.Input: types, layouts, normalisation) is
// fixed when it is created.
//
// Goroutines: before a goroutine calls the device, or a framework on it, it must be locked
// to its thread and call Bind. At a call of AddSlab, Tensors or Close, nothing may be in
// flight. Only one goroutine at a time may call Gather, Pad, Fetch, Done and Wait of one
// slot; different slots may be used at once.
//
// Errors: if a device has failed for good, the errors of all methods wrap ErrLost.
type Device interface {
	// Name is "cpu", or a GPU's UUID.
	Name() string

	// Bind lets the calling goroutine, which must be locked to its thread, call the device
	// (it makes a GPU's context current). It may be called again.
	Bind() error

	// AddSlab registers a slab, mapped read-only. Its index in descriptors is the number
	// of slabs added before. The mapping must stay until Close has returned.
	AddSlab(mem []byte) error

	// Tensors creates the tensors of the slots, len Slots, by slot. Call it only once.
	// Active and shadow processes both map shared, and the owner of the ring writes it;
	// it must stay mapped until Close has returned. Each device's package tells how much of
	// it the device needs; ErrShared is returned if there is less. Slots s and s+2 may
	// have the same memory. Slots 0 and 1 may have so only if InFlight is 1.
	Tensors(shared []byte, sizes Sizes) ([]Tensors, error)

	// InFlight is how many batches may be in flight together: 1 on a CPU, 2 on a GPU.
	InFlight() int

	// Gather fills image i of dst, at i*Input.TensorBytes(), from reqs[i]. dst is a part
	// of Tensors.Input, aligned to TensorAlign. It is all of it if there are several inputs; image i
	// is then image i of each. When Gather returns, the caller may reuse the
	// requests, their Fragments and refused. dst and the memory of the fragments are in use
	// until Wait has returned.
	//
	// refused is as long as reqs. Gather sets it for each request with invalid
	// descriptors and clears it for the others. The image of a refused request is blank.
	// The others are gathered nevertheless, and the error is a *RequestError that names
	// the first refused request. Any other error means that no image can be used.
	Gather(slot int, dst Buffer, reqs []Request, refused []bool) error

	// Pad blanks (all bytes zero) the images from, from+1, ... to-1.
	Pad(slot int, dst Buffer, from, to int) error

	// Fetch brings the first images' part of the slot's Outputs to its Results. Done and
	// Wait then cover everything on the slot's stream at the time of the call, including
	// the framework's work. Fetch of 0 images copies nothing and does only that.
	Fetch(slot int, images int) error

	// Upload copies data from host memory to dst, a part of the slot's Input, and Download
	// a part of the slot's Outputs to host memory. The memory is in use until Wait has
	// returned after the next Fetch. Only warm-ups call them: they may wait for the slot's work.
	Upload(slot int, dst Buffer, data []byte) error
	Download(slot int, data []byte, src Buffer) error

	// Done reports whether all work of the slot is done: true with an error if it
	// failed, true if there was none. It does not block and costs no system call, so
	// that a loop may call it often.
	Done(slot int) (bool, error)

	// Wait returns when all work of the slot is done. inferred is the device's
	// measurement of the part after gather and padding: the framework's batch and the
	// copy of the outputs. It is 0 if the host's clock is enough.
	Wait(slot int) (inferred time.Duration, err error)

	// Close frees what New, AddSlab and Tensors allocated.
	Close() error
}

// Partitioned is a device whose multiprocessors can be allocated in groups. A group's
// index names the same multiprocessors in every process on the device.
type Partitioned interface {
	Device

	// SMs is how many multiprocessors the slot's batches can use: those of its groups,
	// or all that the process has. Under MPS a process may have fewer than the device.
	SMs(slot int) (int, error)

	// Stream returns the stream (CUstream) on which the device and the framework queue
	// the slot's batches, unless Choose has chosen another one. Repartition and
	// Prioritize change it. Any goroutine may call Stream, but not while one of these
	// runs for that slot.
	Stream(slot int) uintptr

	// Prioritize moves these slots to streams of this level, 1 or higher. The slots must
	// have nothing in flight. It also keeps a stream of level budget.Demoted for each.
	// Slots that Repartition moves later have both. Call Prioritize only once. The error
	// wraps cuda.ErrNotSupported if the device does not have that level.
	Prioritize(slots []int, level budget.Level) error

	// Choose sets the level of the slot's next batches, from budget.Demoted to the level
	// of Prioritize. The slot must have nothing in flight. Choose does nothing to a slot
	// that was not prioritized. Repartition undoes it. After an error the level is
	// unchanged.
	Choose(slot int, level budget.Level) error

	// BatchStream returns the stream that Choose chose. Only the goroutine that calls
	// Gather may call it.
	BatchStream(slot int) uintptr

	// Repartition moves these slots to the multiprocessors of these groups, ascending; no
	// groups means all that there are. The slots must have nothing in flight; other slots
	// may be in use meanwhile. The slots' old place lives until their next Repartition or
	// Close, because a framework may hold graphs that were created there. After an error
	// the slots keep their place.
	Repartition(slots []int, groups []int) error
}

// Ordered is a device whose batch can begin right after one of another device. Both are of the same
// kind, and are open in one process on the same GPU.
type Ordered interface {
	Device

	// Follow makes work that is queued in the slot from now on begin when the last Fetch in
	// otherSlot of other is done. A gather that was queued before does not wait. Device.Wait then
	// measures from the later end of these two. During the call other must not be closed, and
	// nothing may be queued in otherSlot.
	Follow(slot int, other Ordered, otherSlot int) error
}

var (
	// ErrLost is wrapped by the errors of all methods once the device has failed for
	// good. Nothing on it will work again in this process, which must end.
	ErrLost = errors.New("device is lost")
	// ErrWrongAnswers is returned by frameworks that compare a model's answers on the device with
	// right ones. The device itself does not check answers.
	ErrWrongAnswers = errors.New("model answers wrongly on this GPU")
	// ErrShared is returned when shared memory is too small for a device's tensors.
	ErrShared = errors.New("shared memory is too small for the tensors")
)

// Lay cuts tensors of these sizes from mem, one after the other, without room to grow.
// Each is aligned to TensorAlign if mem is. The end of the last one need not be aligned.
// Lay returns ErrShared if mem is too small.
func Lay(mem Buffer, sizes ...int) ([]Buffer, error) {
	tensors, at := make([]Buffer, len(sizes)), 0
	for i, size := range sizes {
		if size < 0 || at > mem.Len() || size > mem.Len()-at {
			return nil, fmt.Errorf("%w: %d bytes for tensors of %v", ErrShared, mem.Len(), sizes)
		}
		tensors[i] = mem.Slice(at, at+size)
		at += models.Aligned(size)
	}
	return tensors, nil
}

// LayHost cuts the tensors of a batch from host memory: the input, then the outputs, which are also the
// results.
func LayHost(mem []byte, sizes Sizes) (t Tensors, err error) {
	laid, err := Lay(HostBuffer(mem), append([]int{sizes.Input}, sizes.Outputs...)...)
	if err != nil {
		return t, err
	}
	t = Tensors{Input: laid[0], Outputs: laid[1:], States: make([]byte, sizes.States)}
	t.Results = Bytes(t.Outputs)
	return t, nil
}

// Bytes returns the memory of buffers on the host.
func Bytes(buffers []Buffer) [][]byte {
	mem := make([][]byte, len(buffers))
	for i := range buffers {
		mem[i] = buffers[i].Bytes()
	}
	return mem
}

// RequestError is returned by Gather if a request's descriptors are invalid.
type RequestError struct {
	Request  int // index in the batch
	Fragment int // index in Request.Fragments; -1 if no single fragment is to blame
	Err      error
}

func (e *RequestError) Error() string {
	if e.Fragment < 0 {
		return fmt.Sprintf("gather request %d: %v", e.Request, e.Err)
	}
	return fmt.Sprintf("gather request %d, fragment %d: %v", e.Request, e.Fragment, e.Err)
}

func (e *RequestError) Unwrap() error { return e.Err }

// Errors of Order.
var (
	// ErrSlab is returned for a fragment in a slab that was never added.
	ErrSlab = errors.New("fragment is in an unknown slab")
	// ErrOutsideSlab is returned for a fragment that reaches beyond its slab.
	ErrOutsideSlab = errors.New("fragment reaches outside its slab")
	// errOutsideRequest is returned for a fragment that reaches beyond its request.
	errOutsideRequest = errors.New("fragment reaches outside its request")
	// errEmpty is returned for a fragment without bytes.
	errEmpty = errors.New("fragment is empty")
	// ErrOverlap is returned if two fragments cover the same byte.
	ErrOverlap = errors.New("fragments overlap")
	// ErrGap is returned if a byte of the request is in no fragment.
	ErrGap = errors.New("fragments leave a gap")
	// ErrSize is returned for a request whose size is not the model's.
	ErrSize = errors.New("request is not of the model's size")
	// ErrPicture is returned if the device cannot sample a picture that differs from the card in format or size.
	ErrPicture   = errors.New("cannot sample the request's picture")
	errNoPicture = fmt.Errorf("%w: the function takes no pictures", ErrPicture)
)

// Order copies a request's fragments to scratch[:0], sorts the copy by
// place, and checks it. Every fragment must lie within its slab (slabBytes[i] is the size
// of slab i), and together they must cover the request's bytes exactly once. Order
// returns the copy, which is scratch, grown if it was too small. So a caller that keeps
// the result allocates nothing in the long run. On an error, bad is the index of the
// fragment in the request's fragments, or -1.
func Order(scratch []shm.Fragment, req Request, slabBytes []uint64) (ordered []shm.Fragment, bad int, err error) {
	ordered = append(scratch[:0], req.Fragments...)
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
	slices.SortFunc(ordered, func(a, b shm.Fragment) int { return cmp.Compare(a.Place, b.Place) })
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
