// Package devicetest has the common tests of all devices: a slow and simple
// reference gather, one suite that compares a device with it bit for bit, and a
// device that fails on purpose.
package devicetest

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/penstock/penstock/models"
)

// Reference converts a picture by the definition, one tensor element after the
// other. It finds the corresponding wire element, reads it, normalises it in
// f32, and rounds it to the tensor's type. It shares no code with any device.
func Reference(in models.Input, picture []byte) []byte {
	tensor := make([]byte, 0, in.TensorBytes())
	element := func(channel, y, x int) {
		wire := channel
		if in.ReverseChannels {
			wire = in.Channels - 1 - channel
		}
		at := (y*in.Width+x)*in.Channels + wire
		if in.WireLayout == models.CHW {
			at = (wire*in.Height+y)*in.Width + x
		}
		raw := picture[at*in.WireType.Bytes():][:in.WireType.Bytes()]
		if len(in.Mean) == 0 && in.WireType == in.TensorType {
			tensor = append(tensor, raw...) // no computation: bits do not change, in NaNs either
			return
		}
		v := decode(in.WireType, raw)
		if len(in.Mean) > 0 {
			v = (v - in.Mean[channel]) / in.Std[channel]
		}
		tensor = encode(tensor, in.TensorType, v)
	}
	if in.TensorLayout == models.CHW {
		for c := range in.Channels {
			for y := range in.Height {
				for x := range in.Width {
					element(c, y, x)
				}
			}
		}
		return tensor
	}
	for y := range in.Height {
		for x := range in.Width {
			for c := range in.Channels {
				element(c, y, x)
			}
		}
	}
	return tensor
}

func decode(t models.DType, raw []byte) float32 {
	switch t {
	case models.U8:
		return float32(raw[0])
	case models.F16:
		return float32(HalfValue(binary.LittleEndian.Uint16(raw)))
	case models.F32:
		return math.Float32frombits(binary.LittleEndian.Uint32(raw))
	}
	bits := uint64(0)
	for i, b := range raw {
		bits |= uint64(b) << (8 * i)
	}
	if unused := 64 - 8*len(raw); t[0] == 'i' {
		return float32(int64(bits<<unused) >> unused)
	}
	return float32(bits)
}

func encode(to []byte, t models.DType, v float32) []byte {
	switch t {
	case models.F16:
		return binary.LittleEndian.AppendUint16(to, NearestHalf(float64(v)))
	case models.F32:
		return binary.LittleEndian.AppendUint32(to, math.Float32bits(v))
	}
	lowest, highest := int64(0), int64(1)<<(8*t.Bytes())-1
	if t[0] == 'i' {
		lowest, highest = -(highest+1)/2, highest/2
	}
	n := int64(0) // of a NaN
	if r := math.RoundToEven(float64(v)); r >= float64(highest) {
		n = highest
	} else if r <= float64(lowest) {
		n = lowest
	} else if r == r {
		n = int64(r)
	}
	return append(to, binary.LittleEndian.AppendUint64(nil, uint64(n))[:t.Bytes()]...)
}

// HalfValue returns the number that a binary16 represents (IEEE 754-2008, 3.4).
func HalfValue(h uint16) float64 {
	sign, exponent, fraction := 1.0, int(h>>10&0x1f), float64(h&0x3ff)
	if h&0x8000 != 0 {
		sign = -1
	}
	switch exponent {
	case 0:
		return sign * math.Ldexp(fraction, -24)
	case 31:
		if fraction != 0 {
			return math.NaN()
		}
		return math.Inf(int(sign))
	}
	return sign * math.Ldexp(1024+fraction, exponent-25)
}

// NearestHalf returns the binary16 nearest to v, ties to even. Every NaN
// becomes the quiet NaN without payload.
func NearestHalf(v float64) uint16 {
	if math.IsNaN(v) {
		return 0x7e00
	}
	var sign uint16
	if math.Signbit(v) {
		sign, v = 0x8000, -v
	}
	_, exponent := math.Frexp(v)  // v = 0.5..1 * 2^exponent
	step := max(exponent-11, -24) // 11 significant bits, or subnormal steps
	n := math.RoundToEven(math.Ldexp(v, -step))
	if v = math.Ldexp(n, step); v >= 65536 {
		return sign | 0x7c00
	}
	if v < 0x1p-14 {
		return sign | uint16(math.Ldexp(v, 24))
	}
	_, exponent = math.Frexp(v)
	return sign | uint16(exponent+14)<<10 | uint16(math.Ldexp(v, 11-exponent))&0x3ff
}

// Near compares images of pictures, in levels of 255: without normalisation.
func Near(in *models.Input, got, want []byte, most float64) error {
	size := in.TensorType.Bytes()
	for i := range len(want) / size {
		std := 1.0
		if c := i / (in.Width * in.Height) % in.Channels; len(in.Mean) > 0 {
			if in.TensorLayout == models.HWC {
				c = i % in.Channels
			}
			std = float64(in.Std[c])
		}
		v, w := std*float64(decode(in.TensorType, got[i*size:][:size])), std*float64(decode(in.TensorType, want[i*size:][:size]))
		if !(math.Abs(v-w) <= most) {
			return fmt.Errorf("value %d of %d is %.3f, want %.3f", i, len(want)/size, v, w)
		}
	}
	return nil
}
