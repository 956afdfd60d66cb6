package main

import (
	"fmt"
	"image/color"
	"image/png"
	"math"
	"os"
	"path/filepath"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
)

// sheet is plots in rows with one title and one legend above all of them: legends in
// small plots hide what they explain.
type sheet struct {
	title  string
	legend []entry
	rows   [][]*plot.Plot // nil: an empty place
	high   vg.Length      // of a row
}

// entry is one of a legend.
type entry struct {
	name   string
	color  color.Color
	dashed bool
}

const (
	sheetWidth  = 30 * vg.Centimeter
	entryHeight = 5 * vg.Millimeter
	entryThumb  = 7 * vg.Millimeter
	entryGap    = 6 * vg.Millimeter
	titleHeight = 9 * vg.Millimeter
	sheetMargin = 4 * vg.Millimeter
)

// save writes the sheet as NAME.png.
func (s sheet) save(dir, name string) error {
	style := draw.TextStyle{Color: color.Black, Font: sans(9), Handler: plot.DefaultTextHandler, YAlign: draw.YCenter}
	title := style
	title.Font = sans(13)
	if w := title.Width(s.title); w > sheetWidth-2*sheetMargin {
		title.Font = sans(13 * (sheetWidth - 2*sheetMargin) / w)
	}
	var places []vg.Point // of the legend's entries, from the top left
	x, y := sheetMargin, vg.Length(0)
	for _, e := range s.legend {
		w := entryThumb + 2*vg.Millimeter + style.Width(e.name) + entryGap
		if x > sheetMargin && x+w > sheetWidth {
			x, y = sheetMargin, y+entryHeight
		}
		places = append(places, vg.Point{X: x, Y: y})
		x += w
	}
	top := titleHeight + y + entryHeight + 3*vg.Millimeter
	full := top + s.high*vg.Length(len(s.rows)) + sheetMargin
	canvas := vgimg.NewWith(vgimg.UseWH(sheetWidth, full), vgimg.UseDPI(dpi), vgimg.UseBackgroundColor(color.White))
	c := draw.New(canvas)
	c.FillText(title, vg.Point{X: sheetMargin, Y: full - titleHeight/2 - vg.Millimeter}, s.title)
	for i, e := range s.legend {
		at := vg.Point{X: places[i].X, Y: full - titleHeight - places[i].Y - entryHeight/2}
		line := draw.LineStyle{Color: e.color, Width: vg.Points(6)}
		if e.dashed {
			line.Width, line.Dashes = vg.Points(1.5), []vg.Length{vg.Points(4), vg.Points(2)}
		}
		c.StrokeLine2(line, at.X, at.Y, at.X+entryThumb, at.Y)
		c.FillText(style, vg.Point{X: at.X + entryThumb + 2*vg.Millimeter, Y: at.Y}, e.name)
	}
	body := draw.Crop(c, 0, 0, 0, -top)
	tiles := draw.Tiles{Rows: len(s.rows), Cols: len(s.rows[0]), PadX: 5 * vg.Millimeter, PadY: 4 * vg.Millimeter,
		PadBottom: sheetMargin, PadLeft: sheetMargin, PadRight: sheetMargin}
	for i, row := range plot.Align(s.rows, tiles, body) {
		for j, c := range row {
			if s.rows[i][j] != nil {
				s.rows[i][j].Draw(c)
			}
		}
	}
	return writePNG(dir, name, canvas)
}

// writePNG writes what was drawn, in few colours.
func writePNG(dir, name string, canvas *vgimg.Canvas) error {
	path := filepath.Join(dir, name+".png")
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	encoder := png.Encoder{CompressionLevel: png.BestCompression}
	if err := encoder.Encode(file, fewColours(canvas.Image())); err != nil {
		file.Close()
		return err
	}
	fmt.Println(path)
	return file.Close()
}

// small is a plot for a sheet.
func small(title, x, y string) *plot.Plot {
	p := newPlot(title, x, y)
	p.Title.TextStyle.Font = sans(10)
	p.Title.Padding = vg.Points(4)
	for _, axis := range []*plot.Axis{&p.X, &p.Y} {
		axis.Label.TextStyle.Font, axis.Tick.Label.Font = sans(9), sans(8)
	}
	return p
}

// band is a line of medians with whiskers from least to most; what is not a number is
// left out, and breaks the line.
func band(p *plot.Plot, c color.Color, dashed bool, xs []float64, ys []spread) error {
	var part plotter.XYs
	flush := func() error {
		defer func() { part = nil }()
		if len(part) == 0 {
			return nil
		}
		l, s, err := plotter.NewLinePoints(part)
		if err != nil {
			return err
		}
		l.Color, l.Width = c, vg.Points(1.5)
		s.Color, s.Shape, s.Radius = c, draw.CircleGlyph{}, vg.Points(2)
		if dashed {
			l.Dashes = []vg.Length{vg.Points(4), vg.Points(2)}
			s.Shape = draw.RingGlyph{}
		}
		p.Add(l, s)
		return nil
	}
	for i, y := range ys {
		if math.IsNaN(y.median) {
			if err := flush(); err != nil {
				return err
			}
			continue
		}
		part = append(part, plotter.XY{X: xs[i], Y: y.median})
		if err := whisker(p, c, xs[i], y); err != nil {
			return err
		}
	}
	return flush()
}

// whisker is a line from least to most.
func whisker(p *plot.Plot, c color.Color, x float64, y spread) error {
	if y.runs < 2 || y.least == y.most {
		return nil
	}
	l, err := plotter.NewLine(plotter.XYs{{X: x, Y: y.least}, {X: x, Y: y.most}})
	if err != nil {
		return err
	}
	l.Color, l.Width = c, vg.Points(1)
	p.Add(l)
	return nil
}

// spreadBars adds bars of medians with whiskers side by side, from base, a group for each
// name; values[i][g] is the bar of colour i in group g.
func spreadBars(p *plot.Plot, base float64, groups []string, colours []color.Color, values [][]spread) error {
	const part = 0.84 // of a group's width
	each := part / float64(len(colours))
	for i, c := range colours {
		offset := -part/2 + each*(float64(i)+0.5)
		for g, v := range values[i] {
			if math.IsNaN(v.median) {
				continue
			}
			if err := box(p, float64(g)+offset, each*0.9, base, v.median, c); err != nil {
				return err
			}
			if err := whisker(p, black, float64(g)+offset, v); err != nil {
				return err
			}
		}
	}
	p.NominalX(groups...)
	p.X.Min, p.X.Max = -0.5, float64(len(groups))-0.5
	return nil
}

// across draws a dashed line through the whole plot at a height.
func across(p *plot.Plot, c color.Color, y float64) {
	f := plotter.NewFunction(func(float64) float64 { return y })
	f.Color, f.Width, f.Dashes, f.Samples = c, vg.Points(1.2), []vg.Length{vg.Points(6), vg.Points(3)}, 2
	p.Add(f)
}

// upright draws a thin line through the whole height at a moment.
func upright(p *plot.Plot, c color.Color, x float64) error {
	l, err := plotter.NewLine(plotter.XYs{{X: x, Y: p.Y.Min}, {X: x, Y: p.Y.Max}})
	if err != nil {
		return err
	}
	l.Color, l.Width, l.Dashes = c, vg.Points(0.8), []vg.Length{vg.Points(2), vg.Points(2)}
	p.Add(l)
	return nil
}

// logarithmic makes the y axis so, from least to most, with ticks at 1, 2 and 5, of which
// over many powers of ten only the first have a label.
func logarithmic(p *plot.Plot, least, most float64) {
	const many = 200
	p.Y.Min, p.Y.Max = least, most
	p.Y.Scale = plot.LogScale{}
	p.Y.Tick.Marker = plot.TickerFunc(func(from, to float64) (ticks []plot.Tick) {
		for power := math.Pow(10, math.Floor(math.Log10(from))); power <= to; power *= 10 {
			for _, step := range []float64{1, 2, 5} {
				if v := power * step; v >= from*0.999 && v <= to*1.001 {
					tick := plot.Tick{Value: v}
					if step == 1 || to/from < many {
						tick.Label = strconv.FormatFloat(v, 'g', 4, 64)
					}
					ticks = append(ticks, tick)
				}
			}
		}
		return ticks
	})
}
