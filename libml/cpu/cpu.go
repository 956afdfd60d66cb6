// Package cpu is the default device: the CPU gathers. It reads slabs that are
// mapped into this process and writes tensors in shared memory.
//
// An image is written once and its slab bytes are read once. Gather puts the
// fragments in order, then converts them as one stream (types, layouts, channel
// order and normalisation fused). Pictures of another size or format than the card's are sampled. Gather is done when it returns, so Wait has
// nothing to wait for. The outputs are in shared memory, where the CPU reads
// them.
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
	in           models.Input
	places       []models.Part
	convert      kernel
	elementBytes int
	images       int // of the largest batch, from Tensors
	slabs        [][]byte
	slabBytes    []uint64
	slots        [device.Slots]workspace
}

// workspace is the memory of a slot's Gather, kept between calls. Workspaces are
// a cache line apart, because different threads use the slots.
type workspace struct {
	ordered []shm.Fragment
	at      cursor
	pictures
	_ [64]byte
}

var _ device.Device = (*Device)(nil)

// New returns a device that gathers for an input from slabs. The slabs must stay
// mapped until Close has returned; AddSlab adds more. The error for an invalid
// input wraps ErrInput.
func New(in models.Input, slabs [][]byte) (*Device, error) {
	k, err := newKernel(&in)
	if err != nil {
		return nil, err
	}
	d := &Device{in: in, places: in.Places(), convert: k, elementBytes: in.TensorType.Bytes()}
	for i := range d.slots {
		d.slots[i].in = &d.in
	}
	for _, s := range slabs {
		if err := d.AddSlab(s); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// Name returns "cpu".
func (d *Device) Name() string { return control.DeviceCPU }

// AddSlab registers a slab; see device.Device.
func (d *Device) AddSlab(mem []byte) error {
	const most = 1 << 16 // shm.Fragment.Slab is a u16
	if len(d.slabs) == most {
		return fmt.Errorf("add slab: already %d, which is the max", most)
	}
	d.slabs = append(d.slabs, mem)
	d.slabBytes = append(d.slabBytes, uint64(len(mem)))
	return nil
}

// Bind does nothing: any thread may call the device.
func (d *Device) Bind() error { return nil }

// InFlight returns 1: one batch keeps the function's CPUs busy.
func (d *Device) InFlight() int { return 1 }

// Tensors lays out input and outputs in shared, in that order and each aligned to
// device.TensorAlign. All slots get the same tensors. It needs
// models.Card.TensorBytes.
func (d *Device) Tensors(shared []byte, sizes device.Sizes) ([]device.Tensors, error) {
	laid, err := device.LayHost(shared, sizes)
	if err != nil {
		return nil, err
	}
	d.images = d.in.Images(sizes.Input)
	return slices.Repeat([]device.Tensors{laid}, device.Slots), nil
}

// errTensor is returned if a batch does not fit its tensor, or if the tensor is
// not aligned for its elements.
var errTensor = errors.New("tensor does not hold the batch")

// errSlot is returned for a slot outside 0 .. device.Slots-1.
var errSlot = errors.New("no such slot")

// Gather fills a batch tensor; see device.Device. It allocates only for an error,
// or when a request has more fragments than any before it in the slot.
func (d *Device) Gather(slot int, dst device.Buffer, reqs []device.Request, refused []bool) error {
	tensor := dst.Bytes()
	if err := d.check(slot, tensor, len(reqs)); err != nil {
		return fmt.Errorf("gather %d requests: %w", len(reqs), err)
	}
	w, first := &d.slots[slot], (*device.RequestError)(nil)
	for i, req := range reqs {
		bad, err := d.gather(w, tensor, i, req)
		refused[i] = err != nil
		if err == nil {
			continue
		}
		d.blank(tensor, i, i+1)
		if first == nil {
			first = &device.RequestError{Request: i, Fragment: bad, Err: err}
		}
	}
	if first != nil {
		return first
	}
	return nil
}

// blank clears the images from, from+1, ... to-1 of each input.
func (d *Device) blank(tensor []byte, from, to int) {
	for _, p := range d.places {
		clear(tensor[p.At+from*p.Bytes : p.At+to*p.Bytes])
	}
}

func (d *Device) gather(w *workspace, tensor []byte, i int, req device.Request) (bad int, err error) {
	picture, err := req.Sampled(&d.in)
	if err != nil {
		return -1, err
	}
	if w.ordered, bad, err = device.Order(w.ordered, req, d.slabBytes); err != nil {
		return bad, err
	}
	if len(d.in.Parts) > 0 {
		rows, _ := d.in.Missing(int(req.Bytes))
		for _, p := range w.ordered {
			put(tensor, d.places, i, rows, int(p.Place), d.slabs[p.Slab][p.Offset:p.Offset+uint64(p.Length)])
		}
		for _, p := range d.places {
			clear(tensor[p.At+(i+1)*p.Bytes-rows*p.Row : p.At+(i+1)*p.Bytes])
		}
		return -1, nil
	}
	size := d.places[0].Bytes
	image := tensor[i*size:][:size:size]
	if picture.Format != 0 {
		return -1, w.pictures.sample(image, picture, w.ordered, d.slabs)
	}
	w.at = cursor{}
	for _, p := range w.ordered {
		d.convert.feed(image, &w.at, d.slabs[p.Slab][p.Offset:p.Offset+uint64(p.Length)])
	}
	return -1, nil
}

// put copies a part of request i, which begins at place, to the inputs. The request has so many rows less than these.
func put(tensor []byte, places []models.Part, i, rows, place int, data []byte) {
	for _, p := range places {
		bytes := p.Bytes - rows*p.Row
		if place < bytes {
			n := copy(tensor[p.At+i*p.Bytes+place:p.At+i*p.Bytes+bytes], data)
			data, place = data[n:], place+n
		}
		if len(data) == 0 {
			return
		}
		place -= bytes
	}
}

// Pad blanks the images from, from+1, ... to-1.
func (d *Device) Pad(slot int, dst device.Buffer, from, to int) error {
	if from < 0 || to < from {
		return fmt.Errorf("pad images %d to %d: %w", from, to, errTensor)
	}
	tensor := dst.Bytes()
	if err := d.check(slot, tensor, to); err != nil {
		return fmt.Errorf("pad images %d to %d: %w", from, to, err)
	}
	d.blank(tensor, from, to)
	return nil
}

func (d *Device) check(slot int, dst []byte, images int) error {
	switch {
	case slot < 0 || slot >= len(d.slots):
		return errSlot
	case images > d.in.Images(len(dst)):
		return fmt.Errorf("%w: %d images take %d bytes, and there are %d", errTensor, images, d.in.BatchBytes(images), len(dst))
	case !aligned(dst, d.elementBytes):
		return fmt.Errorf("%w: not aligned to its elements' %d bytes", errTensor, d.elementBytes)
	}
	return nil
}

// Fetch does nothing: the framework's outputs are the results.
func (d *Device) Fetch(slot int, images int) error {
	switch {
	case slot < 0 || slot >= len(d.slots):
		return fmt.Errorf("fetch outputs of slot %d: %w", slot, errSlot)
	case images < 0 || images > d.images:
		return fmt.Errorf("fetch outputs of %d images: %w: the batch has %d", images, errTensor, d.images)
	}
	return nil
}

// Upload copies.
func (d *Device) Upload(slot int, dst device.Buffer, data []byte) error {
	return d.copy(slot, dst.Bytes(), data)
}

// Download copies.
func (d *Device) Download(slot int, data []byte, src device.Buffer) error {
	return d.copy(slot, data, src.Bytes())
}

func (d *Device) copy(slot int, to, from []byte) error {
	switch {
	case slot < 0 || slot >= len(d.slots):
		return fmt.Errorf("copy tensor of slot %d: %w", slot, errSlot)
	case len(to) != len(from):
		return fmt.Errorf("copy %d bytes of a tensor: %w: %d bytes", len(from), errTensor, len(to))
	}
	copy(to, from)
	return nil
}

// Done is always true: all work is done when its call returns.
func (d *Device) Done(slot int) (bool, error) {
	if slot < 0 || slot >= len(d.slots) {
		return true, fmt.Errorf("query slot %d: %w", slot, errSlot)
	}
	return true, nil
}

// Wait returns at once. It returns no duration: the host's clock has measured
// everything.
func (d *Device) Wait(slot int) (inferred time.Duration, err error) {
	if slot < 0 || slot >= len(d.slots) {
		return 0, fmt.Errorf("wait for slot %d: %w", slot, errSlot)
	}
	return 0, nil
}

// Close forgets the slabs, so that a late Gather returns an error and does not
// fault.
func (d *Device) Close() error {
	d.slabs, d.slabBytes = nil, nil
	return nil
}

// Direct converts one contiguous request, as Gather would. The reference, which
// runs a model in this process, prepares its inputs with it. dst has the memory of one image of
// each input.
func Direct(in models.Input, picture []byte, dst ...[]byte) error {
	k, err := newKernel(&in)
	switch {
	case err != nil:
		return err
	case len(picture) != in.WireBytes():
		return fmt.Errorf("convert picture of %d bytes: %w of %d", len(picture), device.ErrSize, in.WireBytes())
	case !slices.EqualFunc(dst, in.Places(), func(to []byte, p models.Part) bool { return len(to) == p.Bytes }):
		return fmt.Errorf("convert picture: %w: an image has %d bytes", errTensor, in.TensorBytes())
	case len(in.Parts) > 0:
		for _, to := range dst {
			picture = picture[copy(to, picture):]
		}
		return nil
	case !aligned(dst[0], in.TensorType.Bytes()):
		return fmt.Errorf("convert picture: %w: not aligned to its elements' %d bytes", errTensor, in.TensorType.Bytes())
	}
	var at cursor
	k.feed(dst[0], &at, picture)
	return nil
}
