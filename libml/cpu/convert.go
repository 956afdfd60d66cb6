package cpu

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/wire"
)

// A picture is converted as a stream. Its bytes come in the wire's order, cut
// anywhere (between channels, inside a float). A cursor remembers the last cut.
// So no fragment costs a division, and a fragment may have any length.

// cursor is the position up to which a picture has been converted. If the
// tensor's order is the wire's, a kernel counts only in pixel, in elements or
// bytes.
type cursor struct {
	pixel, channel int // of the next wire element
	part           [4]byte
	parts          int // bytes in part, of a wire element that was cut
}

// kernel converts the next bytes of a picture to an image. It may assume that
// src does not go beyond the picture's end and that dst is one complete image.
type kernel interface {
	feed(dst []byte, at *cursor, src []byte)
}

// ErrInput is returned for a models.Input that a device cannot gather.
var ErrInput = errors.New("input cannot be gathered")

// newKernel returns the fastest kernel for an input.
func newKernel(in *models.Input) (kernel, error) {
	if err := check(in); err != nil {
		return nil, err
	}
	p := newPlan(in)
	if p.flat && !p.normalise && in.WireType == in.TensorType {
		return copyKernel{}, nil
	}
	switch in.TensorType.Bytes() {
	case 1:
		return newKernelOf[uint8](in, p), nil
	case 2:
		return newKernelOf[uint16](in, p), nil
	default:
		return newKernelOf[uint32](in, p), nil
	}
}

func newKernelOf[E element](in *models.Input, p plan) kernel {
	if in.WireType == models.U8 {
		return newTableKernel[E](p)
	}
	k := &floatKernel[E]{plan: p, from: in.WireType, size: in.WireType.Bytes()}
	if k.from == k.to && k.size == models.F32.Bytes() && !k.normalise {
		k.from, k.to = models.F32, models.F32 // all bits stay: an f32 has not all integers of 32 bits
	}
	return k
}

// check rejects inputs that newKernel cannot build. A picture's size is limited because
// device.Request.Bytes and shm.Fragment.Place are u32.
func check(in *models.Input) error {
	switch {
	case !slices.Contains(models.PictureTypes, string(in.WireType)):
		return fmt.Errorf("%w: wire type %q", ErrInput, in.WireType)
	case !slices.Contains(models.PictureTypes, string(in.TensorType)):
		return fmt.Errorf("%w: tensor type %q", ErrInput, in.TensorType)
	case in.WireLayout != models.HWC && in.WireLayout != models.CHW:
		return fmt.Errorf("%w: wire layout %q", ErrInput, in.WireLayout)
	case in.TensorLayout != models.HWC && in.TensorLayout != models.CHW:
		return fmt.Errorf("%w: tensor layout %q", ErrInput, in.TensorLayout)
	case in.Height < 1 || in.Width < 1 || in.Channels < 1:
		return fmt.Errorf("%w: %d x %d, %d channels", ErrInput, in.Height, in.Width, in.Channels)
	case float64(in.Height)*float64(in.Width)*float64(in.Channels)*4 > math.MaxUint32:
		return fmt.Errorf("%w: %d x %d, %d channels is more than 4 GiB", ErrInput, in.Height, in.Width, in.Channels)
	case len(in.Mean) != len(in.Std) || len(in.Mean) != 0 && len(in.Mean) != in.Channels:
		return fmt.Errorf("%w: %d means and %d standard deviations for %d channels", ErrInput, len(in.Mean), len(in.Std), in.Channels)
	}
	for c, m := range in.Mean {
		if math.IsNaN(float64(m)) || math.IsInf(float64(m), 0) {
			return fmt.Errorf("%w: mean %v of channel %d", ErrInput, m, c)
		}
	}
	for c, s := range in.Std {
		if !(s > 0) || math.IsInf(float64(s), 0) {
			return fmt.Errorf("%w: standard deviation %v of channel %d", ErrInput, s, c)
		}
	}
	return nil
}

// plan maps wire elements to tensor elements: channel c of pixel p goes to
// base[c] + p*stride. All slices are indexed by the wire's channel.
type plan struct {
	pixels, channels int
	to               models.DType
	planar           bool // the wire is CHW
	base             []int
	stride           int
	normalise        bool
	mean, std        []float32
	// flat: the tensor's order is the wire's.
	flat bool
	// uniform: all channels have the same normalisation.
	uniform bool
}

func newPlan(in *models.Input) plan {
	p := plan{
		pixels: in.Height * in.Width, channels: in.Channels, to: in.TensorType,
		planar:    in.WireLayout == models.CHW,
		base:      make([]int, in.Channels),
		normalise: len(in.Mean) > 0,
		mean:      make([]float32, in.Channels), std: make([]float32, in.Channels),
		flat:    in.Channels == 1 || in.WireLayout == in.TensorLayout && !in.ReverseChannels,
		uniform: true,
	}
	for c := range in.Channels {
		to := c
		if in.ReverseChannels {
			to = in.Channels - 1 - c
		}
		if in.TensorLayout == models.CHW {
			p.base[c], p.stride = to*p.pixels, 1
		} else {
			p.base[c], p.stride = to, in.Channels
		}
		if p.normalise {
			p.mean[c], p.std[c] = in.Mean[to], in.Std[to]
			p.uniform = p.uniform && p.mean[c] == p.mean[0] && p.std[c] == p.std[0]
		}
	}
	return p
}

// next moves the cursor by one wire element.
func (p *plan) next(at *cursor) {
	if p.planar {
		if at.pixel++; at.pixel == p.pixels {
			at.pixel = 0
			at.channel++
		}
		return
	}
	if at.channel++; at.channel == p.channels {
		at.channel = 0
		at.pixel++
	}
}

// encode rounds floats to tensor elements of a type; both slices must be equally long. It has
// one switch per block: a function value would make the block escape to the
// heap.
func encode[E element](to []E, from []float32, as models.DType) {
	switch as {
	case models.F16:
		for i, f := range from {
			to[i] = E(wire.FloatToHalf(f))
		}
	case models.F32:
		for i, f := range from {
			to[i] = E(math.Float32bits(f))
		}
	default:
		least, end := as.Range()
		for i, f := range from {
			to[i] = E(nearest(f, least, end-1))
		}
	}
}

// nearest rounds to the nearest integer, ties to even, and saturates; NaN is 0.
func nearest(f float32, least, most float64) int64 {
	r := math.RoundToEven(float64(f))
	if math.IsNaN(r) {
		return 0
	}
	return int64(min(max(r, least), most))
}

// copyKernel serves pictures that already are tensors.
type copyKernel struct{}

func (k copyKernel) feed(dst []byte, at *cursor, src []byte) {
	copy(dst[at.pixel:], src)
	at.pixel += len(src)
}

// tableKernel serves u8 pictures. For each channel it computes the results of
// the 256 values once.
type tableKernel[E element] struct {
	plan
	tables [][256]E
}

func newTableKernel[E element](p plan) *tableKernel[E] {
	k := &tableKernel[E]{plan: p, tables: make([][256]E, p.channels)}
	for c := range k.tables {
		var values [256]float32
		for v := range values {
			values[v] = float32(v)
			if p.normalise {
				values[v] = (values[v] - p.mean[c]) / p.std[c]
			}
		}
		encode(k.tables[c][:], values[:], p.to)
	}
	return k
}

func (k *tableKernel[E]) feed(dst []byte, at *cursor, src []byte) {
	out := view[E](dst)
	switch {
	case k.flat && k.uniform:
		translate(out[at.pixel:][:len(src)], src, &k.tables[0])
		at.pixel += len(src)
	case k.planar:
		k.planes(out, at, src)
	default:
		k.pixelwise(out, at, src)
	}
}

// planes converts a CHW picture.
func (k *tableKernel[E]) planes(out []E, at *cursor, src []byte) {
	for len(src) > 0 {
		run := src[:min(len(src), k.pixels-at.pixel)]
		table, to := &k.tables[at.channel], k.base[at.channel]+at.pixel*k.stride
		if k.stride == 1 {
			translate(out[to:to+len(run)], run, table)
		} else {
			for _, b := range run {
				out[to] = table[b]
				to += k.stride
			}
		}
		src = src[len(run):]
		if at.pixel += len(run); at.pixel == k.pixels {
			at.pixel = 0
			at.channel++
		}
	}
}

// pixelwise converts an HWC picture: the rest of a pixel that was cut, complete
// pixels, and the start of the next cut pixel.
func (k *tableKernel[E]) pixelwise(out []E, at *cursor, src []byte) {
	head := src[:min(len(src), (k.channels-at.channel)%k.channels)]
	k.few(out, at, head)
	src = src[len(head):]
	whole := len(src) / k.channels
	body := src[:whole*k.channels]
	switch {
	case k.channels == 3 && k.stride == 1:
		p := at.pixel
		split3(out[k.base[0]+p:][:whole], out[k.base[1]+p:][:whole], out[k.base[2]+p:][:whole], body,
			&k.tables[0], &k.tables[1], &k.tables[2])
	case k.channels == 3 && k.base[0] == 0:
		keep3(out[at.pixel*3:][:whole*3], body, &k.tables[0], &k.tables[1], &k.tables[2])
	case k.channels == 3:
		swap3(out[at.pixel*3:][:whole*3], body, &k.tables[0], &k.tables[1], &k.tables[2])
	default:
		for c := range k.channels {
			table, to := &k.tables[c], k.base[c]+at.pixel*k.stride
			for i := c; i < len(body); i += k.channels {
				out[to] = table[body[i]]
				to += k.stride
			}
		}
	}
	at.pixel += whole
	k.few(out, at, src[len(body):])
}

// few converts less than a pixel.
func (k *tableKernel[E]) few(out []E, at *cursor, src []byte) {
	for _, b := range src {
		out[k.base[at.channel]+at.pixel*k.stride] = k.tables[at.channel][b]
		k.next(at)
	}
}

// translate sets out[i] = table[src[i]]; out must be as long as src. It converts
// eight at a time, with one load of the source and no bounds checks.
func translate[E element](out []E, src []byte, table *[256]E) {
	for len(src) >= 8 && len(out) >= 8 {
		v := binary.LittleEndian.Uint64(src)
		o := (*[8]E)(out)
		o[0] = table[uint8(v)]
		o[1] = table[uint8(v>>8)]
		o[2] = table[uint8(v>>16)]
		o[3] = table[uint8(v>>24)]
		o[4] = table[uint8(v>>32)]
		o[5] = table[uint8(v>>40)]
		o[6] = table[uint8(v>>48)]
		o[7] = table[uint8(v>>56)]
		src, out = src[8:], out[8:]
	}
	out = out[:len(src)]
	for i, b := range src {
		out[i] = table[b]
	}
}

// split3 splits the pixels of src into three planes.
func split3[E element](r, g, b []E, src []byte, rt, gt, bt *[256]E) {
	for len(src) >= 12 && len(r) >= 4 && len(g) >= 4 && len(b) >= 4 {
		v, w := binary.LittleEndian.Uint64(src), binary.LittleEndian.Uint32(src[8:])
		ro, gr, bl := (*[4]E)(r), (*[4]E)(g), (*[4]E)(b)
		ro[0], gr[0], bl[0] = rt[uint8(v)], gt[uint8(v>>8)], bt[uint8(v>>16)]
		ro[1], gr[1], bl[1] = rt[uint8(v>>24)], gt[uint8(v>>32)], bt[uint8(v>>40)]
		ro[2], gr[2], bl[2] = rt[uint8(v>>48)], gt[uint8(v>>56)], bt[uint8(w)]
		ro[3], gr[3], bl[3] = rt[uint8(w>>8)], gt[uint8(w>>16)], bt[uint8(w>>24)]
		src, r, g, b = src[12:], r[4:], g[4:], b[4:]
	}
	g, b = g[:len(r)], b[:len(r)]
	for i := range r {
		p := (*[3]byte)(src[3*i:])
		r[i], g[i], b[i] = rt[p[0]], gt[p[1]], bt[p[2]]
	}
}

// keep3 converts pixels and keeps the order of their channels.
func keep3[E element](out []E, src []byte, rt, gt, bt *[256]E) {
	for len(src) >= 3 && len(out) >= 3 {
		p, o := (*[3]byte)(src), (*[3]E)(out)
		o[0], o[1], o[2] = rt[p[0]], gt[p[1]], bt[p[2]]
		src, out = src[3:], out[3:]
	}
}

// swap3 converts pixels and reverses the order of their channels.
func swap3[E element](out []E, src []byte, rt, gt, bt *[256]E) {
	for len(src) >= 3 && len(out) >= 3 {
		p, o := (*[3]byte)(src), (*[3]E)(out)
		o[2], o[1], o[0] = rt[p[0]], gt[p[1]], bt[p[2]]
		src, out = src[3:], out[3:]
	}
}

// floatKernel serves pictures of other types than u8, a block at a time: decode, normalise,
// encode, place. The block stays in the first-level cache.
type floatKernel[E element] struct {
	plan
	from models.DType
	size int // of a wire element, in bytes
}

const blockElements = 256

func (k *floatKernel[E]) feed(dst []byte, at *cursor, src []byte) {
	out := view[E](dst)
	var block [blockElements]float32
	if at.parts > 0 {
		n := copy(at.part[at.parts:k.size], src)
		at.parts += n
		src = src[n:]
		if at.parts < k.size {
			return
		}
		at.parts = 0
		k.decode(block[:1], at.part[:k.size])
		k.place(out, at, block[:1])
	}
	for len(src) >= k.size {
		n := min(len(src)/k.size, blockElements)
		k.decode(block[:n], src)
		k.place(out, at, block[:n])
		src = src[n*k.size:]
	}
	at.parts = copy(at.part[:], src)
}

// decode reads len(block) elements.
func (k *floatKernel[E]) decode(block []float32, src []byte) {
	src = src[:k.size*len(block)]
	switch k.from {
	case models.F16:
		for i := range block {
			block[i] = wire.HalfToFloat(binary.LittleEndian.Uint16(src[2*i:]))
		}
	case models.F32:
		for i := range block {
			block[i] = math.Float32frombits(binary.LittleEndian.Uint32(src[4*i:]))
		}
	default:
		for i := range block {
			block[i] = k.from.Float(src[k.size*i:])
		}
	}
}

// place normalises a block and writes it to its place in the tensor.
func (k *floatKernel[E]) place(out []E, at *cursor, block []float32) {
	if k.flat && k.uniform {
		k.normaliseEach(block, 0, 1, 0)
		encode(out[at.pixel:][:len(block)], block, k.to)
		at.pixel += len(block)
		return
	}
	var encoded [blockElements]E
	for k.planar && len(block) > 0 {
		run := block[:min(len(block), k.pixels-at.pixel)]
		k.normaliseEach(run, 0, 1, at.channel)
		encode(encoded[:len(run)], run, k.to)
		scatter(out, k.base[at.channel]+at.pixel*k.stride, k.stride, encoded[:len(run)], 0, 1)
		block = block[len(run):]
		if at.pixel += len(run); at.pixel == k.pixels {
			at.pixel = 0
			at.channel++
		}
	}
	if k.planar {
		return
	}
	// One channel after the other: element i of the block has channel
	// (at.channel + i) % channels.
	for c := range k.channels {
		k.normaliseEach(block, k.first(at, c), k.channels, c)
	}
	encode(encoded[:len(block)], block, k.to)
	for c := range k.channels {
		pixel := at.pixel
		if c < at.channel {
			pixel++
		}
		scatter(out, k.base[c]+pixel*k.stride, k.stride, encoded[:len(block)], k.first(at, c), k.channels)
	}
	n := at.channel + len(block)
	at.pixel += n / k.channels
	at.channel = n % k.channels
}

// first is the index of the first element of channel c in a block that begins at
// the cursor.
func (p *plan) first(at *cursor, c int) int {
	if c < at.channel {
		c += p.channels
	}
	return c - at.channel
}

// normaliseEach normalises every step-th element with channel c's values.
func (p *plan) normaliseEach(block []float32, first, step, c int) {
	if !p.normalise {
		return
	}
	mean, std := p.mean[c], p.std[c]
	for i := first; i < len(block); i += step {
		block[i] = (block[i] - mean) / std
	}
}

// scatter copies every step-th element of block, from first on, to every
// stride-th element of out, from to on.
func scatter[E element](out []E, to, stride int, block []E, first, step int) {
	for i := first; i < len(block); i += step {
		out[to] = block[i]
		to += stride
	}
}
