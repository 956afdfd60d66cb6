package models

import (
	"encoding/binary"
	"math"
	"slices"

	"github.com/penstock/penstock/wire"
)

// DType is the element type of a picture on the wire or of a tensor.
type DType string

// The element types. The gather converts between PictureTypes; it copies the others.
const (
	Bool DType = "bool" // a byte, 0 or 1
	I8   DType = "i8"
	I16  DType = "i16"
	I32  DType = "i32"
	I64  DType = "i64"
	U8   DType = "u8"
	U16  DType = "u16"
	U32  DType = "u32"
	U64  DType = "u64"
	F16  DType = "f16"
	BF16 DType = "bf16"
	F32  DType = "f32"
	F64  DType = "f64"
)

// Bytes returns the size of one element, 0 for an unknown type.
func (t DType) Bytes() int { return wire.ElementBytes(string(t)) }

// IsFloat reports whether elements have fractions, infinities and NaN.
func (t DType) IsFloat() bool { return t == F16 || t == BF16 || t == F32 || t == F64 }

// AppendF32 appends elements to dst, each as the nearest f32. Both are little endian. It ignores an incomplete
// element at the end, and allocates only to extend dst.
func (t DType) AppendF32(dst, data []byte) []byte {
	size := t.Bytes()
	if t == F32 || size == 0 {
		return append(dst, data[:len(data)/4*size]...)
	}
	for ; len(data) >= size; data = data[size:] {
		dst = binary.LittleEndian.AppendUint32(dst, math.Float32bits(t.Float(data)))
	}
	return dst
}

// Float returns the first element of data, as the nearest f32. The type is known.
func (t DType) Float(data []byte) float32 {
	switch t {
	case F32:
		return math.Float32frombits(binary.LittleEndian.Uint32(data))
	case F16:
		return wire.HalfToFloat(binary.LittleEndian.Uint16(data))
	case BF16:
		return math.Float32frombits(uint32(binary.LittleEndian.Uint16(data)) << 16)
	case F64:
		return float32(math.Float64frombits(binary.LittleEndian.Uint64(data)))
	case I8:
		return float32(int8(data[0]))
	case I16:
		return float32(int16(binary.LittleEndian.Uint16(data)))
	case I32:
		return float32(int32(binary.LittleEndian.Uint32(data)))
	case I64:
		return float32(int64(binary.LittleEndian.Uint64(data)))
	case U16:
		return float32(binary.LittleEndian.Uint16(data))
	case U32:
		return float32(binary.LittleEndian.Uint32(data))
	case U64:
		return float32(binary.LittleEndian.Uint64(data))
	}
	return float32(data[0]) // Bool, U8
}

// Append appends an element to dst in little endian: the nearest value of the type. Integers hold v (Holds).
func (t DType) Append(dst []byte, v float64) []byte {
	switch t {
	case F16:
		return binary.LittleEndian.AppendUint16(dst, wire.FloatToHalf(float32(v)))
	case BF16:
		bits := math.Float32bits(float32(v))
		return binary.LittleEndian.AppendUint16(dst, uint16((bits+0x7fff+bits>>16&1)>>16))
	case F32:
		return binary.LittleEndian.AppendUint32(dst, math.Float32bits(float32(v)))
	case F64:
		return binary.LittleEndian.AppendUint64(dst, math.Float64bits(v))
	case U64:
		if v >= 1<<63 {
			return binary.LittleEndian.AppendUint64(dst, uint64(v))
		}
	}
	bits := binary.LittleEndian.AppendUint64(nil, uint64(int64(math.RoundToEven(v))))
	return append(dst, bits[:t.Bytes()]...)
}

// largest are the largest finite floats.
var largest = map[DType]float64{F16: 65504, BF16: 0x1.FEp127, F32: math.MaxFloat32, F64: math.MaxFloat64}

// Holds reports whether the type has an element of this value, rounded if it is a float.
func (t DType) Holds(v float64) bool {
	if most := largest[t]; most > 0 {
		return math.Abs(v) <= most || math.IsInf(v, 0)
	}
	least, end := t.Range()
	return v == math.Trunc(v) && v >= least && v < end
}

// Range returns the integers that a type has, from least to end - 1.
func (t DType) Range() (least, end float64) {
	switch bits := 8 * t.Bytes(); t {
	case Bool:
		return 0, 2
	case I8, I16, I32, I64:
		return -math.Ldexp(1, bits-1), math.Ldexp(1, bits-1)
	default:
		return 0, math.Ldexp(1, bits)
	}
}

// Tensor is an input or output of the model.
type Tensor struct {
	Name string
	Type DType
	// Shape is that of one image; it is empty if there is one element per image.
	Shape []int64
	// BatchAxis is the axis of the model's tensor that has the images, or NoBatchAxis. Libml's buffers have one image after
	// the other, whatever it is.
	BatchAxis int `json:",omitempty"`
	// Rows is set if the number of rows depends on what is in the image. Shape then begins with Rows.Max.
	Rows *Rows `json:",omitempty"`
}

// NoBatchAxis is the batch axis of a tensor whose model takes one image at a time. The card's only batch is then 1.
const NoBatchAxis = -1

// Rows describes rows whose number depends on what is in the image. Libml's buffers have zeros behind them.
type Rows struct {
	// The max number of rows of an image. A request with more fails.
	Max int `json:"max" yaml:"max" required:"true" min:"1" max:"65536"`
	// The output with the number of rows of each image. The rows of the images follow each other.
	Count string `json:"count,omitempty" yaml:"count" want:"an output's name"`
	// A row begins with the number of its image. Shape and answers are without it.
	BatchColumn bool `json:"batch_column,omitempty" yaml:"batch_column" default:"false"`
}

// Elements returns the number of elements of one image.
func (t *Tensor) Elements() int {
	n := 1
	for _, d := range t.Shape {
		n *= int(d)
	}
	return n
}

// Bytes returns the size of one image.
func (t *Tensor) Bytes() int { return t.Type.Bytes() * t.Elements() }

// Batch returns the shape of n images in the model.
func (t *Tensor) Batch(n int) []int64 {
	if t.BatchAxis == NoBatchAxis {
		return t.Shape
	}
	return slices.Insert(slices.Clone(t.Shape), t.BatchAxis, int64(n))
}
