package wire

import (
	"encoding/binary"
	"math"
	"unicode/utf8"
)

// Point is a point of a box: fractions of the picture's width and height, and how sure the model
// is of it. A point may lie outside of the picture. 12 bytes: f32 x, y, score.
type Point struct{ X, Y, Score float32 }

const pointSize = 12

// PointsHead is the size of the head of a payload of KindPoints: u16 points per box.
const PointsHead = 2

// PointedSize returns the size of a box with n points.
func PointedSize(n int) int { return BoxSize + n*pointSize }

// AppendPoints appends a payload of KindPoints. points has perBox points for each box.
func AppendPoints(dst []byte, boxes []Box, points []Point, perBox int) []byte {
	dst = binary.LittleEndian.AppendUint16(dst, uint16(perBox))
	for i := range boxes {
		dst = AppendBoxes(dst, boxes[i:i+1])
		for _, p := range points[i*perBox:][:perBox] {
			dst = appendFloat(appendFloat(appendFloat(dst, p.X), p.Y), p.Score)
		}
	}
	return dst
}

// DecodePoints returns the boxes of a payload of KindPoints, and the same number of points for
// each.
func DecodePoints(payload []byte) (boxes []Box, points []Point, perBox int, err error) {
	if err := Check(KindPoints, payload); err != nil {
		return nil, nil, 0, err
	}
	perBox = int(binary.LittleEndian.Uint16(payload))
	for payload = payload[PointsHead:]; len(payload) > 0; payload = payload[PointedSize(perBox):] {
		boxes, _ = DecodeBoxes(boxes, payload[:BoxSize])
		for i := range perBox {
			p := payload[PointedSize(i):]
			points = append(points, Point{float(p), float(p[4:]), float(p[8:])})
		}
	}
	return boxes, points, perBox, nil
}

// MasksHead is the size of the head of a payload of KindMasks: u16 rows, columns of the grid that
// covers the picture.
const MasksHead = 4

// maskHead is the size of a mask before its bits: u16 x, y, columns, rows, in cells.
const maskHead = 8

// MaskedSize returns the size of a box with a mask of this many cells.
func MaskedSize(cells int) int { return BoxSize + maskHead + (cells+7)/8 }

// Mask is the part of the grid that a box's mask has cells in. Bit (i mod 8) of byte ⌊i / 8⌋ of Bits is the
// cell in row ⌊i / Columns⌋ and column i mod Columns. 1 belongs to what was found.
type Mask struct {
	X, Y, Columns, Rows uint16
	Bits                []byte
}

// AppendMasksHead appends the head of a payload of KindMasks. AppendMasked appends each box.
func AppendMasksHead(dst []byte, rows, columns int) []byte {
	return binary.LittleEndian.AppendUint16(binary.LittleEndian.AppendUint16(dst, uint16(rows)), uint16(columns))
}

// AppendMasked appends a box with its mask. If m.Bits is nil, the bits are 0: the caller sets them.
func AppendMasked(dst []byte, b Box, m Mask) []byte {
	dst = AppendBoxes(dst, []Box{b})
	for _, v := range [...]uint16{m.X, m.Y, m.Columns, m.Rows} {
		dst = binary.LittleEndian.AppendUint16(dst, v)
	}
	if m.Bits != nil {
		return append(dst, m.Bits...)
	}
	for range (int(m.Columns)*int(m.Rows) + 7) / 8 {
		dst = append(dst, 0)
	}
	return dst
}

// DecodeMasks returns the boxes of a payload of KindMasks, the mask of each, and the size of the
// grid. The bits alias the payload.
func DecodeMasks(payload []byte) (boxes []Box, masks []Mask, rows, columns int, err error) {
	if err := Check(KindMasks, payload); err != nil {
		return nil, nil, 0, 0, err
	}
	rows, columns = int(binary.LittleEndian.Uint16(payload)), int(binary.LittleEndian.Uint16(payload[2:]))
	for payload = payload[MasksHead:]; len(payload) > 0; {
		boxes, _ = DecodeBoxes(boxes, payload[:BoxSize])
		m := maskOf(payload)
		size := MaskedSize(int(m.Columns) * int(m.Rows))
		m.Bits = payload[BoxSize+maskHead : size]
		masks, payload = append(masks, m), payload[size:]
	}
	return boxes, masks, rows, columns, nil
}

// maskOf reads the head of the mask of the box at the start of b.
func maskOf(b []byte) Mask {
	at := func(i int) uint16 { return binary.LittleEndian.Uint16(b[BoxSize+2*i:]) }
	return Mask{X: at(0), Y: at(1), Columns: at(2), Rows: at(3)}
}

// Polygon is an outline, in order around what was found. A rotated box has four corners. The scores
// of Points are not on the wire.
type Polygon struct {
	Class  uint16
	Score  float32
	Points []Point
}

// polygonHead is u16 class · f32 score · u16 corners.
const polygonHead = 8

// PolygonSize returns the size of a polygon with n corners.
func PolygonSize(n int) int { return polygonHead + n*8 }

// AppendPolygon appends a polygon to a payload of KindPolygons.
func AppendPolygon(dst []byte, class uint16, score float32, corners []Point) []byte {
	dst = appendFloat(binary.LittleEndian.AppendUint16(dst, class), score)
	dst = binary.LittleEndian.AppendUint16(dst, uint16(len(corners)))
	for _, p := range corners {
		dst = appendFloat(appendFloat(dst, p.X), p.Y)
	}
	return dst
}

// DecodePolygons returns the polygons of a payload of KindPolygons.
func DecodePolygons(payload []byte) (polygons []Polygon, err error) {
	if err := Check(KindPolygons, payload); err != nil {
		return nil, err
	}
	for len(payload) > 0 {
		p := Polygon{Class: binary.LittleEndian.Uint16(payload), Score: float(payload[2:])}
		size := PolygonSize(int(binary.LittleEndian.Uint16(payload[6:])))
		for b := payload[polygonHead:size]; len(b) > 0; b = b[8:] {
			p.Points = append(p.Points, Point{X: float(b), Y: float(b[4:])})
		}
		polygons, payload = append(polygons, p), payload[size:]
	}
	return polygons, nil
}

// MapElement is what each cell of a map has.
type MapElement uint8

// The elements of maps.
const (
	// MapClasses has runs of cells of one class, row by row: u16 class · u32 cells.
	MapClasses MapElement = 0
	// MapU8 has a byte per cell: 255 is 1.
	MapU8 MapElement = 1
	// MapF16 has a half-precision float per cell.
	MapF16 MapElement = 2
)

// MapHead is the size of the head of a payload of KindMap: u8 element · u8 0 · u16 rows, columns.
const MapHead = 6

// RunSize is the size of a run of a map of classes.
const RunSize = 6

// AppendMapHead appends the head of a payload of KindMap.
func AppendMapHead(dst []byte, element MapElement, rows, columns int) []byte {
	dst = append(dst, byte(element), 0)
	return binary.LittleEndian.AppendUint16(binary.LittleEndian.AppendUint16(dst, uint16(rows)), uint16(columns))
}

// AppendRun appends a run to a map of classes.
func AppendRun(dst []byte, class uint16, cells int) []byte {
	return binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint16(dst, class), uint32(cells))
}

// Map has one value per cell of a grid that covers the picture, row by row.
type Map struct {
	Element       MapElement
	Rows, Columns int
	// Classes has the cells of a map of classes, Values those of others.
	Classes []uint16
	Values  []float32
}

// DecodeMap returns the map of a payload of KindMap.
func DecodeMap(payload []byte) (m Map, err error) {
	if err := Check(KindMap, payload); err != nil {
		return m, err
	}
	m = Map{Element: MapElement(payload[0]), Rows: int(binary.LittleEndian.Uint16(payload[2:])), Columns: int(binary.LittleEndian.Uint16(payload[4:]))}
	switch cells := payload[MapHead:]; m.Element {
	case MapClasses:
		for ; len(cells) > 0; cells = cells[RunSize:] {
			for range binary.LittleEndian.Uint32(cells[2:]) {
				m.Classes = append(m.Classes, binary.LittleEndian.Uint16(cells))
			}
		}
	case MapU8:
		for _, v := range cells {
			m.Values = append(m.Values, float32(v)/math.MaxUint8)
		}
	case MapF16:
		for ; len(cells) > 0; cells = cells[2:] {
			m.Values = append(m.Values, HalfToFloat(binary.LittleEndian.Uint16(cells)))
		}
	}
	return m, nil
}

// AppendText appends a payload of KindText: f32 score · UTF-8.
func AppendText(dst []byte, score float32, text []byte) []byte {
	return append(appendFloat(dst, score), text...)
}

// DecodeText returns the text of a payload of KindText and how sure the model is of it.
func DecodeText(payload []byte) (text string, score float32, err error) {
	if err := Check(KindText, payload); err != nil {
		return "", 0, err
	}
	return string(payload[4:]), float(payload), nil
}

// Check returns ErrPayload unless the payload has the form of its kind. It allocates nothing.
func Check(kind Kind, payload []byte) error {
	ok := false
	switch kind {
	case KindTopK:
		ok = len(payload)%ClassSize == 0
	case KindBoxes:
		ok = len(payload)%BoxSize == 0
	case KindRaw, KindEmbedding:
		ok = len(payload)%4 == 0
	case KindPoints:
		ok = len(payload) >= PointsHead && (len(payload)-PointsHead)%PointedSize(int(binary.LittleEndian.Uint16(payload))) == 0
	case KindMasks:
		ok = checkMasks(payload)
	case KindPolygons:
		for len(payload) >= polygonHead && len(payload) >= PolygonSize(int(binary.LittleEndian.Uint16(payload[6:]))) {
			payload = payload[PolygonSize(int(binary.LittleEndian.Uint16(payload[6:]))):]
		}
		ok = len(payload) == 0
	case KindMap:
		ok = checkMap(payload)
	case KindText:
		ok = len(payload) >= 4 && utf8.Valid(payload[4:])
	}
	if !ok {
		return ErrPayload
	}
	return nil
}

// checkMasks reports whether each box of a payload has all of its mask, within the grid.
func checkMasks(payload []byte) bool {
	if len(payload) < MasksHead {
		return false
	}
	rows, columns := int(binary.LittleEndian.Uint16(payload)), int(binary.LittleEndian.Uint16(payload[2:]))
	for payload = payload[MasksHead:]; len(payload) >= BoxSize+maskHead; {
		m := maskOf(payload)
		size := MaskedSize(int(m.Columns) * int(m.Rows))
		if int(m.X)+int(m.Columns) > columns || int(m.Y)+int(m.Rows) > rows || size > len(payload) {
			return false
		}
		payload = payload[size:]
	}
	return len(payload) == 0
}

// checkMap reports whether a payload has exactly the cells that its head says.
func checkMap(payload []byte) bool {
	if len(payload) < MapHead {
		return false
	}
	left := int(binary.LittleEndian.Uint16(payload[2:])) * int(binary.LittleEndian.Uint16(payload[4:]))
	switch cells := payload[MapHead:]; MapElement(payload[0]) {
	case MapU8:
		return len(cells) == left
	case MapF16:
		return len(cells) == 2*left
	case MapClasses:
		for ; len(cells) >= RunSize && left > 0; cells = cells[RunSize:] {
			left -= int(binary.LittleEndian.Uint32(cells[2:]))
		}
		return len(cells) == 0 && left == 0
	}
	return false
}
