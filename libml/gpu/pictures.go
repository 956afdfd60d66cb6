package gpu

import (
	"fmt"
	"math"

	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/models/sampling"
	"github.com/penstock/penstock/wire"
)

// pictures samples pictures whose format or size is not the card's. A slot's stream does this for its batch:
//
//  1. The kernel gather_copy puts pictures, as they are, into a room in device memory, until it is full.
//  2. The kernel sample makes their images.
//  3. 1 and 2 for the next pictures, if there are more.
//
// The size of a room does not depend on that of a batch. Slots with the same tensors share a room.
type pictures struct {
	gather *Kernel // its image is the room
	module *module
	sample cuda.Function
	head   samplingHead
	memory cuda.Pointer // of the rooms
	room   int          // bytes
}

// minRoom has ten pictures of 1920 x 1080 in NV12. A batch in more rooms pays 10 µs for each.
const minRoom = 32 << 20

// RoomBytes is how much device memory a batch in flight takes for pictures of other formats and sizes than the card's. The
// largest has this many bytes; 0: there are none.
func RoomBytes(in *models.Input, largest int) int {
	if largest == 0 || !in.IsPicture() {
		return 0
	}
	return models.Aligned(max(largest, minRoom))
}

// newPictures loads the kernels and allocates the rooms. It returns nil if the device takes only the card's pictures.
func newPictures(d *Device, largest int) (_ *pictures, err error) {
	room := RoomBytes(&d.in, largest)
	if room == 0 || d.copy {
		return nil, nil
	}
	p := &pictures{room: room, head: newSamplingHead(&d.in)}
	defer func() {
		if err != nil {
			p.close(d, &firstError{})
		}
	}()
	bytes := models.Input{Height: 1, Width: room, Channels: 1, WireType: models.U8, WireLayout: models.HWC, TensorType: models.U8, TensorLayout: models.HWC}
	if p.gather, err = newKernel(d.context, bytes, copyKernel); err != nil {
		return nil, err
	}
	if p.module, err = loadModule(d.context, "sample"); err != nil {
		return nil, err
	}
	if p.sample, err = p.module.Function("sample"); err != nil {
		return nil, err
	}
	p.memory, err = d.context.Allocate(d.inFlight * room)
	return p, err
}

func (p *pictures) close(d *Device, errs *firstError) {
	if p == nil {
		return
	}
	if p.memory != 0 {
		errs.add(d.context.Free(p.memory))
	}
	if p.module != nil {
		errs.add(p.module.release())
	}
	if p.gather != nil {
		errs.add(p.gather.Close())
	}
}

// sampledBatch is the pictures of a slot's batch that are sampled.
type sampledBatch struct {
	gather      *Launch
	args        *cuda.Args
	room        cuda.Pointer
	used        int // of the room, by the pictures since it was full
	descriptors list
	pictures    []sampledPicture
}

type sampledPicture struct {
	samplingPicture
	end int // of its descriptors
}

// newSampled prepares the launches of the i-th batch in flight.
func (p *pictures) newSampled(i int, fault cuda.Pointer) (s sampledBatch) {
	if p != nil {
		s.gather, s.args, s.room = p.gather.NewLaunch(fault), cuda.NewArgs(samplingBytes), p.memory+cuda.Pointer(i*p.room)
		samplingOf(s.args).samplingHead = p.head
	}
	return s
}

// errOwnPicture is returned if the device does not sample.
var errOwnPicture = fmt.Errorf("%w: on this device its format and size must be those of the card", device.ErrPicture)

// reset begins another batch.
func (s *sampledBatch) reset() { s.used, s.descriptors.count, s.pictures = 0, 0, s.pictures[:0] }

// describePicture is describe for a picture that is sampled.
func (s *slot) describePicture(d *Device, req device.Request, picture wire.Picture, image int) (bad int, err error) {
	p, bytes := d.pictures, int(req.Bytes)
	switch {
	case p == nil:
		return -1, errOwnPicture
	case bytes > p.room:
		return -1, fmt.Errorf("%w: it has %d bytes, want at most %d", device.ErrPicture, bytes, p.room)
	}
	place := s.sampled.used
	if place+bytes > p.room {
		place = 0
	}
	region := sampling.Fit(&d.in, picture.Width, picture.Height)
	described, err := newSamplingPicture(&d.in, picture, region, s.sampled.room+cuda.Pointer(place), image)
	if err != nil {
		return -1, fmt.Errorf("%w: %w", device.ErrPicture, err)
	}
	if bad, err = s.put(d, &s.sampled.descriptors, req, 0, place); err != nil {
		return bad, err
	}
	s.sampled.pictures = append(s.sampled.pictures, sampledPicture{described, s.sampled.descriptors.count})
	s.sampled.used = place + models.Aligned(bytes)
	return -1, nil
}

// sample queues the kernels for the described pictures.
func (s *slot) sample(d *Device, dst cuda.Pointer) error {
	list, all := &s.sampled, s.sampled.pictures
	for begin, from := 0, 0; begin < len(all); {
		end := begin + 1
		for end < len(all) && all[end].At != uint64(list.room) {
			end++
		}
		to := all[end-1].end
		if err := list.gather.Gather(s.stream, cuda.At(list.descriptors.memory[from*DescriptorBytes:]), to-from, list.room, 1); err != nil {
			return err
		}
		for begin < end {
			n := min(end-begin, samplingPictures, max(1, maxResults/(d.in.Width*d.in.Height)))
			if err := d.pictures.launch(s.stream, list.args, dst, all[begin:begin+n]); err != nil {
				return err
			}
			begin += n
		}
		from = to
	}
	return nil
}

// maxResults is the max number of pixels of a launch's images: the kernel counts them in 32 bits.
const maxResults = math.MaxInt32

// launch queues the sampling of pictures.
func (p *pictures) launch(stream cuda.Stream, args *cuda.Args, dst cuda.Pointer, list []sampledPicture) error {
	const block = warps * 32
	b := samplingOf(args)
	b.Tensor, b.Pictures = uint64(dst), uint32(len(list))
	for i := range list {
		b.Picture[i] = list[i].samplingPicture
	}
	results := b.Pictures * b.Width * b.Height
	return p.sample.Launch([3]uint32{(results + block - 1) / block, 1, 1}, [3]uint32{block, 1, 1}, 0, stream, args)
}
