package gpu

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"

	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/shm"
)

// These constants must match gather.cu.
const (
	// Slabs is the maximum number of slabs of a device.
	Slabs = 32
	// FragmentBytes is the maximum length of a descriptor's fragment: a warp's tile, less
	// the loss for an address that is not aligned. Longer fragments are cut.
	FragmentBytes = 2048 - 128
	// DescriptorBytes is the size of a descriptor in memory.
	DescriptorBytes = 16
	warps           = 8  // of a block
	lineBytes       = 16 // of a thread's load

	// Offsets in Batch, the kernel's one parameter.
	atDescriptors = 0
	atTensor      = 8
	atFault       = 16
	atChannels    = 24
	atCount       = 32
	atImages      = 36
	atWireBytes   = 40
	atElements    = 44
	atChannelsN   = 48
	atPixels      = 52
	atStride      = 56
	atPlanar      = 60
	atNormalise   = 64
	atMagic       = 68
	atShift       = 72
	atSlabsN      = 76
	atSlabs       = 80
	slabBytes     = 16
	atThree       = atSlabs + Slabs*slabBytes
	channelBytes  = 16
	batchBytes    = atThree + 3*channelBytes

	// fetchParts is the maximum number of parts that Launch.Fetch copies.
	fetchParts = 32
	// Offsets in Fetch, the parameter of the kernel of that name.
	atFrom     = 0
	atTo       = atFrom + 8*fetchParts
	atBytes    = atTo + 8*fetchParts
	atParts    = atBytes + 8*fetchParts
	fetchBytes = atParts + 8
)

// Descriptor is the kernel's description of one fragment. The fragments of an
// image come together, in order of place.
type Descriptor struct {
	Slab   uint16
	Offset uint64 // in the slab; 48 bits
	Place  uint32 // in the request
	Length uint16 // 1 to FragmentBytes
	Image  uint16
}

// Put writes the descriptor, DescriptorBytes long.
func (d Descriptor) Put(to []byte) {
	put(to, uint64(d.Slab), d.Offset, uint64(d.Place), uint64(d.Length), uint64(d.Image))
}

// put is Put for numbers in registers. A Descriptor would go through memory, in
// halves, for which a processor waits five times as long as for the rest.
func put(to []byte, slab, offset, place, length, image uint64) {
	to = to[:DescriptorBytes]
	binary.LittleEndian.PutUint64(to, slab<<48|offset)
	binary.LittleEndian.PutUint64(to[8:], image<<48|length<<32|place)
}

// cut writes descriptors for fragments in order, from index n of memory on. The request begins at a place of an image. cut
// returns the index after the last; ok is false if memory is too small.
func cut(memory []byte, n int, fragments []shm.Fragment, image, begin int) (next int, ok bool) {
	for i := range fragments {
		if n, ok = cutOne(memory, n, fragments[i], image, begin); !ok {
			return n, false
		}
	}
	return n, true
}

// cutOne writes one fragment's descriptors. It cuts a long fragment only between elements
// and pixels. An element of a picture has 1, 2 or 4 bytes. A pixel of three channels has 3, 6 or 12.
func cutOne(memory []byte, n int, p shm.Fragment, image, begin int) (next int, ok bool) {
	const whole = 12
	offset, place, left := p.Offset, p.Place, int(p.Length)
	for left > 0 {
		length := left
		if left > FragmentBytes {
			length = FragmentBytes - int(place%whole)
		}
		if len(memory) < (n+1)*DescriptorBytes {
			return n, false
		}
		put(memory[n*DescriptorBytes:], uint64(p.Slab), offset, uint64(begin)+uint64(place), uint64(length), uint64(image))
		n++
		offset, place, left = offset+uint64(length), place+uint32(length), left-length
	}
	return n, true
}

// straight does device.Order and cut in one pass, and reads each fragment once. It is
// for requests whose fragments are valid, in order, and short enough, as nearly all are.
// For others, and if memory is too small, ok is false; some descriptors may then have
// been written.
func straight(memory []byte, n int, req device.Request, image, begin int, slabBytes []uint64) (next int, ok bool) {
	place, whole := uint64(0), uint64(req.Bytes)
	room := memory[min(len(memory), n*DescriptorBytes):]
	for i := range req.Fragments {
		p := &req.Fragments[i]
		slab, offset, length := uint64(p.Slab), p.Offset, uint64(p.Length)
		if uint64(p.Place) != place || length-1 >= FragmentBytes || place+length > whole || slab >= uint64(len(slabBytes)) || len(room) < DescriptorBytes {
			return n, false
		}
		if size := slabBytes[slab]; length > size || offset > size-length {
			return n, false
		}
		put(room, slab, offset, uint64(begin)+place, length, uint64(image))
		room = room[DescriptorBytes:]
		n++
		place += length
	}
	return n, place == whole
}

// Reasons of the kernel to leave out a descriptor, indexed by gather.cu's BAD_...
// constants.
var faultReasons = []error{
	errors.New("for an unknown reason"),
	errors.New("its slab is unknown"),
	fmt.Errorf("it is not 1 to %d bytes long", FragmentBytes),
	errors.New("it reaches outside its slab"),
	errors.New("it reaches outside its request"),
	errors.New("its image is not in the tensor"),
	errors.New("an element is cut, and its other part is not in the next fragment"),
}

// ErrDescriptor is returned if the kernel got an invalid descriptor. The host checks
// descriptors before, so this is an error in the host's code.
var ErrDescriptor = errors.New("the gather kernel skipped a fragment")

// FaultError decodes a fault word of the kernel; it returns nil for 0.
func FaultError(word uint64) error {
	if word == 0 {
		return nil
	}
	why, index := word>>32, uint32(word)
	if why >= uint64(len(faultReasons)) {
		why = 0
	}
	return fmt.Errorf("%w: number %d: %w", ErrDescriptor, index, faultReasons[why])
}

// plan is the conversion of a picture, computed once.
type plan struct {
	kernel     string
	imageBytes int
	wireBytes  int
	batch      [batchBytes]byte // all except what a launch sets
	channels   []byte           // of every channel, in the kernel's format
}

// newPlan makes a plan for an input that libml/cpu accepts.
func newPlan(in *models.Input) plan {
	pixels := in.Height * in.Width
	p := plan{kernel: kernelOf(in), imageBytes: in.TensorBytes(), wireBytes: in.WireBytes(), channels: make([]byte, in.Channels*channelBytes)}
	put := binary.LittleEndian.PutUint32
	flag := func(at int, set bool) {
		if set {
			put(p.batch[at:], 1)
		}
	}
	stride, divisor := 1, in.Channels
	if in.TensorLayout == models.HWC {
		stride = in.Channels
	}
	if in.WireLayout == models.CHW {
		divisor = pixels
	}
	magic, shift := division(uint32(divisor))
	put(p.batch[atWireBytes:], uint32(p.wireBytes))
	put(p.batch[atElements:], uint32(pixels*in.Channels))
	put(p.batch[atChannelsN:], uint32(in.Channels))
	put(p.batch[atPixels:], uint32(pixels))
	put(p.batch[atStride:], uint32(stride))
	flag(atPlanar, in.WireLayout == models.CHW)
	put(p.batch[atMagic:], magic)
	put(p.batch[atShift:], shift)
	how := uint32(noNormalisation)
	if len(in.Mean) > 0 {
		how = divide
		if in.WireType == models.U8 {
			how = multiply
		}
	}
	for c := range in.Channels {
		to := c
		if in.ReverseChannels {
			to = in.Channels - 1 - c
		}
		base := to
		if in.TensorLayout == models.CHW {
			base = to * pixels
		}
		channel := p.channels[c*channelBytes:]
		put(channel, uint32(base))
		if len(in.Mean) > 0 {
			put(channel[4:], floatBits(in.Mean[to]))
			put(channel[8:], floatBits(in.Std[to]))
			inverse, ok := byMultiplying(in.Mean[to], in.Std[to])
			put(channel[12:], floatBits(inverse))
			if !ok {
				how = divide
			}
		}
	}
	put(p.batch[atNormalise:], how)
	copy(p.batch[atThree:], p.channels)
	return p
}

// copyKernel is for inputs without conversion: the tensor's bits are the wire's, in
// the same places.
const copyKernel = "gather_copy"

// kernelOf names the fastest kernel for an input.
func kernelOf(in *models.Input) string {
	switch {
	case in.WireType == in.TensorType && len(in.Mean) == 0 &&
		(in.Channels == 1 || in.WireLayout == in.TensorLayout && !in.ReverseChannels):
		return copyKernel
	case in.WireType == models.U8 && in.WireLayout == models.HWC && in.Channels == 3 && in.Height*in.Width%4 == 0:
		if in.TensorLayout == models.CHW {
			return "gather_three_" + string(in.TensorType) + "_planes"
		}
		return "gather_three_" + string(in.TensorType) + "_pixels"
	}
	return anyKernel(in)
}

// anyKernel names the kernel that takes every input of these types.
func anyKernel(in *models.Input) string {
	return "gather_any_" + string(in.WireType) + "_" + string(in.TensorType)
}

// division returns factors for e / d as e * magic >> shift, in 64 bits. e is below
// 2^31, and d is 1 to 2^31. With l = ceil(log2 d), magic is 2^(31+l) / d rounded up.
// So magic * d is too large by less than d, which is at most 2^l. Times e, the excess
// is below 2^(31+l), too little to reach the next quotient. magic is below 2^32.
func division(d uint32) (magic, shift uint32) {
	l := uint32(bits.Len32(d - 1))
	return uint32((uint64(1)<<(31+l) + uint64(d) - 1) / uint64(d)), 31 + l
}

// setSlab adds a slab to a batch's parameters.
func setSlab(batch []byte, i int, at cuda.Pointer, bytes int) {
	slab := batch[atSlabs+i*slabBytes:]
	binary.LittleEndian.PutUint64(slab, uint64(at))
	binary.LittleEndian.PutUint64(slab[8:], uint64(bytes))
	binary.LittleEndian.PutUint32(batch[atSlabsN:], uint32(i+1))
}
