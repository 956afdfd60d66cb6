package wire

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
}

// Decode reads a payload. It reuses Classes, Boxes and Values. On ErrPayload and ErrKind the content is not valid.
func (c *Content) Decode(kind Kind, payload []byte) (err error) {
	*c = Content{Classes: c.Classes[:0], Boxes: c.Boxes[:0], Values: c.Values[:0]}
	switch kind {
	case KindNone:
		if len(payload) > 0 {
			err = ErrPayload
		}
	case KindTopK:
		c.Classes, err = DecodeTopK(c.Classes, payload)
	case KindBoxes:
		c.Boxes, err = DecodeBoxes(c.Boxes, payload)
	case KindRaw, KindEmbedding:
		c.Values, err = DecodeRaw(c.Values, payload)
	case KindPoints:
		c.Boxes, c.Points, c.PerBox, err = DecodePoints(payload)
	case KindMasks:
		c.Boxes, c.Masks, c.Rows, c.Columns, err = DecodeMasks(payload)
	case KindPolygons:
		c.Polygons, err = DecodePolygons(payload)
	case KindMap:
		c.Map, err = DecodeMap(payload)
	case KindText:
		c.Text, c.TextScore, err = DecodeText(payload)
	default:
		err = ErrKind
	}
	return err
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
