package wire

import (
	"encoding/binary"
	"encoding/json"
	"math"
	"unicode/utf8"
)

// elements are the types of a tensor's elements, by their number on the wire.
var elements = [...]struct {
	name  string
	bytes int
	list  func(n int) any // a slice of n
}{
	{"bool", 1, list[bool]},
	{"i8", 1, list[int8]}, {"i16", 2, list[int16]}, {"i32", 4, list[int32]}, {"i64", 8, list[int64]},
	{"u8", 1, list[uint8]}, {"u16", 2, list[uint16]}, {"u32", 4, list[uint32]}, {"u64", 8, list[uint64]},
	{"f16", 2, list[uint16]}, {"bf16", 2, list[uint16]}, {"f32", 4, list[float32]}, {"f64", 8, list[float64]},
}

func list[T any](n int) any { return make([]T, n) }

// element returns the number of a type like "f32", len(elements) for an unknown one.
func element(name string) int {
	i := 0
	for i < len(elements) && elements[i].name != name {
		i++
	}
	return i
}

// ElementBytes returns the size of an element of a type like "f32", 0 for an unknown type.
func ElementBytes(name string) int {
	if i := element(name); i < len(elements) {
		return elements[i].bytes
	}
	return 0
}

// Tensor is an output of a model for one picture.
type Tensor struct {
	Name string
	// Type is the type of the elements: bool, i8 to i64, u8 to u64, f16, bf16, f32 or f64.
	Type string
	// Shape is empty if there is one element.
	Shape []int64
	// Data has the elements in row-major order, little endian.
	Data []byte
}

// tensorHead is the size of a tensor's head before its name and shape: u8 type, rank · u16 bytes of the name.
const tensorHead = 4

// AppendTensorHead appends what precedes the elements of a tensor in a payload of KindTensors. The type is known, the name
// has at most 65,535 bytes of UTF-8, and sizes fit 32 bits.
func AppendTensorHead(dst []byte, name, kind string, shape []int64) []byte {
	dst = append(dst, byte(element(kind)), byte(len(shape)))
	dst = append(binary.LittleEndian.AppendUint16(dst, uint16(len(name))), name...)
	for _, n := range shape {
		dst = binary.LittleEndian.AppendUint32(dst, uint32(n))
	}
	return dst
}

// MaxTensors is the max number of tensors in a payload.
const MaxTensors = 1024

// readTensors checks that each tensor has all of its elements. Sizes may be 0.
func readTensors(b []byte, c *Content) bool {
	for n := 0; n < MaxTensors && len(b) >= tensorHead && int(b[0]) < len(elements); n++ {
		rank, named := int(b[1]), tensorHead+u16(b[2:])
		at := named + 4*rank
		if at > len(b) || !utf8.Valid(b[tensorHead:named]) {
			return false
		}
		size := uint64(elements[b[0]].bytes)
		for i := range rank {
			// Larger than 32 bits stays so, unless a size of 0 follows.
			size = min(size, math.MaxUint32) * uint64(binary.LittleEndian.Uint32(b[named+4*i:]))
		}
		if size > uint64(len(b)-at) {
			return false
		}
		end := at + int(size)
		if c != nil {
			t := Tensor{Name: string(b[tensorHead:named]), Type: elements[b[0]].name, Shape: make([]int64, rank), Data: b[at:end:end]}
			for i := range t.Shape {
				t.Shape[i] = int64(binary.LittleEndian.Uint32(b[named+4*i:]))
			}
			c.Tensors = append(c.Tensors, t)
		}
		b = b[end:]
	}
	return len(b) == 0
}

// Values returns the elements as a slice of numbers of their type, or of bool. Those of f16 and bf16 are float32.
func (t *Tensor) Values() any {
	e := &elements[element(t.Type)]
	values := e.list(len(t.Data) / e.bytes)
	binary.Decode(t.Data, binary.LittleEndian, values) // it knows slices of bool and of all numbers
	if t.Type != "f16" && t.Type != "bf16" {
		return values
	}
	halves := values.([]uint16)
	wide := make([]float32, len(halves))
	for i, h := range halves {
		if wide[i] = HalfToFloat(h); t.Type == "bf16" {
			wide[i] = math.Float32frombits(uint32(h) << 16)
		}
	}
	return wide
}

// MarshalJSON writes {"name": …, "type": …, "shape": […], "data": […]}, the elements in row-major order.
func (t Tensor) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Name  string  `json:"name"`
		Type  string  `json:"type"`
		Shape []int64 `json:"shape"`
		Data  any     `json:"data"`
	}{t.Name, t.Type, t.Shape, JSONNumbers(t.Values())})
}

// JSONNumbers returns numbers for encoding/json. It has no NaN and no infinity: these become null. It would write []uint8 as
// base64.
func JSONNumbers(numbers any) any {
	switch all := numbers.(type) {
	case []uint8:
		wide := make([]uint16, len(all))
		for i, v := range all {
			wide[i] = uint16(v)
		}
		return wide
	case []float32:
		return finiteOrNull(all)
	case []float64:
		return finiteOrNull(all)
	}
	return numbers
}

func finiteOrNull[T float32 | float64](all []T) []*T {
	out := make([]*T, len(all))
	for i, v := range all {
		if !math.IsNaN(float64(v)) && !math.IsInf(float64(v), 0) {
			out[i] = &all[i]
		}
	}
	return out
}
