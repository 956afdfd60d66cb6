package sweep

import (
	"fmt"
	"image/color"
	"io"
	"math"
	"slices"
	"strconv"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"

	"github.com/penstock/penstock/models/profile"
)

// The colours of the batches are Okabe and Ito's, which colour-blind readers tell
// apart, again from the first where there are more.
var batchColours = []color.Color{
	color.RGBA{R: 0x00, G: 0x72, B: 0xb2, A: 0xff}, color.RGBA{R: 0xe6, G: 0x9f, B: 0x00, A: 0xff},
	color.RGBA{R: 0x00, G: 0x9e, B: 0x73, A: 0xff}, color.RGBA{R: 0xcc, G: 0x79, B: 0xa7, A: 0xff},
	color.RGBA{R: 0xd5, G: 0x5e, B: 0x00, A: 0xff}, color.RGBA{R: 0x56, G: 0xb4, B: 0xe9, A: 0xff},
	color.RGBA{R: 0x99, G: 0x99, B: 0x99, A: 0xff}, color.RGBA{A: 0xff},
}

const (
	plotWidth  = 26 * vg.Centimeter
	plotHeight = 11 * vg.Centimeter
)

// Plot draws a profile as SVG: throughput and latency over the share, a line for each
// batch size with the fewest processes it was measured with, a ring at its knee, and
// on the left small dots for what more processes do.
func Plot(w io.Writer, p profile.Profile) error {
	throughput := axes(fmt.Sprintf("%s on %s", p.Header.Model, p.Header.GPU), shareLabel(p.Header.Unit), "images a second")
	latency := axes("the mean time of a batch; rings are knees", shareLabel(p.Header.Unit), "ms")
	knees := map[int]int{}
	for _, k := range profile.Knees(p.Points) {
		knees[k.Batch] = k.Share
	}
	curves := byBatch(p.Points)
	for i, batch := range batchesOf(p.Points) {
		colour := batchColours[i%len(batchColours)]
		var rates, times, more, rings, ringsOfTimes plotter.XYs
		for _, q := range curves[batch] {
			x := float64(q.Share)
			if q.Processes > curves[batch][0].Processes {
				more = append(more, plotter.XY{X: x, Y: q.Total()})
				continue
			}
			rate, ms := plotter.XY{X: x, Y: q.Total()}, plotter.XY{X: x, Y: float64(q.Latency) / float64(time.Millisecond)}
			rates, times = append(rates, rate), append(times, ms)
			if knee, ok := knees[batch]; ok && knee == q.Share {
				rings, ringsOfTimes = append(rings, rate), append(ringsOfTimes, ms)
			}
		}
		slices.SortFunc(rates, byX)
		slices.SortFunc(times, byX)
		line, err := addLine(throughput, rates, colour)
		if err != nil {
			return fmt.Errorf("plot profile: %w", err)
		}
		throughput.Legend.Add("batch "+strconv.Itoa(batch), line)
		if _, err := addLine(latency, times, colour); err != nil {
			return fmt.Errorf("plot profile: %w", err)
		}
		for _, marks := range []struct {
			on     *plot.Plot
			at     plotter.XYs
			shape  draw.GlyphDrawer
			radius vg.Length
		}{
			{throughput, more, draw.CircleGlyph{}, vg.Points(1.3)},
			{throughput, rings, draw.RingGlyph{}, vg.Points(5)},
			{latency, ringsOfTimes, draw.RingGlyph{}, vg.Points(5)},
		} {
			if err := addMarks(marks.on, marks.at, colour, marks.shape, marks.radius); err != nil {
				return fmt.Errorf("plot profile: %w", err)
			}
		}
	}
	canvas := vgsvg.New(plotWidth, plotHeight)
	plots := []*plot.Plot{throughput, latency}
	tiles := draw.Tiles{Rows: 1, Cols: 2, PadX: vg.Points(18), PadTop: vg.Points(6), PadBottom: vg.Points(6), PadLeft: vg.Points(6), PadRight: vg.Points(10)}
	for i, c := range plot.Align([][]*plot.Plot{plots}, tiles, draw.New(canvas))[0] {
		plots[i].Draw(c)
	}
	if _, err := canvas.WriteTo(w); err != nil {
		return fmt.Errorf("plot profile: %w", err)
	}
	return nil
}

func byX(a, b plotter.XY) int { return int(math.Copysign(1, a.X-b.X)) }

// byBatch are the points that ran, by batch, those with the fewest processes first.
func byBatch(points []profile.Point) map[int][]profile.Point {
	curves := map[int][]profile.Point{}
	for _, p := range points {
		if !p.OOM {
			curves[p.Batch] = append(curves[p.Batch], p)
		}
	}
	for _, c := range curves {
		slices.SortStableFunc(c, func(a, b profile.Point) int { return a.Processes - b.Processes })
	}
	return curves
}

// batchesOf are the batch sizes that ran, ascending.
func batchesOf(points []profile.Point) (batches []int) {
	for _, p := range points {
		if !p.OOM {
			batches = append(batches, p.Batch)
		}
	}
	slices.Sort(batches)
	return slices.Compact(batches)
}

func shareLabel(unit profile.Unit) string {
	if unit == profile.GPCs {
		return "share: GPCs"
	}
	return "share: percent of the device"
}

func sans(size vg.Length) font.Font {
	return font.Font{Typeface: "Liberation", Variant: "Sans", Size: size}
}

// axes is an empty plot from 0 on, with a grid.
func axes(title, x, y string) *plot.Plot {
	plot.DefaultFont, plotter.DefaultFont = sans(10), sans(9)
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, x, y
	p.Title.TextStyle.Font = sans(11)
	p.Title.Padding = vg.Points(6)
	for _, axis := range []*plot.Axis{&p.X, &p.Y} {
		axis.Label.TextStyle.Font, axis.Tick.Label.Font = sans(10), sans(9)
		axis.Min = 0
	}
	p.Legend.TextStyle.Font = sans(9)
	p.Legend.Top, p.Legend.Left = true, true
	grid := plotter.NewGrid()
	faint := color.RGBA{R: 0xe8, G: 0xe8, B: 0xe8, A: 0xff}
	grid.Vertical.Color, grid.Horizontal.Color = faint, faint
	p.Add(grid)
	return p
}

func addLine(p *plot.Plot, at plotter.XYs, colour color.Color) (*plotter.Line, error) {
	line, err := plotter.NewLine(at)
	if err != nil {
		return nil, err
	}
	line.Color, line.Width = colour, vg.Points(1.4)
	p.Add(line)
	return line, addMarks(p, at, colour, draw.CircleGlyph{}, vg.Points(2))
}

func addMarks(p *plot.Plot, at plotter.XYs, colour color.Color, shape draw.GlyphDrawer, radius vg.Length) error {
	if len(at) == 0 {
		return nil
	}
	marks, err := plotter.NewScatter(at)
	if err != nil {
		return err
	}
	marks.GlyphStyle = draw.GlyphStyle{Color: colour, Radius: radius, Shape: shape}
	p.Add(marks)
	return nil
}
