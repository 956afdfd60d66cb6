package models

import (
	"bytes"
	"encoding/binary"
	"math"
	"testing"
)

func TestAppendF32(t *testing.T) {
	le := binary.LittleEndian
	for _, c := range []struct {
		dtype DType
		data  []byte
		want  float32
	}{
		{Bool, []byte{1}, 1},
		{I8, []byte{0xfe}, -2},
		{I16, le.AppendUint16(nil, 0xfffe), -2},
		{I32, le.AppendUint32(nil, 0xfffffffe), -2},
		{I64, le.AppendUint64(nil, math.MaxUint64-1), -2},
		{U8, []byte{0xfe}, 254},
		{U16, le.AppendUint16(nil, 0xfffe), 65534},
		{U32, le.AppendUint32(nil, 1<<31), 1 << 31},
		{U64, le.AppendUint64(nil, 1<<63), 1 << 63},
		{F16, le.AppendUint16(nil, 0xc000), -2},
		{BF16, le.AppendUint16(nil, 0xc000), -2},
		{F32, le.AppendUint32(nil, 0xc0000000), -2},
		{F64, le.AppendUint64(nil, math.Float64bits(-2)), -2},
	} {
		want := le.AppendUint32([]byte("before"), math.Float32bits(c.want))
		// The second element is incomplete, except for one of a byte.
		if got := c.dtype.AppendF32([]byte("before"), append(c.data[:len(c.data):len(c.data)], c.data[1:]...)); !bytes.Equal(got, want) {
			t.Errorf("%s: % x is % x, want % x", c.dtype, c.data, got, want)
		}
		tensor := Tensor{Type: c.dtype}
		if n := tensor.Bytes(); n != len(c.data) {
			t.Errorf("%s: a scalar has %d bytes, want %d", c.dtype, n, len(c.data))
		}
	}
	if got := DType("string").AppendF32(nil, []byte("text")); len(got) > 0 {
		t.Errorf("an unknown type has % x", got)
	}
}

func TestHolds(t *testing.T) {
	for _, c := range []struct {
		dtype DType
		most  float64
		next  float64
	}{
		{Bool, 1, 2}, {I8, 127, 128}, {U16, 65535, 65536}, {I64, 1 << 62, 1 << 63}, {F16, 65504, 65505}, {BF16, 0x1.FEp127, 0x1.FFp127},
		{F32, math.MaxFloat32, 1e39}, {F64, math.MaxFloat64, math.NaN()}, {F32, math.Inf(1), math.NaN()},
	} {
		if !c.dtype.Holds(c.most) || c.dtype.Holds(c.next) {
			t.Errorf("%s holds %v: %v, %v: %v", c.dtype, c.most, c.dtype.Holds(c.most), c.next, c.dtype.Holds(c.next))
		}
	}
}
