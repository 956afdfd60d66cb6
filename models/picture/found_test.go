package picture

import (
	"image"
	"image/color"
	"reflect"
	"testing"

	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/wire"
)

// A photo of 200 x 100 lies in the middle of an input of 100 x 100.
func letterboxed() Frame {
	_, frame := Resize(image.NewRGBA(image.Rect(0, 0, 200, 100)), &models.Input{Height: 100, Width: 100, Channels: 3, WireType: models.U8, WireLayout: models.HWC})
	return frame
}

func TestFind(t *testing.T) {
	box := wire.Box{Class: 3, Score: 0.5, X0: 0.5, Y0: 0.25, X1: 1, Y1: 0.5}
	margin := wire.Box{X0: 0, Y0: 0, X1: 1, Y1: 0.2} // above the photo
	where := image.Rect(100, 0, 200, 50)
	for name, c := range map[string]struct {
		content wire.Content
		want    []Found
	}{
		"boxes": {wire.Content{Boxes: []wire.Box{margin, box}}, []Found{{1, 3, 0.5, where, Shape{}}}},
		"points": {
			wire.Content{Boxes: []wire.Box{margin, box}, PerBox: 1, Points: []wire.Point{{}, {X: 0.5, Y: 0.5}}},
			[]Found{{1, 3, 0.5, where, Shape{Points: []image.Point{{100, 50}}}}},
		},
		"mask": {
			wire.Content{Boxes: []wire.Box{box}, Rows: 4, Columns: 4, Masks: []wire.Mask{{X: 1, Y: 1, Columns: 3, Rows: 2, Bits: []byte{0b110101}}}},
			[]Found{{0, 3, 0.5, where, Shape{Mask: []image.Rectangle{
				image.Rect(50, 0, 100, 50), image.Rect(150, 0, 200, 50), image.Rect(100, 50, 200, 100),
			}}}},
		},
		"polygon": {
			wire.Content{Polygons: []wire.Polygon{{Class: 3, Score: 0.5, Points: []wire.Point{{X: 0.5, Y: 0.25}, {X: 1, Y: 0.25}, {X: 0.75, Y: 0.5}}}}},
			[]Found{{0, 3, 0.5, where, Shape{Outline: []image.Point{{100, 0}, {200, 0}, {150, 50}}}}},
		},
	} {
		if got := letterboxed().Find(&c.content); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: got %+v, want %+v", name, got, c.want)
		}
	}
}

func TestDrawShape(t *testing.T) {
	red := color.RGBA{R: 0xff, A: 0xff}
	photo := image.NewRGBA(image.Rect(0, 0, 60, 60))
	canvas := Draw(photo, []Mark{{Box: image.Rect(10, 10, 50, 50), Colour: red, Shape: Shape{
		Points: []image.Point{{30, 40}}, Outline: []image.Point{{10, 10}, {50, 30}, {30, 50}}, Mask: []image.Rectangle{image.Rect(20, 25, 40, 30)},
	}}})
	for name, c := range map[string]struct {
		at     image.Point
		red, a uint8
	}{
		"point": {image.Pt(30, 40), 0xff, 0xff}, "corner": {image.Pt(50, 30), 0xff, 0xff}, "edge": {image.Pt(30, 20), 0xff, 0xff},
		"mask": {image.Pt(30, 27), 0x60, 0x60}, "corner of the box": {image.Pt(49, 10), 0, 0}, "outside": {image.Pt(5, 5), 0, 0},
	} {
		if got := canvas.RGBAAt(c.at.X, c.at.Y); got.R != c.red || got.A != c.a {
			t.Errorf("%s is %v", name, got)
		}
	}
}
