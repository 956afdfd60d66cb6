// Package gpu is a CUDA device for libml. In one launch, a kernel reads the fragments
// of requests over PCIe from slabs in pinned host memory, converts them, and writes
// the batch tensor to device memory.
//
// A batch takes these steps, all on its slot's stream:
//
//	Gather   (with Options.Copy in another way: copy.go)
//	         1. device.Order checks a private copy of each request's fragments
//	         2. write their descriptors to the slot's pinned memory
//	         3. one launch of the gather kernel (gather.cu), and those for pictures of
//	            other formats and sizes (pictures.go); an event after them
//	Pad      4. set the images up to the ladder's step to zero
//	Follow   5. wait for the last event of another slot's batch, if this one is
//	            queued behind it
//	         6. (the framework's work)
//	Fetch    7. copy the rows that are read to the results, in registered shared
//	            memory, by a kernel (collect.go)
//	         8. copy other outputs, by a kernel or, if they are large, by the copy
//	            engine; an event; then the stream writes the batch's number to a word
//	Done     9. check the word: a read of memory, no call into CUDA
//	Wait    10. sleep for most of the time that recent batches of this size took,
//	            then poll the word
//
// If a request has several tensors, the kernel sees the memory of all inputs as one image. Fragments are cut at
// the ends of tensors, and each part has its place in that memory (split).
//
// Slots 0 and 2 have the same tensors, and so have 1 and 3. If only one batch may be in flight, all have
// the same.
//
// The package builds without CUDA and without cgo; New then reports what is missing.
package gpu

import (
	"cmp"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/control/budget"
	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/shm"
)

// maxInFlight is how many batches may be in flight together: while one runs, the next
// one's packets cross PCIe.
const maxInFlight = 2

// Errors of a Device for invalid calls.
var (
	// errSlot is returned for a slot outside 0 .. device.Slots-1.
	errSlot = errors.New("no such slot")
	// errTensor is returned for a batch that is not aligned, does not lie in its
	// slot's input tensor, or does not fit it.
	errTensor = errors.New("batch does not fit its tensor")
	// ErrBusy is returned if a slot with work in flight should move.
	ErrBusy = errors.New("slot is in flight")
)

// Options choose the device and the kind of gather.
type Options struct {
	// Device is an argument of cuda.Find: "cuda", "cuda:1", a UUID or its beginning.
	Device string
	// Copy lets the CPU put the fragments of a batch together, and one copy bring
	// them to the device. Without it, the kernel reads them in host memory (copy.go).
	Copy bool
	// InFlight is how many batches may be in flight together, 1 or 2; 0 means 2. With 1, all slots
	// have the same tensors.
	InFlight int
	// LargestPicture is the max size in bytes of pictures whose format or size is not the card's; 0: there are none. With Copy
	// they are refused.
	LargestPicture int
}

// Device is a GPU. It implements device.Partitioned.
type Device struct {
	device   cuda.Device
	context  *cuda.Context
	in       models.Input
	places   []models.Part // of in
	kernel   *Kernel
	pictures *pictures // nil: only the card's
	control  []byte    // pinned; one line per slot, see slot.go
	slots    [device.Slots]slot

	inFlight int // batches

	copy    bool      // Options.Copy
	copiers []*copier // by slot; two slots with the same tensors share one

	slabs     [][]byte // registered, except for a copier's
	slabBytes []uint64
	shared    []byte       // registered
	memory    cuda.Pointer // of all tensors
	states    []byte       // pinned; nil: none
	images    int          // of the largest batch
	collector *collector   // nil: all rows are fetched

	lost atomic.Pointer[error] // the error with which the device was lost

	mu    sync.Mutex // guards the fields below, and the streams of slots while they move
	split *cuda.Split
	level budget.Level // of new streams; budget.Demoted until Prioritize
}

var (
	_ device.Partitioned = (*Device)(nil)
	_ device.Ordered     = (*Device)(nil)
)

// SharedBytes is how much shared memory Tensors needs: the outputs of the batches
// that may be in flight together.
func SharedBytes(sizes device.Sizes) int {
	n := 0
	for _, o := range sizes.Outputs {
		n += models.Aligned(o)
	}
	return maxInFlight * n
}

// New opens a device that gathers for an input. It creates a context, in 0.1 s,
// streams, and the kernel, which the driver compiles in 0.05 s. The caller must be
// locked to its thread, which New binds to the context. The error is cpu.ErrInput for
// an invalid input, and one of package cuda's if there is no driver or no such device.
func New(in models.Input, o Options) (_ *Device, err error) {
	found, err := cuda.Find(o.Device)
	if err != nil {
		return nil, fmt.Errorf("open GPU: %w", err)
	}
	d := &Device{device: found, in: in, places: in.Places(), copy: o.Copy, inFlight: min(cmp.Or(o.InFlight, maxInFlight), maxInFlight)}
	defer func() {
		if err != nil {
			err = d.fail("open GPU", err)
			if !errors.Is(err, device.ErrLost) { // on a lost device, freeing may block forever
				d.Close()
			}
		}
	}()
	if d.context, err = found.OpenContext(); err != nil {
		return nil, err
	}
	if err := d.Bind(); err != nil {
		return nil, err
	}
	if d.kernel, err = NewKernel(d.context, in); err != nil {
		return nil, err
	}
	if d.pictures, err = newPictures(d, o.LargestPicture); err != nil {
		return nil, err
	}
	if d.control, err = d.context.AllocateHost(device.Slots * controlBytes); err != nil {
		return nil, err
	}
	clear(d.control)
	whole := &place{}
	for i := range d.slots {
		if err := d.slots[i].open(d, i, whole); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// Name returns the GPU's UUID.
func (d *Device) Name() string { return d.device.UUID() }

// Kernel returns the name of the gather kernel that was chosen for the input.
func (d *Device) Kernel() string { return d.kernel.Name() }

// InFlight returns Options.InFlight.
func (d *Device) InFlight() int { return d.inFlight }

// Bind makes the context current on the calling thread. It also lets the operating
// system end the thread's naps on time (its timer slack is 50 µs otherwise).
func (d *Device) Bind() error {
	if err := d.context.Bind(); err != nil {
		return d.fail("bind", err)
	}
	const slack = time.Microsecond
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(slack), 0, 0, 0); err != nil {
		return fmt.Errorf("bind: set the thread's timer slack: %w", err)
	}
	return nil
}

// fail adds the failed operation to an error. The error becomes device.ErrLost if
// CUDA reports that nothing will work again. A driver that has lost a device reports
// it at the next call, whichever that is.
func (d *Device) fail(doing string, err error) error {
	if errors.Is(err, cuda.ErrLost) && !errors.Is(err, device.ErrLost) {
		err = fmt.Errorf("%w: %w", device.ErrLost, err)
		d.lost.CompareAndSwap(nil, &err)
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// AddSlab pins a slab, for reading only: 1 GiB takes about 20 ms on huge pages and
// ten times as long on small ones. There may be up to Slabs slabs. If the CPU
// gathers, AddSlab pins nothing.
func (d *Device) AddSlab(mem []byte) error {
	if d.copy {
		d.slabs, d.slabBytes = append(d.slabs, mem), append(d.slabBytes, uint64(len(mem)))
		return nil
	}
	at, err := d.context.Register(mem, true)
	if err != nil {
		return d.fail("add slab", err)
	}
	if err = d.kernel.AddSlab(at, len(mem)); err == nil && d.pictures != nil {
		err = d.pictures.gather.AddSlab(at, len(mem))
	}
	if err != nil {
		return errors.Join(err, d.context.Unregister(mem))
	}
	d.slabs, d.slabBytes = append(d.slabs, mem), append(d.slabBytes, uint64(len(mem)))
	return nil
}

// Tensors allocates input and outputs of InFlight batches in device memory. It lays out
// their results in shared, which it pins. It needs SharedBytes there, in complete
// pages or pages that belong to the caller. Errors are device.ErrShared and, wrapped,
// cuda.ErrOutOfMemory.
func (d *Device) Tensors(shared []byte, sizes device.Sizes) (_ []device.Tensors, err error) {
	need := SharedBytes(sizes)
	if len(shared) < need {
		return nil, fmt.Errorf("%w: %d bytes, the outputs of %d batches take %d", device.ErrShared, len(shared), maxInFlight, need)
	}
	switch {
	case d.memory != 0:
		return nil, errors.New("tensors are made once")
	case need > 0 && cuda.At(shared)%device.TensorAlign != 0:
		return nil, fmt.Errorf("%w: shared memory is not aligned to %d bytes", errTensor, device.TensorAlign)
	}
	defer func() {
		if err != nil {
			err = d.fail("make tensors", err)
		}
	}()
	results := need / maxInFlight // bytes per batch
	bytes := models.Aligned(sizes.Input) + results
	if d.memory, err = d.context.Allocate(max(1, d.inFlight*bytes)); err != nil {
		return nil, err
	}
	if need > 0 {
		if _, err := d.context.Register(shared[:need], false); err != nil {
			return nil, err
		}
		d.shared = shared[:need]
	}
	d.images = d.in.Images(sizes.Input)
	if d.copy {
		if err := d.makeCopiers(); err != nil {
			return nil, err
		}
	}

	if sizes.States > 0 {
		if d.states, err = d.context.AllocateHost(device.Slots * sizes.States); err != nil {
			return nil, err
		}
		clear(d.states)
	}
	if d.collector, err = newCollector(d, sizes.Selections); err != nil {
		return nil, err
	}

	tensors := make([]device.Tensors, device.Slots)
	for i := range tensors {
		n := i % d.inFlight
		memory := device.DeviceBuffer(uintptr(d.memory)+uintptr(n*bytes), bytes)
		if tensors[i], err = layTensors(memory, shared[n*results:(n+1)*results], sizes); err != nil {
			return nil, err
		}
		tensors[i].States = d.states[i*sizes.States:][:sizes.States:sizes.States]
		d.slots[i].collecting = d.collector.prepare(d, n, &tensors[i])
		if err := d.slots[i].prepare(d, tensors[i]); err != nil {
			return nil, err
		}
	}
	return tensors, nil
}

// layTensors lays out the tensors of a batch in device memory, and their results in shared memory.
func layTensors(memory device.Buffer, shared []byte, sizes device.Sizes) (t device.Tensors, err error) {
	laid, err := device.Lay(memory, append([]int{sizes.Input}, sizes.Outputs...)...)
	if err != nil {
		return t, err
	}
	results, err := device.Lay(device.HostBuffer(shared), sizes.Outputs...)
	if err != nil {
		return t, err
	}
	return device.Tensors{Input: laid[0], Outputs: laid[1:], Results: device.Bytes(results)}, nil
}

// makeCopiers gives each slot a copier. Slots with the same tensors share one.
func (d *Device) makeCopiers() error {
	for range d.inFlight {
		c, err := newCopier(d, d.images)
		if err != nil {
			return err
		}
		d.copiers = append(d.copiers, c)
	}
	for i := range d.slots {
		d.slots[i].copies = d.copiers[i%d.inFlight]
	}
	return nil
}

// Gather checks the requests and queues one launch for all of them, and those for pictures that are sampled. It allocates only
// if the requests have more fragments than any before.
func (d *Device) Gather(slot int, dst device.Buffer, reqs []device.Request, refused []bool) error {
	s, err := d.slot(slot)
	if err == nil {
		err = s.checkTensor(d, dst, len(reqs))
	}
	if err != nil {
		return fmt.Errorf("gather %d requests: %w", len(reqs), err)
	}
	if err := s.settle(); err != nil {
		return d.fail("gather", err)
	}
	if s.copies != nil {
		first, err := s.gatherByCopy(d, dst, reqs, refused)
		switch {
		case err != nil:
			return d.fail("gather", err)
		case first != nil:
			return first
		}
		return nil
	}
	s.descriptors.count = 0
	s.sampled.reset()
	var first *device.RequestError
	for i, req := range reqs {
		bad, err := s.describe(d, req, i)
		if errors.Is(err, errMemory) {
			return d.fail("gather", err)
		}
		if refused[i] = err != nil; err == nil {
			continue
		}
		if err := s.blank(d, dst, i, i+1); err != nil {
			return d.fail("gather", err)
		}
		if first == nil {
			first = &device.RequestError{Request: i, Fragment: bad, Err: err}
		}
	}
	if err := s.gather(d, dst, len(reqs)); err != nil {
		return d.fail("gather", err)
	}
	if first != nil {
		return first
	}
	return nil
}

// Pad queues the blanking of the images from, from+1, ... to-1.
func (d *Device) Pad(slot int, dst device.Buffer, from, to int) error {
	s, err := d.slot(slot)
	if err == nil && (from < 0 || to < from) {
		err = errTensor
	}
	if err == nil {
		err = s.checkTensor(d, dst, to)
	}
	if err != nil {
		return fmt.Errorf("pad images %d to %d: %w", from, to, err)
	}
	if from == to {
		return nil
	}
	if err := s.blank(d, dst, from, to); err != nil {
		return d.fail("pad", err)
	}
	if err := s.gathered.Record(s.stream); err != nil {
		return d.fail("pad", err)
	}
	return nil
}

// errFollow is returned if a batch of this device cannot wait for one of the other.
var errFollow = errors.New("batch cannot be queued behind that of another device")

// Follow queues a wait for the event after the other slot's last Fetch. Both devices must be open on the
// same GPU: they then have one context, and streams of it can wait for its events.
func (d *Device) Follow(slot int, other device.Ordered, otherSlot int) error {
	s, err := d.slot(slot)
	if err != nil {
		return fmt.Errorf("queue batch in slot %d: %w", slot, err)
	}
	before, ok := other.(*Device)
	if !ok || before.device != d.device || otherSlot < 0 || otherSlot >= len(before.slots) {
		return fmt.Errorf("queue batch in slot %d: %w", slot, errFollow)
	}
	if err := s.follow(&before.slots[otherSlot]); err != nil {
		return d.fail("queue batch", err)
	}
	return nil
}

// Fetch queues the copy of the first images' outputs, and the write of the word that
// Done and Wait read.
func (d *Device) Fetch(slot int, images int) error {
	s, err := d.slot(slot)
	if err == nil && (images < 0 || images > d.images) {
		err = fmt.Errorf("%w: the batch has %d", errTensor, d.images)
	}
	if err != nil {
		return fmt.Errorf("fetch outputs of %d images: %w", images, err)
	}
	if err := s.fetch(d, images); err != nil {
		return d.fail("fetch", err)
	}
	return nil
}

// Upload queues a copy to the slot's input.
func (d *Device) Upload(slot int, dst device.Buffer, data []byte) error {
	return d.copyTensor(slot, dst, device.HostBuffer(data))
}

// Download queues a copy of a part of the slot's outputs.
func (d *Device) Download(slot int, data []byte, src device.Buffer) error {
	return d.copyTensor(slot, device.HostBuffer(data), src)
}

func (d *Device) copyTensor(slot int, to, from device.Buffer) error {
	s, err := d.slot(slot)
	if err == nil && to.Len() != from.Len() {
		err = errTensor
	}
	if err != nil {
		return fmt.Errorf("copy %d bytes of a tensor to %d: %w", from.Len(), to.Len(), err)
	}
	s.work.queued, s.work.fenced = true, false
	if err := s.stream.Copy(at(to), at(from), to.Len()); err != nil {
		return d.fail("copy tensor", err)
	}
	return nil
}

// Done reads a word that the stream writes. About every millisecond it asks the
// driver whether the stream has failed, because a failed stream never writes it.
func (d *Device) Done(slot int) (bool, error) {
	s, err := d.slot(slot)
	if err != nil {
		return true, fmt.Errorf("query slot %d: %w", slot, err)
	}
	done, err := s.poll(shm.Now())
	if err != nil {
		return true, d.fail("query batch", err)
	}
	return done, nil
}

// Wait sleeps and polls until the stream has written the slot's word. inferred is the
// time between the events after the gather and after the outputs' copy; 0 if there
// was no gather or no Fetch. If the kernel rejected a descriptor, the error is
// ErrDescriptor.
func (d *Device) Wait(slot int) (inferred time.Duration, err error) {
	s, err := d.slot(slot)
	if err != nil {
		return 0, fmt.Errorf("wait for slot %d: %w", slot, err)
	}
	if inferred, err = s.wait(d); err != nil {
		return 0, d.fail("wait for batch", err)
	}
	return inferred, nil
}

// at returns the address of a buffer.
func at(b device.Buffer) cuda.Pointer { return cuda.Pointer(b.Address()) }

func (d *Device) slot(i int) (*slot, error) {
	if i < 0 || i >= len(d.slots) {
		return nil, errSlot
	}
	if lost := d.lost.Load(); lost != nil {
		return nil, *lost
	}
	return &d.slots[i], nil
}

// Close frees what New, AddSlab, Tensors and Repartition allocated. The caller must be
// locked to its thread, which is not bound to the context afterwards. Close continues
// after an error, because on a lost device nothing can be freed. It returns the first
// error.
func (d *Device) Close() error {
	var errs firstError
	if d.context != nil {
		errs.add(d.context.Bind())
	}
	for i := range d.slots {
		d.slots[i].close(d, &errs)
	}
	for _, c := range d.copiers {
		c.close(d, &errs)
	}
	d.copiers = nil
	d.pictures.close(d, &errs)
	d.pictures = nil
	if d.kernel != nil {
		errs.add(d.kernel.Close())
		d.kernel = nil
	}
	if d.memory != 0 {
		errs.add(d.context.Free(d.memory))
		d.memory = 0
	}
	for _, pinned := range []*[]byte{&d.control, &d.states} {
		if *pinned != nil {
			errs.add(d.context.FreeHost(*pinned))
			*pinned = nil
		}
	}
	d.collector.close(d, &errs)
	d.collector = nil
	for _, s := range d.slabs {
		if !d.copy {
			errs.add(d.context.Unregister(s))
		}
	}
	d.slabs, d.slabBytes = nil, nil
	if d.shared != nil {
		errs.add(d.context.Unregister(d.shared))
		d.shared = nil
	}
	if d.context != nil {
		errs.add(d.context.Close())
		d.context = nil
	}
	if errs.first != nil {
		return d.fail("close GPU", errs.first)
	}
	return nil
}

// firstError keeps the first error of many.
type firstError struct{ first error }

func (c *firstError) add(err error) {
	if c.first == nil {
		c.first = err
	}
}
