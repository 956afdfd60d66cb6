package picture_test

import (
	"bytes"
	"errors"
	"image"
	"image/color"
	"image/jpeg"
	"image/png"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/models/picture"
	"pgregory.net/rapid"
)

var (
	red   = color.RGBA{0xff, 0, 0, 0xff}
	green = color.RGBA{0, 0xff, 0, 0xff}
	blue  = color.RGBA{0, 0, 0xff, 0xff}
)

// plain returns a photo of one colour. Its bounds need not begin at 0.
func plain(bounds image.Rectangle, colour color.Color) *image.RGBA {
	img := image.NewRGBA(bounds)
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			img.Set(x, y, colour)
		}
	}
	return img
}

func input(height, width, channels int, fit string) *models.Input {
	return &models.Input{Height: height, Width: width, Channels: channels, WireType: models.U8, WireLayout: models.HWC, Fit: fit}
}

func TestLetterbox(t *testing.T) {
	for _, test := range []struct {
		name        string
		photo       image.Rectangle
		left, upper int // black pixels before the photo
	}{
		{"wide", image.Rect(0, 0, 160, 80), 0, 4},
		{"high", image.Rect(0, 0, 40, 80), 4, 0},
		{"of the same shape", image.Rect(0, 0, 64, 64), 0, 0},
		{"smaller", image.Rect(0, 0, 4, 2), 0, 4},
		{"with bounds elsewhere", image.Rect(100, -50, 260, 30), 0, 4},
	} {
		got, _ := picture.Resize(plain(test.photo, red), input(16, 16, 3, "letterbox"))
		if len(got) != 16*16*3 {
			t.Fatalf("%s: %d bytes", test.name, len(got))
		}
		for y := range 16 {
			for x := range 16 {
				inside := x >= test.left && x < 16-test.left && y >= test.upper && y < 16-test.upper
				want := []byte{0, 0, 0}
				if inside {
					want = []byte{0xff, 0, 0}
				}
				if pixel := got[(y*16+x)*3:][:3]; !bytes.Equal(pixel, want) {
					t.Fatalf("%s: pixel (%d, %d) is %v, want %v", test.name, x, y, pixel, want)
				}
			}
		}
	}
}

func TestResizeOrder(t *testing.T) {
	photo := image.NewRGBA(image.Rect(0, 0, 2, 2))
	photo.SetRGBA(0, 0, red)
	photo.SetRGBA(1, 0, green)
	photo.SetRGBA(0, 1, blue)
	photo.SetRGBA(1, 1, color.RGBA{1, 2, 3, 0xff})
	got, _ := picture.Resize(photo, input(2, 2, 3, "stretch"))
	if want := []byte{255, 0, 0, 0, 255, 0, 0, 0, 255, 1, 2, 3}; !bytes.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestStretch(t *testing.T) {
	got, _ := picture.Resize(plain(image.Rect(0, 0, 200, 10), green), input(8, 4, 3, "stretch"))
	if want := bytes.Repeat([]byte{0, 0xff, 0}, 8*4); !bytes.Equal(got, want) {
		t.Errorf("%v", got)
	}
}

// A photo of three columns, each of one colour, under each fit.
func TestFit(t *testing.T) {
	stripes := image.NewRGBA(image.Rect(7, 3, 7+6, 3+2))
	for y := range 2 {
		for x := range 6 {
			stripes.SetRGBA(7+x, 3+y, []color.RGBA{red, green, blue}[x/2])
		}
	}
	for _, c := range []struct {
		fit           string
		height, width int
		colors        string // of the second row; . is the padding
	}{
		{"stretch", 4, 6, "rrggbb"},
		{"crop", 2, 2, "gg"},
		{"left", 2, 8, "rrggbb.."},
		{"left", 4, 6, "rrggbb"},
		{"letterbox", 2, 8, ".rrggbb."},
		{"crop", 2, 6, "rrggbb"},
	} {
		in := input(c.height, c.width, 3, c.fit)
		in.Pad = []int{114, 114, 114}
		pixels, _ := picture.Resize(stripes, in)
		got := ""
		for x := range c.width {
			got += map[[3]byte]string{{255, 0, 0}: "r", {0, 255, 0}: "g", {0, 0, 255}: "b", {114, 114, 114}: "."}[[3]byte(pixels[(c.width+x)*3:])]
		}
		if got != c.colors {
			t.Errorf("%s to %d × %d: %q, want %q", c.fit, c.height, c.width, got, c.colors)
		}
	}
}

// A box in the middle of a cropped photo is mapped back to the photo.
func TestLocateCropped(t *testing.T) {
	_, frame := picture.Resize(plain(image.Rect(10, 10, 210, 110), red), input(50, 50, 3, "crop"))
	if got, want := frame.Locate(0, 0, 1, 1), image.Rect(60, 10, 160, 110); got != want {
		t.Errorf("the whole input is %v, want the square in the middle, %v", got, want)
	}
	if got, want := frame.Locate(0.5, 0.5, 1, 1), image.Rect(110, 60, 160, 110); got != want {
		t.Errorf("the lower right quarter is %v, want %v", got, want)
	}
}

func TestGrey(t *testing.T) {
	got, _ := picture.Resize(plain(image.Rect(0, 0, 8, 8), color.Gray{0x80}), input(4, 4, 1, "letterbox"))
	if want := bytes.Repeat([]byte{0x80}, 16); !bytes.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// TestLocate: a block drawn into the photo is mapped back to the
// same place, for every shape.
func TestLocate(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		corner := image.Pt(rapid.IntRange(-50, 50).Draw(t, "x"), rapid.IntRange(-50, 50).Draw(t, "y"))
		bounds := image.Rectangle{corner, corner.Add(image.Pt(rapid.IntRange(40, 300).Draw(t, "width"), rapid.IntRange(40, 300).Draw(t, "height")))}
		size := input(rapid.IntRange(64, 128).Draw(t, "input height"), rapid.IntRange(64, 128).Draw(t, "input width"), 3, rapid.SampledFrom([]string{"letterbox", "stretch", "left"}).Draw(t, "fit"))

		// A red block in the photo; its place in the input is where the pixels
		// are red.
		block := image.Rect(bounds.Dx()/4, bounds.Dy()/4, bounds.Dx()/2, bounds.Dy()/2).Add(bounds.Min)
		photo := plain(bounds, blue)
		for y := block.Min.Y; y < block.Max.Y; y++ {
			for x := block.Min.X; x < block.Max.X; x++ {
				photo.SetRGBA(x, y, red)
			}
		}
		pixels, frame := picture.Resize(photo, size)
		seen := image.Rectangle{}
		for y := range size.Height {
			for x := range size.Width {
				if pixels[(y*size.Width+x)*3] > 0x7f {
					seen = seen.Union(image.Rect(x, y, x+1, y+1))
				}
			}
		}
		got := frame.Locate(
			float64(seen.Min.X)/float64(size.Width), float64(seen.Min.Y)/float64(size.Height),
			float64(seen.Max.X)/float64(size.Width), float64(seen.Max.Y)/float64(size.Height))

		// Two pixels of the input, measured in pixels of the photo.
		slack := 2*max(bounds.Dx(), bounds.Dy())/min(size.Width, size.Height) + 3
		for _, off := range []int{got.Min.X - block.Min.X, got.Min.Y - block.Min.Y, got.Max.X - block.Max.X, got.Max.Y - block.Max.Y} {
			if off < -slack || off > slack {
				t.Fatalf("found at %v, want %v ± %d", got, block, slack)
			}
		}
	})
}

func TestLocateClips(t *testing.T) {
	_, frame := picture.Resize(plain(image.Rect(10, 10, 110, 60), red), input(100, 100, 3, "letterbox"))
	nan, huge := float64(0), 1e300
	nan /= nan
	for _, test := range []struct {
		name           string
		x0, y0, x1, y1 float64
		want           image.Rectangle
	}{
		{"the whole input", 0, 0, 1, 1, image.Rect(10, 10, 110, 60)},
		{"past every side", -huge, -huge, huge, huge, image.Rect(10, 10, 110, 60)},
		{"in the black above", 0, 0, 1, 0.2, image.Rectangle{}},
		{"turned round", 0.5, 0.5, 0.4, 0.6, image.Rectangle{}},
		{"NaN", nan, 0, 1, 1, image.Rectangle{}},
		{"the middle", 0.25, 0.25, 0.75, 0.5, image.Rect(35, 10, 85, 35)},
	} {
		if got := frame.Locate(test.x0, test.y0, test.x1, test.y1); got != test.want && !(got.Empty() && test.want.Empty()) {
			t.Errorf("%s: %v, want %v", test.name, got, test.want)
		}
	}
}

func TestDraw(t *testing.T) {
	photo := plain(image.Rect(5, 5, 205, 155), blue)
	got := picture.Draw(photo, []picture.Mark{
		{Box: image.Rect(50, 50, 150, 100), Text: "cat 0.71", Colour: red},
		{Box: image.Rectangle{}, Text: "nothing", Colour: green},
	})
	if got.Bounds() != photo.Bounds() {
		t.Fatalf("bounds %v, want the photo's %v", got.Bounds(), photo.Bounds())
	}
	for _, test := range []struct {
		name string
		x, y int
		want color.RGBA
	}{
		{"upper left corner", 50, 50, red},
		{"lower right corner", 149, 99, red},
		{"right of the box", 150, 99, blue},
		{"inside", 100, 75, blue},
		{"caption", 51, 40, red},
		{"far away", 200, 150, blue},
	} {
		if at := got.RGBAAt(test.x, test.y); at != test.want {
			t.Errorf("%s (%d, %d): %v, want %v", test.name, test.x, test.y, at, test.want)
		}
	}
	white := 0
	for y := 35; y < 50; y++ {
		for x := 50; x < 120; x++ {
			if got.RGBAAt(x, y) == (color.RGBA{0xff, 0xff, 0xff, 0xff}) {
				white++
			}
		}
	}
	if white < 30 {
		t.Errorf("%d white pixels of text in the caption", white)
	}
	if photo.RGBAAt(50, 50) != blue {
		t.Error("the photo itself was drawn on")
	}
}

func TestDrawBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		coordinate := rapid.IntRange(-30, 60)
		photo := plain(image.Rect(0, 0, rapid.IntRange(1, 40).Draw(t, "width"), rapid.IntRange(1, 40).Draw(t, "height")), blue)
		picture.Draw(photo, []picture.Mark{{
			Box:    image.Rect(coordinate.Draw(t, "x0"), coordinate.Draw(t, "y0"), coordinate.Draw(t, "x1"), coordinate.Draw(t, "y1")),
			Text:   rapid.String().Draw(t, "text"),
			Colour: red,
		}})
	})
}

func encoded(t *testing.T, encode func(*bytes.Buffer) error) *fstest.MapFile {
	t.Helper()
	var buffer bytes.Buffer
	must.OK(t, encode(&buffer))
	return &fstest.MapFile{Data: buffer.Bytes()}
}

func TestRead(t *testing.T) {
	photo := plain(image.Rect(0, 0, 6, 4), red)
	fsys := fstest.MapFS{
		"in/b.png":  encoded(t, func(b *bytes.Buffer) error { return png.Encode(b, photo) }),
		"in/a.jpg":  encoded(t, func(b *bytes.Buffer) error { return jpeg.Encode(b, photo, nil) }),
		"in/NOTICE": {Data: []byte("not a picture")},
	}
	photos, err := picture.Read(fsys, "in/*.png", "in/*.jpg", "in/b.*")
	must.OK(t, err)
	if len(photos) != 2 || photos[0].Name != "a.jpg" || photos[1].Name != "b.png" || photos[1].Image.Bounds().Dx() != 6 {
		t.Errorf("%+v", photos)
	}
	if _, err := picture.Read(fsys, "out/*"); !errors.Is(err, picture.ErrNone) {
		t.Errorf("no match: %v", err)
	}
	if _, err := picture.Read(fsys, "in/*"); err == nil || !strings.Contains(err.Error(), "read picture in/NOTICE") {
		t.Errorf("not a picture: %v", err)
	}
}

func TestPhotos(t *testing.T) {
	photos := picture.NewPhotos([]picture.Photo{{Name: "red", Image: plain(image.Rect(0, 0, 4, 4), red)}}, input(2, 2, 3, "stretch"))
	if all := photos.Pictures; len(all) != 1 || len(all[0]) != 12 {
		t.Errorf("%d photos: %v", len(all), all)
	}
	if photo, _ := photos.Photo(0); photo.Name != "red" {
		t.Errorf("photo %q", photo.Name)
	}
}
