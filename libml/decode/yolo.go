package decode

import (
	"math"

	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/wire"
)

// yolo decodes the models of the YOLO family. Each row of the output is a box: centre and size in pixels of the
// picture, then scores. Styles v5 and X have a score that there is something, and all but v10 have a score per class.
// At the end is what the task adds: an angle, key points, or the coefficients of a mask.
type yolo struct {
	*models.YOLO
	suppression
	threshold     float32
	width, height float32
	grids         []grid // of style yolox
	row, column   int    // from a row and a column to the next

	score   []float32    // scratch: the best score of each row
	class   []uint16     // scratch: its class
	points  []wire.Point // scratch
	rotated []rotated    // scratch: of each of found
}

// grid is a part of the rows of YOLOX: a row per cell.
type grid struct {
	first, columns int
	stride         float32
}

func newYOLO(f *models.YOLO, in *models.Input) *yolo {
	d := &yolo{
		YOLO: f, suppression: newSuppression(f.IoUThreshold, f.MaxBoxes, f.Only),
		threshold: float32(f.ScoreThreshold), width: float32(in.Width), height: float32(in.Height),
	}
	switch f.Style {
	case models.YOLOv8:
		d.score, d.class = make([]float32, f.Rows), make([]uint16, f.Rows)
	case models.YOLOv10:
		d.overlap = 1 // the model has suppressed boxes
	case models.YOLOX:
		d.readGrids(in)
	}
	return d
}

// readGrids finds the strides whose cells are as many as the rows.
func (d *yolo) readGrids(in *models.Input) {
	for _, strides := range models.YOLOStrides {
		if in.Cells(strides) != d.Rows {
			continue
		}
		first := 0
		for _, s := range strides {
			columns, rows := in.Grid(s)
			d.grids = append(d.grids, grid{first: first, columns: columns, stride: float32(s)})
			first += columns * rows
		}
		return
	}
}

func (d *yolo) decode(dst []byte, outputs [][]byte) ([]byte, error) {
	d.reset()
	err := d.scan(outputs[d.Output])
	if err == nil && d.Rotated {
		return d.appendRotated(dst, outputs[d.Output])
	}
	if err == nil {
		err = d.keep(d, outputs, d.Output)
	}
	if err != nil {
		return nil, err
	}
	switch {
	case d.Prototypes >= 0:
		return d.appendMasks(dst, outputs)
	case len(d.KeyPoints) > 0:
		return d.appendPoints(dst, outputs[d.Output])
	}
	return wire.AppendBoxes(dst, d.kept), nil
}

// value returns a value of a row.
func (d *yolo) value(output []byte, row uint32, column int) float32 {
	return element(output, int(row)*d.row+column*d.column)
}

// extra returns the first of the values that the task adds.
func (d *yolo) extra() int { return d.Columns - d.Extra }

// scan finds the candidates of the rows that are there.
func (d *yolo) scan(output []byte) error {
	scan := d.scanRows
	d.row, d.column = d.Columns, 1
	switch {
	case d.Style == models.YOLOv8 && d.selects(d.Output):
		scan = d.scanClasses
	case d.Style == models.YOLOv8:
		d.row, d.column = 1, d.Rows
		return d.scanColumns(output)
	case d.Style == models.YOLOv10:
		scan = d.scanEnd
	}
	for first, last := d.rows(d.Output, 0, d.Rows); first < last; first, last = d.rows(d.Output, last, d.Rows) {
		if err := scan(output, first, last); err != nil {
			return err
		}
	}
	return nil
}

// selections returns none for yolov10, whose rows are few.
func (d *yolo) selections() []device.Selection {
	s := device.Selection{Rows: d.Rows, Threshold: d.threshold}
	row := columnsOf(d.Output, 0, d.Columns, d.Columns)
	switch d.Style {
	case models.YOLOv8:
		row.RowStride, row.ColumnStride = 1, d.Rows
		s.Scores = row
		s.Scores.First, s.Scores.Columns = 4*d.Rows, d.NumClasses
	case models.YOLOv10:
		return nil
	default:
		s.Scores = columnsOf(d.Output, 4, 1, d.Columns)
	}
	s.Read = []device.Table{row}
	return []device.Selection{s}
}

// scanColumns finds the best class of each row. A class has all its scores next to each other.
func (d *yolo) scanColumns(output []byte) error {
	clear(d.score)
	a := newAbove(d.threshold)
	for class := range d.NumClasses {
		scores := output[4*(4+class)*d.Rows:][:4*d.Rows]
		for row := a.next(scores, 0); row < d.Rows; row = a.next(scores, row+1) {
			v := element(scores, row)
			if v-v != 0 {
				return notFinite(d.Output)
			}
			if v > d.score[row] {
				d.score[row], d.class[row] = v, uint16(class)
			}
		}
	}
	for row, v := range d.score {
		if v > 0 && v >= d.threshold {
			d.add(candidate{score: v, row: uint32(row), class: d.class[row]})
		}
	}
	return nil
}

// scanClasses is scanColumns of selected rows, which are transposed.
func (d *yolo) scanClasses(output []byte, first, last int) error {
	for row := first; row < last; row++ {
		scores := output[4*(row*d.Columns+4):][:4*d.NumClasses]
		if !finite(scores) {
			return notFinite(d.Output)
		}
		if class, v := largest(scores); v > 0 && v >= d.threshold {
			d.add(candidate{score: v, row: uint32(row), class: uint16(class)})
		}
	}
	return nil
}

// scanRows finds rows whose score, multiplied by that of their best class, is high enough.
func (d *yolo) scanRows(output []byte, first, last int) error {
	for row := first; row < last; row++ {
		values := output[4*row*d.Columns:][:4*d.Columns]
		score := element(values, 4)
		if score < d.threshold {
			continue
		}
		if !finite(values[4*4 : 4*(5+d.NumClasses)]) {
			return notFinite(d.Output)
		}
		class, best := largest(values[4*5 : 4*(5+d.NumClasses)])
		if v := score * best; v >= d.threshold && v <= math.MaxFloat32 {
			d.add(candidate{score: v, row: uint32(row), class: uint16(class)})
		}
	}
	return nil
}

// scanEnd finds the rows that the model has chosen: corners, score, class.
func (d *yolo) scanEnd(output []byte, first, last int) error {
	for row := first; row < last; row++ {
		values := output[4*row*d.Columns:][:4*d.Columns]
		score, class := element(values, 4), element(values, 5)
		if score < d.threshold {
			continue
		}
		if !finite(values[4*4 : 4*6]) {
			return notFinite(d.Output)
		}
		if class >= 0 && class < float32(d.NumClasses) {
			d.add(candidate{score: score, row: uint32(row), class: uint16(class)})
		}
	}
	return nil
}

func (d *yolo) locate(c candidate, outputs [][]byte) (wire.Box, error) {
	b := wire.Box{Class: c.class, Score: c.score}
	output := outputs[d.Output]
	x, y := d.value(output, c.row, 0), d.value(output, c.row, 1)
	width, height := d.value(output, c.row, 2), d.value(output, c.row, 3)
	switch d.Style {
	case models.YOLOv10: // corners
		b.X0, b.Y0, b.X1, b.Y1 = x/d.width, y/d.height, width/d.width, height/d.height
		return b, nil
	case models.YOLOX:
		i := len(d.grids) - 1
		for int(c.row) < d.grids[i].first {
			i--
		}
		g := d.grids[i]
		cell := int(c.row) - g.first
		x, y = (x+float32(cell%g.columns))*g.stride, (y+float32(cell/g.columns))*g.stride
		width, height = exp(width)*g.stride, exp(height)*g.stride
	}
	b.X0, b.Y0 = (x-width/2)/d.width, (y-height/2)/d.height
	b.X1, b.Y1 = (x+width/2)/d.width, (y+height/2)/d.height
	return b, nil
}

func exp(v float32) float32 { return float32(math.Exp(float64(v))) }

// appendPoints appends the boxes with their key points. A point without a score has score 1.
func (d *yolo) appendPoints(dst []byte, output []byte) ([]byte, error) {
	d.points = d.points[:0]
	n, values := d.KeyPoints[0], d.KeyPoints[1]
	for _, c := range d.from {
		for i := range n {
			at := d.extra() + i*values
			p := wire.Point{X: d.value(output, c.row, at) / d.width, Y: d.value(output, c.row, at+1) / d.height, Score: 1}
			if values == 3 {
				p.Score = d.value(output, c.row, at+2)
			}
			if (p.X+p.Y+p.Score)*0 != 0 {
				return nil, notFinite(d.Output)
			}
			d.points = append(d.points, p)
		}
	}
	return wire.AppendPoints(dst, d.kept, d.points, n), nil
}

// appendMasks appends the boxes with their masks. A cell belongs to the mask if the sum of the prototypes,
// multiplied by the box's coefficients, is positive.
func (d *yolo) appendMasks(dst []byte, outputs [][]byte) ([]byte, error) {
	output, prototypes := outputs[d.Output], outputs[d.Prototypes]
	rows, columns := d.Grid[0], d.Grid[1]
	payload := wire.AppendMasksHead(dst, rows, columns)
	for i, c := range d.from {
		whole := d.whole[i]
		x0, x1 := cells(whole.X0, whole.X1, columns)
		y0, y1 := cells(whole.Y0, whole.Y1, rows)
		payload = wire.AppendMasked(payload, d.kept[i], wire.Mask{X: uint16(x0), Y: uint16(y0), Columns: uint16(x1 - x0), Rows: uint16(y1 - y0)})
		bits := payload[len(payload)-((x1-x0)*(y1-y0)+7)/8:]
		for n, y := 0, y0; y < y1; y++ {
			for x := x0; x < x1; x, n = x+1, n+1 {
				sum := float32(0)
				for k := range d.Extra {
					sum += d.value(output, c.row, d.extra()+k) * element(prototypes, (k*rows+y)*columns+x)
				}
				if sum*0 != 0 {
					return nil, notFinite(d.Prototypes)
				}
				if sum > 0 {
					bits[n/8] |= 1 << (n % 8)
				}
			}
		}
	}
	return payload, nil
}

// cells returns the first and the end of the cells whose corners are from least to below most, which are
// fractions.
func cells(least, most float32, n int) (first, end int) {
	first = int(math.Ceil(float64(clip(least) * float32(n))))
	end = int(math.Ceil(float64(clip(most) * float32(n))))
	return first, max(first, end)
}
