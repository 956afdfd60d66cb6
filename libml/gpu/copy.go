package gpu

import (
	"cmp"

	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/shm"
)

// copier gathers without a kernel that reads host memory. The paper compares its gather
// with this method (3.3.2, Fig. 12):
//
//  1. The CPU puts the fragments together in pinned memory: picture after picture, or at their places in the
//     inputs if there are several.
//  2. One copy brings them to the device.
//  3. The gather kernel converts them there.
//
// So only the gather differs. If nothing needs conversion, the copy goes straight to the
// batch tensor, and step 3 is empty. Slots 0 and 2 share a copier, as do 1 and 3, because
// they share their tensors.
type copier struct {
	staged      []byte       // pinned
	target      cuda.Pointer // as many bytes on the device; 0 if the copy goes to the tensor
	descriptors []byte       // pinned: for all pictures, their places at on
	each        int          // descriptors per picture
}

// newCopier allocates memory for this many pictures.
func newCopier(d *Device, pictures int) (_ *copier, err error) {
	p := &d.kernel.plan
	c := &copier{each: (p.wireBytes + FragmentBytes - 1) / FragmentBytes}
	defer func() {
		if err != nil {
			var errs firstError
			c.close(d, &errs)
		}
	}()
	bytes := max(1, d.stagedBytes(pictures))
	if c.staged, err = d.context.AllocateHost(bytes); err != nil {
		return nil, err
	}
	if p.kernel == copyKernel {
		return c, nil
	}
	if c.target, err = d.context.Allocate(bytes); err != nil {
		return nil, err
	}
	if c.descriptors, err = d.context.AllocateHost(max(1, pictures*c.each) * DescriptorBytes); err != nil {
		return nil, err
	}
	slab := len(d.kernel.slabs)
	if err := d.kernel.AddSlab(c.target, bytes); err != nil {
		return nil, err
	}
	room := c.descriptors
	for i := range pictures {
		// FragmentBytes is a multiple of elements and of pixels with three channels.
		for place := 0; place < p.wireBytes; place += FragmentBytes {
			put(room, uint64(slab), uint64(i*p.wireBytes+place), uint64(place), uint64(min(FragmentBytes, p.wireBytes-place)), uint64(i))
			room = room[DescriptorBytes:]
		}
	}
	return c, nil
}

func (c *copier) close(d *Device, errs *firstError) {
	for _, m := range [][]byte{c.staged, c.descriptors} {
		if m != nil {
			errs.add(d.context.FreeHost(m))
		}
	}
	if c.target != 0 {
		errs.add(d.context.Free(c.target))
	}
	*c = copier{}
}

// gatherByCopy is Gather with a copier.
func (s *slot) gatherByCopy(d *Device, dst device.Buffer, reqs []device.Request, refused []bool) (first *device.RequestError, err error) {
	taken := 0
	for i, req := range reqs {
		bad, err := s.stage(d, req, i)
		refused[i] = err != nil
		if err == nil {
			taken++
		} else if first == nil {
			first = &device.RequestError{Request: i, Fragment: bad, Err: err}
		}
	}
	s.work.queued, s.work.fenced = true, false
	if taken > 0 {
		if err := s.copyAndConvert(d, at(dst), len(reqs)); err != nil {
			return nil, err
		}
	}
	for i := range reqs {
		if refused[i] {
			if err := s.blank(d, dst, i, i+1); err != nil {
				return nil, err
			}
		}
	}
	if err := s.gathered.Record(s.stream); err != nil {
		return nil, err
	}
	s.work.measured = 1
	return first, nil
}

// stage checks a request's fragments and then puts them together.
func (s *slot) stage(d *Device, req device.Request, picture int) (bad int, err error) {
	size := d.kernel.plan.wireBytes
	if picture, err := req.Sampled(&d.in); err != nil || picture.Format != 0 {
		return -1, cmp.Or(err, errOwnPicture)
	}
	if s.ordered, bad, err = device.Order(s.ordered, req, d.slabBytes); err != nil {
		return bad, err
	}
	to, fragments := s.copies.staged[picture*size:], s.ordered
	if len(d.places) > 1 {
		s.parts = split(s.parts, s.ordered, d.places, picture)
		to, fragments = s.copies.staged, s.parts
	}
	for i := range fragments {
		p := &fragments[i]
		copy(to[p.Place:], bytesOf(d.slabs, p))
	}
	return -1, nil
}

// bytesOf returns the bytes of a checked fragment.
func bytesOf(slabs [][]byte, p *shm.Fragment) []byte {
	return slabs[p.Slab][p.Offset : p.Offset+uint64(p.Length)]
}

// stagedBytes is the size of pictures that are put together: that of their inputs if there are several.
func (d *Device) stagedBytes(pictures int) int {
	if len(d.places) > 1 {
		return d.in.BatchBytes(pictures)
	}
	return pictures * d.kernel.plan.wireBytes
}

// copyAndConvert queues the copy and the conversion.
func (s *slot) copyAndConvert(d *Device, dst cuda.Pointer, pictures int) error {
	c, bytes := s.copies, d.stagedBytes(pictures)
	if c.target == 0 {
		return s.stream.Copy(dst, cuda.At(c.staged), bytes)
	}
	if err := s.stream.Copy(c.target, cuda.At(c.staged), bytes); err != nil {
		return err
	}
	return s.launch.Gather(s.stream, cuda.At(c.descriptors), pictures*c.each, dst, pictures)
}
