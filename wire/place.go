package wire

import (
	"encoding/binary"
	"math"
)

// Place is the place of the picture that was sent in the model's input: its corner and size, in fractions of the input's sides.
// Parts of the picture may lie outside. The zero value is a picture that is the input.
type Place struct{ X, Y, Width, Height float64 }

// Point turns fractions of the input into fractions of the picture.
func (p Place) Point(x, y float64) (float64, float64) {
	if p == (Place{}) {
		return x, y
	}
	return (x - p.X) / p.Width, (y - p.Y) / p.Height
}

// Append appends a payload about the input as one about the picture. Boxes are clipped, and left out if they are outside of the
// picture. The grid of masks and maps covers the picture. Its cells are as large as before, or larger so that maps do not grow. Those outside of the input are 0.
// The payload passes Check.
func (p Place) Append(dst []byte, kind Kind, payload []byte) []byte {
	switch {
	case p == Place{} || kind == KindTopK || kind != KindMap && !kind.HasClasses():
		return append(dst, payload...)
	case kind == KindMap:
		return p.appendMap(dst, payload)
	}
	head := [NumKinds]int{KindPoints: PointsHead, KindMasks: MasksHead}[kind]
	var down, across side
	if kind == KindMasks {
		down, across = newSide(p.Y, p.Height, u16(payload), math.MaxUint16), newSide(p.X, p.Width, u16(payload[2:]), math.MaxUint16)
		dst = AppendMasksHead(dst, down.cells, across.cells)
	} else {
		dst = append(dst, payload[:head]...)
	}
	for rest := payload[head:]; len(rest) > 0; {
		n, start, points, step := entrySize(kind, payload, rest), len(dst), BoxSize, pointSize
		if kind == KindPolygons {
			points, step = polygonHead, 8
		}
		dst = append(dst, rest[:n]...)
		entry := dst[start:]
		switch {
		case kind != KindPolygons && !p.moveBox(entry):
			dst = dst[:start]
		case kind == KindMasks:
			dst = appendMask(dst[:start+BoxSize], rest[BoxSize:n], down, across)
		default:
			for at := points; at < n; at += step {
				p.move(entry[at:], -math.MaxFloat32, math.MaxFloat32)
			}
		}
		rest = rest[n:]
	}
	return dst
}

// move moves the point at the start of b.
func (p Place) move(b []byte, low, high float64) {
	x, y := p.Point(float64(float(b)), float64(float(b[4:])))
	binary.LittleEndian.PutUint32(b, math.Float32bits(float32(min(max(x, low), high))))
	binary.LittleEndian.PutUint32(b[4:], math.Float32bits(float32(min(max(y, low), high))))
}

// moveBox moves the box at the start of b. It returns false if that is outside of the picture.
func (p Place) moveBox(b []byte) bool {
	const corners = 6
	p.move(b[corners:], 0, 1)
	p.move(b[corners+8:], 0, 1)
	return float(b[corners:]) < float(b[corners+8:]) && float(b[corners+4:]) < float(b[corners+12:])
}

// side is a side of the grid over the picture. Its cells are as large as those of the grid over the input, or larger.
type side struct {
	first, step float64 // in cells of the input
	cells, from int     // cells of the picture, of the input
}

// newSide returns a side of at most most cells.
func newSide(first, length float64, from, most int) side {
	cells := int(min(max(length*float64(from), 1), float64(most)))
	return side{first * float64(from), length * float64(from) / float64(max(cells, 1)), cells, from}
}

// cell returns the cell of the input in the middle of a cell, or -1.
func (s side) cell(i int) int {
	if at := math.Floor(s.first + (float64(i)+0.5)*s.step); at >= 0 && at < float64(s.from) {
		return int(at)
	}
	return -1
}

// within returns which cells come from some of the input.
func (s side) within(first, count int) (from, n int) {
	for i := range s.cells {
		if at := s.cell(i); at >= first && at < first+count {
			if n == 0 {
				from = i
			}
			n++
		}
	}
	return from, n
}

// appendMask appends a mask, from its place in the grid on.
func appendMask(dst, mask []byte, down, across side) []byte {
	x0, y0, width, height := u16(mask), u16(mask[2:]), u16(mask[4:]), u16(mask[6:])
	x, columns := across.within(x0, width)
	y, rows := down.within(y0, height)
	for _, v := range [...]int{x, y, columns, rows} {
		dst = binary.LittleEndian.AppendUint16(dst, uint16(v))
	}
	start := len(dst)
	dst = append(dst, make([]byte, (rows*columns+7)/8)...)
	for i := range rows * columns {
		from := (down.cell(y+i/columns)-y0)*width + across.cell(x+i%columns) - x0
		dst[start+i/8] |= mask[maskHead+from/8] >> (from % 8) & 1 << (i % 8)
	}
	return dst
}

func (p Place) appendMap(dst, payload []byte) []byte {
	element, cells := MapElement(payload[0]), payload[MapHead:]
	rows, columns := u16(payload[2:]), u16(payload[4:])
	down, across := newSide(p.Y, p.Height, rows, rows), newSide(p.X, p.Width, columns, columns)
	dst = AppendMapHead(dst, element, down.cells, across.cells)
	var run, length, end int // of the picture's map; the end of the input's run
	for i := range down.cells * across.cells {
		y, x := down.cell(i/across.cells), across.cell(i%across.cells)
		at, inside := y*across.from+x, y >= 0 && x >= 0
		switch size := int(element); { // of u8 and f16
		case element != MapClasses && inside:
			dst = append(dst, cells[at*size:][:size]...)
		case element != MapClasses:
			dst = append(dst, 0, 0)[:len(dst)+size]
		default:
			for ; inside && end <= at; cells = cells[RunSize:] {
				end += int(binary.LittleEndian.Uint32(cells[2:]))
				payload = cells
			}
			class := 0
			if inside {
				class = u16(payload)
			}
			if class != run && length > 0 {
				dst, length = AppendRun(dst, uint16(run), length), 0
			}
			run, length = class, length+1
		}
	}
	if length > 0 {
		dst = AppendRun(dst, uint16(run), length)
	}
	return dst
}
