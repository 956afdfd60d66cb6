package wire

import (
	"encoding/binary"
	"math"
	"slices"
	"unicode/utf8"
)

// Content is a decoded payload. Its kind says which fields are set.
type Content struct {
	// Classes are sorted by falling probability (KindTopK).
	Classes []Class
	// Boxes are sorted by falling score (KindBoxes, KindPoints, KindMasks).
	Boxes []Box
	// Points has PerBox points for each box (KindPoints).
	Points []Point
	PerBox int
	// Masks has the mask of each box, in a grid of Rows and Columns that covers the picture (KindMasks).
	Masks         []Mask
	Rows, Columns int
	// Polygons are sorted by falling score (KindPolygons).
	Polygons []Polygon
	// Map is set for KindMap.
	Map Map
	// Text is what was read, and TextScore how sure the model is of it (KindText).
	Text      string
	TextScore float32
	// Values are the model's outputs, one after the other, in the card's order (KindRaw), or a vector
	// (KindEmbedding).
	Values []float32
	// Tensors are the model's outputs in the card's order (KindTensors).
	Tensors []Tensor
}

// Decode reads a payload. It reuses Classes, Boxes and Values; the bits of Masks and the data of
// Tensors alias the payload. After ErrPayload and ErrKind the content is not valid.
func (c *Content) Decode(kind Kind, payload []byte) error {
	*c = Content{Classes: c.Classes[:0], Boxes: c.Boxes[:0], Values: c.Values[:0]}
	switch {
	case kind >= NumKinds:
		return ErrKind
	case kind == KindNone && len(payload) == 0:
		return nil
	}
	return read(kind, payload, c)
}

// Check returns ErrPayload unless the payload has the form of its kind. It allocates nothing.
func Check(kind Kind, payload []byte) error { return read(kind, payload, nil) }

// read checks a payload, and sets c unless it is nil.
func read(kind Kind, payload []byte, c *Content) error {
	ok := false
	switch kind {
	case KindTopK:
		if ok = len(payload)%ClassSize == 0; ok && c != nil {
			c.Classes, _ = DecodeTopK(c.Classes, payload)
		}
	case KindBoxes:
		if ok = len(payload)%BoxSize == 0; ok && c != nil {
			c.Boxes, _ = DecodeBoxes(c.Boxes, payload)
		}
	case KindRaw, KindEmbedding:
		if ok = len(payload)%4 == 0; ok && c != nil {
			c.Values, _ = DecodeRaw(c.Values, payload)
		}
	case KindPoints:
		ok = readPoints(payload, c)
	case KindMasks:
		ok = readMasks(payload, c)
	case KindPolygons:
		ok = readPolygons(payload, c)
	case KindMap:
		ok = readMap(payload, c)
	case KindTensors:
		ok = readTensors(payload, c)
	case KindText:
		if ok = len(payload) >= 4 && utf8.Valid(payload[4:]); ok && c != nil {
			c.Text, c.TextScore = string(payload[4:]), float(payload)
		}
	}
	if !ok {
		return ErrPayload
	}
	return nil
}

func u16(b []byte) int { return int(binary.LittleEndian.Uint16(b)) }

func readPoints(b []byte, c *Content) bool {
	if len(b) < PointsHead || (len(b)-PointsHead)%PointedSize(u16(b)) != 0 {
		return false
	}
	if c == nil {
		return true
	}
	c.PerBox = u16(b)
	for b = b[PointsHead:]; len(b) > 0; b = b[PointedSize(c.PerBox):] {
		c.Boxes, _ = DecodeBoxes(c.Boxes, b[:BoxSize])
		for i := range c.PerBox {
			p := b[PointedSize(i):]
			c.Points = append(c.Points, Point{float(p), float(p[4:]), float(p[8:])})
		}
	}
	return true
}

// readMasks checks that each box has all of its mask, within the grid.
func readMasks(b []byte, c *Content) bool {
	if len(b) < MasksHead {
		return false
	}
	rows, columns := u16(b), u16(b[2:])
	if c != nil {
		c.Rows, c.Columns = rows, columns
	}
	for b = b[MasksHead:]; len(b) >= BoxSize+maskHead; {
		at := func(i int) uint16 { return binary.LittleEndian.Uint16(b[BoxSize+2*i:]) }
		m := Mask{X: at(0), Y: at(1), Columns: at(2), Rows: at(3)}
		size := MaskedSize(int(m.Columns) * int(m.Rows))
		if int(m.X)+int(m.Columns) > columns || int(m.Y)+int(m.Rows) > rows || size > len(b) {
			return false
		}
		if c != nil {
			m.Bits = b[BoxSize+maskHead : size]
			c.Boxes, _ = DecodeBoxes(c.Boxes, b[:BoxSize])
			c.Masks = append(c.Masks, m)
		}
		b = b[size:]
	}
	return len(b) == 0
}

func readPolygons(b []byte, c *Content) bool {
	for len(b) >= polygonHead && len(b) >= PolygonSize(u16(b[6:])) {
		size := PolygonSize(u16(b[6:]))
		if c != nil {
			p := Polygon{Class: binary.LittleEndian.Uint16(b), Score: float(b[2:])}
			for at := polygonHead; at < size; at += 8 {
				p.Points = append(p.Points, Point{X: float(b[at:]), Y: float(b[at+4:])})
			}
			c.Polygons = append(c.Polygons, p)
		}
		b = b[size:]
	}
	return len(b) == 0
}

// readMap checks that a map has exactly the cells that its head says.
func readMap(b []byte, c *Content) bool {
	if len(b) < MapHead {
		return false
	}
	m := Map{Element: MapElement(b[0]), Rows: u16(b[2:]), Columns: u16(b[4:])}
	cells, left := b[MapHead:], m.Rows*m.Columns
	switch m.Element {
	case MapClasses:
		for ; len(cells) >= RunSize && left > 0; cells = cells[RunSize:] {
			n := int(binary.LittleEndian.Uint32(cells[2:]))
			if left -= n; left >= 0 && c != nil {
				m.Classes = append(m.Classes, slices.Repeat([]uint16{binary.LittleEndian.Uint16(cells)}, n)...)
			}
		}
		if len(cells) > 0 {
			return false
		}
	case MapU8:
		if left -= len(cells); left == 0 && c != nil {
			for _, v := range cells {
				m.Values = append(m.Values, float32(v)/math.MaxUint8)
			}
		}
	case MapF16:
		if left = 2*left - len(cells); left == 0 && c != nil {
			for ; len(cells) > 0; cells = cells[2:] {
				m.Values = append(m.Values, HalfToFloat(binary.LittleEndian.Uint16(cells)))
			}
		}
	default:
		return false
	}
	if c != nil {
		c.Map = m
	}
	return left == 0
}

// Outline returns the smallest box around a polygon, within the picture.
func (p *Polygon) Outline() Box {
	b := Box{Class: p.Class, Score: p.Score, X0: 1, Y0: 1}
	for _, c := range p.Points {
		b.X0, b.Y0, b.X1, b.Y1 = min(b.X0, c.X), min(b.Y0, c.Y), max(b.X1, c.X), max(b.Y1, c.Y)
	}
	b.X0, b.Y0, b.X1, b.Y1 = max(b.X0, 0), max(b.Y0, 0), min(b.X1, 1), min(b.Y1, 1)
	return b
}
