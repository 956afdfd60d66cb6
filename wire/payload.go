package wire

import (
	"encoding/binary"
	"math"
)

// ClassSize is the size of a top-k entry on the wire: u16 class · f32 p.
const ClassSize = 6

// Class is one entry of a top-k payload, which is sorted by falling
// probability.
type Class struct {
	Class uint16
	P     float32
}

// AppendTopK appends a payload of KindTopK.
func AppendTopK(dst []byte, classes []Class) []byte {
	for _, c := range classes {
		dst = binary.LittleEndian.AppendUint16(dst, c.Class)
		dst = appendFloat(dst, c.P)
	}
	return dst
}

// DecodeTopK appends the entries of a payload of KindTopK to dst. On ErrPayload
// it returns dst unchanged.
func DecodeTopK(dst []Class, payload []byte) ([]Class, error) {
	if len(payload)%ClassSize != 0 {
		return dst, ErrPayload
	}
	for ; len(payload) > 0; payload = payload[ClassSize:] {
		dst = append(dst, Class{Class: binary.LittleEndian.Uint16(payload), P: float(payload[2:])})
	}
	return dst, nil
}

// BoxSize is the size of a box on the wire: u16 class · f32 score, x0, y0, x1, y1.
const BoxSize = 22

// Box is one entry of a boxes payload, which is sorted by falling score. The
// corners (left, top) and (right, bottom) are fractions of the picture's width
// and height, from 0 to 1, measured from its upper left.
type Box struct {
	Class          uint16
	Score          float32
	X0, Y0, X1, Y1 float32
}

// AppendBoxes appends a payload of KindBoxes.
func AppendBoxes(dst []byte, boxes []Box) []byte {
	for _, b := range boxes {
		dst = binary.LittleEndian.AppendUint16(dst, b.Class)
		dst = appendFloat(dst, b.Score)
		dst = appendFloat(dst, b.X0)
		dst = appendFloat(dst, b.Y0)
		dst = appendFloat(dst, b.X1)
		dst = appendFloat(dst, b.Y1)
	}
	return dst
}

// DecodeBoxes appends the entries of a payload of KindBoxes to dst. On
// ErrPayload it returns dst unchanged.
func DecodeBoxes(dst []Box, payload []byte) ([]Box, error) {
	if len(payload)%BoxSize != 0 {
		return dst, ErrPayload
	}
	for ; len(payload) > 0; payload = payload[BoxSize:] {
		dst = append(dst, Box{
			Class: binary.LittleEndian.Uint16(payload),
			Score: float(payload[2:]),
			X0:    float(payload[6:]),
			Y0:    float(payload[10:]),
			X1:    float(payload[14:]),
			Y1:    float(payload[18:]),
		})
	}
	return dst, nil
}

// AppendRaw appends a payload of KindRaw, or a part of one.
func AppendRaw(dst []byte, values []float32) []byte {
	for _, v := range values {
		dst = appendFloat(dst, v)
	}
	return dst
}

// DecodeRaw appends the values of a payload of KindRaw to dst. On ErrPayload it
// returns dst unchanged.
func DecodeRaw(dst []float32, payload []byte) ([]float32, error) {
	if len(payload)%4 != 0 {
		return dst, ErrPayload
	}
	for ; len(payload) > 0; payload = payload[4:] {
		dst = append(dst, float(payload))
	}
	return dst, nil
}

func appendFloat(dst []byte, v float32) []byte {
	return binary.LittleEndian.AppendUint32(dst, math.Float32bits(v))
}

func float(b []byte) float32 { return math.Float32frombits(binary.LittleEndian.Uint32(b)) }
