// Package cpu is the device of the embedded default: the CPU gathers, from
// slabs that are mapped into this process, into tensors in shared memory.
//
// An image is written once and its slab bytes are read once: pieces are put in
// order, then converted as one stream (types, layouts, channel order and
// normalisation fused). Gather is done when it returns; Wait has nothing to wait
// for, and the outputs are in shared memory, where the CPU reads them.
//
// Elements wider than a byte are little-endian in pictures and in the machine's
// order in tensors.
package cpu

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/shm"
)

// Device gathers on the calling goroutine. It implements device.Device.
type Device struct {
	convert               kernel
	wireBytes, imageBytes int
	elementBytes          int
	images                int // of the largest batch, from Tensors
	slabs                 [][]byte
	slabBytes             []uint64
	slots                 [device.Slots]workspace
}

// workspace is what a slot's Gather needs and keeps; apart by a cache line, for
// slots are used from different threads.
type workspace struct {
	ordered []shm.Piece
	at      cursor
	_       [64]byte
}

var _ device.Device = (*Device)(nil)

// New makes a device that gathers for an input from slabs, which are mapped
// until Close has returned; AddSlab adds more. It returns an error that wraps
// ErrInput when the input makes no sense.
func New(in models.Input, slabs [][]byte) (*Device, error) {
	k, err := newKernel(&in)
	if err != nil {
		return nil, err
	}
	d := &Device{convert: k, wireBytes: in.WireBytes(), imageBytes: in.TensorBytes(), elementBytes: in.TensorType.Bytes()}
	for _, s := range slabs {
		if err := d.AddSlab(s); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// Name is "cpu".
func (d *Device) Name() string { return control.DeviceCPU }

// AddSlab makes a slab known; see device.Device.
func (d *Device) AddSlab(mem []byte) error {
	const most = 1 << 16 // Piece.Slab is a u16
	if len(d.slabs) == most {
		return fmt.Errorf("add slab: there are %d already", most)
	}
	d.slabs = append(d.slabs, mem)
	d.slabBytes = append(d.slabBytes, uint64(len(mem)))
	return nil
}

// Bind has nothing to bind: any thread may call.
func (d *Device) Bind() error { return nil }

// InFlight is 1: a batch keeps the CPUs busy that the function has.
func (d *Device) InFlight() int { return 1 }

// Tensors lays input and outputs out in shared, in that order and each aligned to
// device.TensorAlign: all slots have the same. It needs models.Card.TensorBytes.
func (d *Device) Tensors(shared []byte, sizes device.Sizes) ([]device.Tensors, error) {
	laid, err := device.Lay(shared, append([]int{sizes.Input}, sizes.Outputs...)...)
	if err != nil {
		return nil, err
	}
	d.images = sizes.Input / d.imageBytes
	return slices.Repeat([]device.Tensors{{Input: laid[0], Outputs: laid[1:], Results: laid[1:]}}, device.Slots), nil
}

// errTensor is returned when a batch does not fit the tensor it should go to, or
// the tensor is not aligned for its elements.
var errTensor = errors.New("tensor does not hold the batch")

// errSlot is returned for a slot outside 0 .. device.Slots-1.
var errSlot = errors.New("no such slot")

// Gather fills a batch tensor; see device.Device. It allocates only when a
// request has more pieces than any before it in the slot, and for its error.
func (d *Device) Gather(slot int, dst []byte, reqs []device.Request, refused []bool) error {
	if err := d.check(slot, dst, len(reqs)); err != nil {
		return fmt.Errorf("gather %d requests: %w", len(reqs), err)
	}
	w, first := &d.slots[slot], (*device.RequestError)(nil)
	for i, req := range reqs {
		image := dst[i*d.imageBytes:][:d.imageBytes:d.imageBytes]
		bad, err := d.gather(w, image, req)
		refused[i] = err != nil
		if err == nil {
			continue
		}
		clear(image)
		if first == nil {
			first = &device.RequestError{Request: i, Piece: bad, Err: err}
		}
	}
	if first != nil {
		return first
	}
	return nil
}

func (d *Device) gather(w *workspace, image []byte, req device.Request) (bad int, err error) {
	if uint64(req.Bytes) != uint64(d.wireBytes) {
		return -1, device.ErrSize
	}
	if w.ordered, bad, err = device.Order(w.ordered, req, d.slabBytes); err != nil {
		return bad, err
	}
	w.at = cursor{}
	for _, p := range w.ordered {
		d.convert.feed(image, &w.at, d.slabs[p.Slab][p.Offset:p.Offset+uint64(p.Length)])
	}
	return -1, nil
}

// Pad blanks images from up to, not including, to.
func (d *Device) Pad(slot int, dst []byte, from, to int) error {
	if from < 0 || to < from {
		return fmt.Errorf("pad images %d to %d: %w", from, to, errTensor)
	}
	if err := d.check(slot, dst, to); err != nil {
		return fmt.Errorf("pad images %d to %d: %w", from, to, err)
	}
	clear(dst[from*d.imageBytes : to*d.imageBytes])
	return nil
}

func (d *Device) check(slot int, dst []byte, images int) error {
	switch {
	case slot < 0 || slot >= len(d.slots):
		return errSlot
	case images > len(dst)/d.imageBytes:
		return fmt.Errorf("%w: %d images of %d bytes, %d bytes", errTensor, images, d.imageBytes, len(dst))
	case !aligned(dst, d.elementBytes):
		return fmt.Errorf("%w: not aligned to its elements' %d bytes", errTensor, d.elementBytes)
	}
	return nil
}

// Fetch has nothing to do: the framework's outputs are the results.
func (d *Device) Fetch(slot int, images int) error {
	switch {
	case slot < 0 || slot >= len(d.slots):
		return fmt.Errorf("fetch outputs of slot %d: %w", slot, errSlot)
	case images < 0 || images > d.images:
		return fmt.Errorf("fetch outputs of %d images: %w: it has %d", images, errTensor, d.images)
	}
	return nil
}

// Done is always true: what was asked was done when the call returned.
func (d *Device) Done(slot int) (bool, error) {
	if slot < 0 || slot >= len(d.slots) {
		return true, fmt.Errorf("look at slot %d: %w", slot, errSlot)
	}
	return true, nil
}

// Wait returns at once; the host's clock has measured all there is.
func (d *Device) Wait(slot int) (inferred time.Duration, err error) {
	if slot < 0 || slot >= len(d.slots) {
		return 0, fmt.Errorf("wait for slot %d: %w", slot, errSlot)
	}
	return 0, nil
}

// Close forgets the slabs, so that a late Gather is refused, not a fault.
func (d *Device) Close() error {
	d.slabs, d.slabBytes = nil, nil
	return nil
}

// Direct converts one picture that lies in one run, as Gather would: the
// reference that runs a model in process prepares its input with it. dst holds
// one image.
func Direct(in models.Input, picture, dst []byte) error {
	k, err := newKernel(&in)
	switch {
	case err != nil:
		return err
	case len(picture) != in.WireBytes():
		return fmt.Errorf("convert picture of %d bytes: %w of %d", len(picture), device.ErrSize, in.WireBytes())
	case len(dst) != in.TensorBytes():
		return fmt.Errorf("convert picture to %d bytes: %w: an image has %d", len(dst), errTensor, in.TensorBytes())
	case !aligned(dst, in.TensorType.Bytes()):
		return fmt.Errorf("convert picture: %w: not aligned to its elements' %d bytes", errTensor, in.TensorType.Bytes())
	}
	var at cursor
	k.feed(dst, &at, picture)
	return nil
}
