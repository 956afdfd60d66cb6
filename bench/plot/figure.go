package main

import (
	"cmp"
	"image"
	"image/color"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
)

// The colours are Okabe and Ito's, which colour-blind readers tell apart; what is
// bare is grey.
var (
	blue   = color.RGBA{R: 0x00, G: 0x72, B: 0xb2, A: 0xff}
	orange = color.RGBA{R: 0xe6, G: 0x9f, B: 0x00, A: 0xff}
	green  = color.RGBA{R: 0x00, G: 0x9e, B: 0x73, A: 0xff}
	purple = color.RGBA{R: 0xcc, G: 0x79, B: 0xa7, A: 0xff}
	red    = color.RGBA{R: 0xd5, G: 0x5e, B: 0x00, A: 0xff}
	grey   = color.RGBA{R: 0x99, G: 0x99, B: 0x99, A: 0xff}
	light  = color.RGBA{R: 0xd0, G: 0xd0, B: 0xd0, A: 0xff}
	black  = color.RGBA{A: 0xff}
	faint  = color.RGBA{R: 0xe8, G: 0xe8, B: 0xe8, A: 0xff}
)

const (
	width  = 24 * vg.Centimeter
	height = 11 * vg.Centimeter
	dpi    = 100
)

func sans(size vg.Length) font.Font {
	return font.Font{Typeface: "Liberation", Variant: "Sans", Size: size}
}

// newPlot is an empty one with a title that says what is seen, and a grid.
func newPlot(title, x, y string) *plot.Plot {
	plot.DefaultFont = sans(10)
	plotter.DefaultFont = sans(9)
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, x, y
	p.Title.TextStyle.Font = sans(12)
	p.Title.Padding = vg.Points(8)
	for _, axis := range []*plot.Axis{&p.X, &p.Y} {
		axis.Label.TextStyle.Font, axis.Tick.Label.Font = sans(10), sans(9)
		axis.LineStyle.Color, axis.Tick.LineStyle.Color = grey, grey
		axis.Tick.Marker = plot.TickerFunc(plainTicks)
	}
	p.Legend.TextStyle.Font = sans(9)
	p.Legend.Top = true
	p.Legend.Padding = vg.Points(2)
	p.Legend.ThumbnailWidth = vg.Points(16)
	grid := plotter.NewGrid()
	grid.Vertical.Color, grid.Horizontal.Color = faint, faint
	p.Add(grid)
	return p
}

// save writes plots side by side as NAME.png.
func save(dir, name string, plots ...*plot.Plot) error {
	return saveRows(dir, name, [][]*plot.Plot{plots})
}

// saveRows writes rows of plots, of as many each, as NAME.png.
func saveRows(dir, name string, plots [][]*plot.Plot) error {
	canvas := vgimg.NewWith(vgimg.UseWH(width, height*vg.Length(len(plots))), vgimg.UseDPI(dpi), vgimg.UseBackgroundColor(color.White))
	tiles := draw.Tiles{Rows: len(plots), Cols: len(plots[0]), PadX: vg.Points(16), PadY: vg.Points(12),
		PadTop: vg.Points(6), PadBottom: vg.Points(6), PadLeft: vg.Points(6), PadRight: vg.Points(10)}
	for i, row := range plot.Align(plots, tiles, draw.New(canvas)) {
		for j, c := range row {
			if plots[i][j] != nil {
				plots[i][j].Draw(c)
			}
		}
	}
	return writePNG(dir, name, canvas)
}

// fewColours is an image in its 256 most frequent colours, the others as the nearest
// of these: only edges of letters and lines have more, and the file is half as large.
func fewColours(img image.Image) image.Image {
	count := map[color.RGBA]int{}
	bounds := img.Bounds()
	at := func(x, y int) color.RGBA { return color.RGBAModel.Convert(img.At(x, y)).(color.RGBA) }
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			count[at(x, y)]++
		}
	}
	colours := slices.SortedFunc(maps.Keys(count), func(a, b color.RGBA) int {
		return cmp.Or(count[b]-count[a], int(a.R)-int(b.R), int(a.G)-int(b.G), int(a.B)-int(b.B))
	})
	palette := make(color.Palette, 0, 256)
	index := map[color.RGBA]uint8{}
	for i, c := range colours {
		if i < cap(palette) {
			palette = append(palette, c)
		}
		index[c] = uint8(palette.Index(c))
	}
	out := image.NewPaletted(bounds, palette)
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			out.SetColorIndex(x, y, index[at(x, y)])
		}
	}
	return out
}

// bars is one colour's bar in each group; a NaN leaves a gap. A label stands over
// each bar.
type bars struct {
	name   string
	color  color.Color
	values []float64
	labels []string
}

// grouped adds bars side by side, which begin at base, a group for each name.
func grouped(p *plot.Plot, base float64, groups []string, series ...bars) error {
	const part = 0.8 // of a group's width
	each := part / float64(len(series))
	for i, s := range series {
		offset := -part/2 + each*(float64(i)+0.5)
		var tops plotter.XYLabels
		for g, v := range s.values {
			if math.IsNaN(v) {
				continue
			}
			if err := box(p, float64(g)+offset, each*0.92, base, v, s.color); err != nil {
				return err
			}
			if g < len(s.labels) {
				tops.XYs = append(tops.XYs, plotter.XY{X: float64(g) + offset, Y: v})
				tops.Labels = append(tops.Labels, s.labels[g])
			}
		}
		if err := over(p, tops); err != nil {
			return err
		}
		p.Legend.Add(s.name, swatch{s.color})
	}
	p.NominalX(groups...)
	p.X.Min, p.X.Max = -0.5, float64(len(groups))-0.5
	return nil
}

// box fills a rectangle, in data's coordinates.
func box(p *plot.Plot, centre, width, from, to float64, c color.Color) error {
	x0, x1 := centre-width/2, centre+width/2
	b, err := plotter.NewPolygon(plotter.XYs{{X: x0, Y: from}, {X: x1, Y: from}, {X: x1, Y: to}, {X: x0, Y: to}})
	if err != nil {
		return err
	}
	b.Color, b.LineStyle.Width = c, 0
	p.Add(b)
	return nil
}

// over puts labels over points.
func over(p *plot.Plot, l plotter.XYLabels) error {
	if len(l.XYs) == 0 {
		return nil
	}
	labels, err := plotter.NewLabels(l)
	if err != nil {
		return err
	}
	for i := range labels.TextStyle {
		labels.TextStyle[i].Font = sans(7.5)
		labels.TextStyle[i].XAlign = text.XCenter
	}
	labels.Offset = vg.Point{Y: vg.Points(3)}
	p.Add(labels)
	return nil
}

// swatch is a colour in a legend.
type swatch struct{ color color.Color }

// Thumbnail implements plot.Thumbnailer.
func (s swatch) Thumbnail(c *draw.Canvas) {
	c.FillPolygon(s.color, []vg.Point{{X: c.Min.X, Y: c.Min.Y}, {X: c.Min.X, Y: c.Max.Y}, {X: c.Max.X, Y: c.Max.Y}, {X: c.Max.X, Y: c.Min.Y}})
}

// target draws a dashed line at a value that must be reached, or not passed.
func target(p *plot.Plot, name string, from, to plotter.XY) error {
	line, err := plotter.NewLine(plotter.XYs{from, to})
	if err != nil {
		return err
	}
	line.Color, line.Width = red, vg.Points(1.5)
	line.Dashes = []vg.Length{vg.Points(6), vg.Points(3)}
	p.Add(line)
	p.Legend.Add(name, line)
	return nil
}

// line adds points joined by a line; a dashed one is for what runs beside others.
func line(p *plot.Plot, name string, c color.Color, dashed bool, points plotter.XYs) error {
	l, s, err := plotter.NewLinePoints(points)
	if err != nil {
		return err
	}
	l.Color, l.Width = c, vg.Points(1.6)
	s.Color, s.Shape, s.Radius = c, draw.CircleGlyph{}, vg.Points(2)
	if dashed {
		l.Dashes = []vg.Length{vg.Points(4), vg.Points(2)}
		s.Shape = draw.RingGlyph{}
	}
	p.Add(l, s)
	p.Legend.Add(name, l, s)
	return nil
}

// plainTicks are the usual ones, their numbers written out.
func plainTicks(least, most float64) []plot.Tick {
	ticks := plot.DefaultTicks{}.Ticks(least, most)
	for i := range ticks {
		if ticks[i].Label != "" {
			ticks[i].Label = strconv.FormatFloat(math.Round(ticks[i].Value*1e6)/1e6, 'f', -1, 64)
		}
	}
	return ticks
}

// timeTicks are powers of ten of a time in units of unit, written as a time.
func timeTicks(unit time.Duration) plot.Ticker {
	return plot.TickerFunc(func(least, most float64) (ticks []plot.Tick) {
		for v := math.Pow(10, math.Floor(math.Log10(least))); v <= most; v *= 10 {
			if v >= least {
				ticks = append(ticks, plot.Tick{Value: v, Label: span(v * float64(unit))})
			}
			for minor := 2.0; minor < 10; minor++ {
				if m := v * minor; m >= least && m <= most {
					ticks = append(ticks, plot.Tick{Value: m})
				}
			}
		}
		return ticks
	})
}

// span writes nanoseconds with two or three digits.
func span(nanoseconds float64) string {
	for _, u := range []struct {
		name string
		size float64
	}{{"s", 1e9}, {"ms", 1e6}, {"µs", 1e3}} {
		if v := nanoseconds / u.size; v >= 0.9995 {
			return short(v) + " " + u.name
		}
	}
	return short(nanoseconds) + " ns"
}

// short writes a number with two or three digits, and no zeros at its end.
func short(v float64) string {
	switch {
	case v >= 100:
		return number(v)
	case v >= 10:
		v = math.Round(v*10) / 10
	default:
		v = math.Round(v*100) / 100
	}
	return strconv.FormatFloat(v, 'f', -1, 64)
}

// number writes 11432 as 11,432.
func number(v float64) string {
	s := strconv.FormatInt(int64(math.Round(v)), 10)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
