//go:build cgo

package decode_test

import (
	"fmt"
	"image"
	"image/jpeg"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"golang.org/x/image/draw"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/libml/framework"
	"github.com/penstock/penstock/libml/onnx"
	"github.com/penstock/penstock/libml/reference"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/models/zoo"
	"github.com/penstock/penstock/wire"
)

// The decoders' tests assume a meaning of a model's outputs. These tests check it: they run the
// shipped models on pictures with known contents.

func shipped(t *testing.T, name string) *models.Card {
	t.Helper()
	card, err := zoo.Registry{Cache: t.TempDir()}.Find(name)
	must.OK(t, err)
	return card
}

func load(t *testing.T, card *models.Card) *reference.Model {
	t.Helper()
	r, err := reference.New(card, func(*models.Card) (framework.Framework, error) { return onnx.New(), nil })
	must.OK(t, err)
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// frame is a letterboxed picture: RGB as on the wire, and the place of the picture in it.
type frame struct {
	rgb   []byte
	side  int
	inner image.Rectangle
}

func letterbox(t *testing.T, name string, side int) frame {
	t.Helper()
	file, err := zoo.PictureFS().Open(name + ".jpg")
	must.OK(t, err)
	photo, err := jpeg.Decode(file)
	must.OK(t, err)
	size, longer := photo.Bounds().Size(), max(photo.Bounds().Dx(), photo.Bounds().Dy())
	width, height := size.X*side/longer, size.Y*side/longer
	corner := image.Pt((side-width)/2, (side-height)/2)
	f := frame{side: side, inner: image.Rectangle{Min: corner, Max: corner.Add(image.Pt(width, height))}}
	canvas := image.NewRGBA(image.Rect(0, 0, side, side))
	draw.BiLinear.Scale(canvas, f.inner, photo, photo.Bounds(), draw.Src, nil)
	for pixel := range slices.Chunk(canvas.Pix, 4) {
		f.rgb = append(f.rgb, pixel[:3]...)
	}
	return f
}

// mirrored returns the picture with left and right exchanged.
func (f frame) mirrored() frame {
	var rgb []byte
	for row := range slices.Chunk(f.rgb, 3*f.side) {
		for x := f.side - 1; x >= 0; x-- {
			rgb = append(rgb, row[3*x:3*x+3]...)
		}
	}
	return frame{rgb: rgb, side: f.side, inner: f.inner}
}

// found is a box in pixels of the frame.
type found struct {
	label          string
	score          float32
	x0, y0, x1, y1 float32
}

func (f found) String() string {
	return fmt.Sprintf("%s %.2f (%.0f,%.0f)-(%.0f,%.0f)", f.label, f.score, f.x0, f.y0, f.x1, f.y1)
}

func find(t *testing.T, r *reference.Model, card *models.Card, f frame) []found {
	t.Helper()
	payload, kind, err := r.Answer(f.rgb)
	if err != nil || kind != uint8(wire.KindBoxes) {
		t.Fatalf("kind %d, %v", kind, err)
	}
	boxes, err := wire.DecodeBoxes(nil, payload)
	must.OK(t, err)
	var list []found
	for _, b := range boxes {
		if int(b.Class) >= len(card.Labels) {
			t.Fatalf("class %d, the card has %d labels", b.Class, len(card.Labels))
		}
		side := float32(f.side)
		list = append(list, found{card.Labels[b.Class], b.Score, b.X0 * side, b.Y0 * side, b.X1 * side, b.Y1 * side})
	}
	return list
}

func TestFaces(t *testing.T) {
	card := shipped(t, "face")
	r := load(t, card)
	faces := find(t, r, card, letterbox(t, "astronaut", card.Input.Width))
	if len(faces) != 1 || faces[0].label != "face" || faces[0].score < 0.85 {
		t.Fatalf("found %v, want one face of at least 0.85", faces)
	}
	// From chin to brow and from ear to ear, measured in the photo of 512 x 512: 180..270
	// across, 80..178 down; a quarter of that here.
	face := faces[0]
	for _, edge := range []struct {
		name      string
		got, want float32
	}{{"left", face.x0, 45}, {"upper", face.y0, 20}, {"right", face.x1, 67.5}, {"lower", face.y1, 44.5}} {
		if math.Abs(float64(edge.got-edge.want)) > 4 {
			t.Errorf("%s edge at %.1f, want about %.1f", edge.name, edge.got, edge.want)
		}
	}
	for _, name := range []string{"astronaut", "grace_hopper"} {
		if faces := find(t, r, card, letterbox(t, name, card.Input.Width).mirrored()); len(faces) != 1 {
			t.Errorf("found %v in the mirrored %s, want one face", faces, name)
		}
	}
}

// TestNoFaces checks the threshold of the card: research/convert/validate_face.py has chosen it.
func TestNoFaces(t *testing.T) {
	card := shipped(t, "face")
	r := load(t, card)
	side := card.Input.Width
	for _, name := range []string{"chelsea", "coffee", "rocket"} {
		f := letterbox(t, name, side)
		for _, f := range []frame{f, f.mirrored()} {
			if faces := find(t, r, card, f); len(faces) != 0 {
				t.Errorf("found %v in %s", faces, name)
			}
		}
	}

	const patterns, want = 300, 3 // at most 1 % false alarms
	alarms := 0
	random := rand.New(rand.NewPCG(20261128, 0))
	for range patterns {
		if len(find(t, r, card, frame{rgb: pattern(random, side), side: side})) > 0 {
			alarms++
		}
	}
	t.Logf("faces in %d of %d patterns", alarms, patterns)
	if alarms > want {
		t.Errorf("faces in %d of %d patterns, want at most %d", alarms, patterns, want)
	}
}

// pattern draws a test pattern in one colour on another: rings, dots, squares, waves, or noise,
// of any period.
func pattern(random *rand.Rand, side int) (rgb []byte) {
	colours := make([]float64, 6)
	for i := range colours {
		colours[i] = 255 * random.Float64()
	}
	middle := float64(side) / 2
	kind, period := random.IntN(5), 4+60*random.Float64()
	for y := range side {
		for x := range side {
			x, y := float64(x), float64(y)
			part := 0.0
			switch kind {
			case 0:
				part = 0.5 + 0.5*math.Sin(2*math.Pi*math.Hypot(x-middle, y-middle)/period)
			case 1:
				if math.Hypot(math.Mod(x, period)-period/2, math.Mod(y, period)-period/2) < period/3 {
					part = 1
				}
			case 2:
				part = math.Mod(math.Floor(x/period)+math.Floor(y/period), 2)
			case 3:
				part = 0.5 + 0.25*math.Sin(2*math.Pi*x/period) + 0.25*math.Sin(2*math.Pi*y/period)
			case 4:
				part = random.Float64()
			}
			for c := range 3 {
				rgb = append(rgb, byte(part*colours[c]+(1-part)*colours[3+c]))
			}
		}
	}
	return rgb
}

func TestObjects(t *testing.T) {
	card := shipped(t, "detect")
	r := load(t, card)
	for picture, labels := range map[string][]string{
		"astronaut":    {"person"},
		"chelsea":      {"cat"},
		"coffee":       {"dining table", "cup"},
		"grace_hopper": {"person"},
	} {
		list := find(t, r, card, letterbox(t, picture, card.Input.Width))
		if len(list) == 0 || !slices.Contains(labels, list[0].label) {
			t.Errorf("%s: found %v, want one of %v first", picture, list, labels)
		}
	}
}

// Some models of this family count a distance from the middle of a cell, (i+0.5)*stride,
// others from its corner, i*stride. The two differ by half a stride, which is 16 pixels for
// the largest cells. Two checks distinguish them:
//
//   - The box of a mirrored object is the mirrored box. Counted from the wrong point, both
//     are displaced to the same side of the frame, so they differ by a whole stride.
//   - A table that fills the picture ends at the picture's edge, next to the black border of
//     the letterbox.
func TestCellMiddle(t *testing.T) {
	const stride, tolerance = 32, 8
	card := shipped(t, "detect")
	levels := card.Decoder.Params["levels"].([]any)
	coarsest := levels[len(levels)-1].(map[string]any)
	if coarsest["stride"] != int64(stride) {
		t.Fatalf("the coarsest level is %v, want stride %d", coarsest, stride)
	}
	card.Decoder.Params["levels"] = []any{coarsest}
	r := load(t, card)
	best := func(f frame) found {
		list := find(t, r, card, f)
		if len(list) == 0 {
			t.Fatal("found nothing")
		}
		return list[0]
	}
	for _, picture := range []string{"astronaut", "chelsea", "coffee", "grace_hopper"} {
		f := letterbox(t, picture, card.Input.Width)
		seen, mirror := best(f), best(f.mirrored())
		middle := (seen.x0 + seen.x1) / 2
		drift := middle - (float32(f.side) - (mirror.x0+mirror.x1)/2)
		t.Logf("%s: %v drifts by %.1f pixels, from the corner by %.1f", picture, seen, drift, drift-stride)
		if seen.label != mirror.label || math.Abs(float64(drift)) > tolerance {
			t.Errorf("%s: %v, in the mirror %v: the middle drifts by %.1f pixels", picture, seen, mirror, drift)
		}
	}
	f := letterbox(t, "coffee", card.Input.Width)
	table := best(f)
	if math.Abs(float64(table.y0)-float64(f.inner.Min.Y)) > tolerance || math.Abs(float64(table.y1)-float64(f.inner.Max.Y)) > tolerance {
		t.Errorf("%v, want it from %d to %d down", table, f.inner.Min.Y, f.inner.Max.Y)
	}
}

func TestFashion(t *testing.T) {
	card := shipped(t, "fashion")
	r := load(t, card)
	images, labels, err := zoo.FashionTest()
	must.OK(t, err)
	const tried = 200
	right := 0
	for i, image := range images[:tried] {
		payload, kind, err := r.Answer(image)
		if err != nil || kind != uint8(wire.KindTopK) {
			t.Fatalf("kind %d, %v", kind, err)
		}
		classes, err := wire.DecodeTopK(nil, payload)
		if err != nil || len(classes) != 5 {
			t.Fatalf("classes %v, %v, want five", classes, err)
		}
		sum := float32(0)
		for _, c := range classes {
			sum += c.P
		}
		if sum > 1.001 || classes[0].P < 1./float32(len(card.Labels)) {
			t.Errorf("image %d: %v are no probabilities of the likeliest", i, classes)
		}
		if int(classes[0].Class) == int(labels[i]) {
			right++
		}
	}
	if right < tried*85/100 {
		t.Errorf("%d of %d are right", right, tried)
	}
}
