package wire

import "encoding/binary"

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

// AppendText appends a payload of KindText: f32 score · UTF-8.
func AppendText(dst []byte, score float32, text []byte) []byte {
	return append(appendFloat(dst, score), text...)
}
