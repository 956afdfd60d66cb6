package loadgen_test

import (
	"image"
	"image/color"
	"image/png"
	"os"
	"path/filepath"
	"testing"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/loadgen"
	"github.com/penstock/penstock/loadgen/answer"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/models/picture"
	"github.com/penstock/penstock/wire"
)

func photos() []picture.Photo {
	blank := image.NewRGBA(image.Rect(0, 0, 200, 100))
	return []picture.Photo{{Name: "chelsea.png", Image: blank}, {Name: "coffee.jpg", Image: blank}, {Name: "coffee.png", Image: blank}}
}

func input(side int, fit string) *models.Input {
	return &models.Input{Height: side, Width: side, Channels: 3, WireType: models.U8, WireLayout: models.HWC, Fit: fit}
}

func boxes(list ...wire.Box) answer.Answer {
	return answer.Answer{Kind: wire.KindBoxes, Payload: wire.AppendBoxes([]byte{}, list)}
}

func inspect(t *testing.T) []loadgen.Seen {
	t.Helper()
	all := photos()
	seen, err := loadgen.Inspect([]loadgen.View{{
		Function: "detect", Labels: []string{"person", "cat"},
		Photos: picture.NewPhotos(all, input(64, "letterbox")),
		Answers: []answer.Answer{
			boxes(
				wire.Box{Class: 9, Score: 0.5, X0: 0, Y0: 0, X1: 1, Y1: 1},
				wire.Box{Class: 1, Score: 0.714, X0: 0.25, Y0: 0.375, X1: 0.5, Y1: 0.625},
				wire.Box{Class: 0, Score: 0.9, X0: 0, Y0: 0, X1: 1, Y1: 0.1}, // in the black above the photo
			),
			boxes(), {},
		},
	}, {
		Function: "kind", Labels: []string{"portrait"},
		Photos:  picture.NewPhotos(all[:1], input(8, "stretch")),
		Answers: []answer.Answer{{Kind: wire.KindTopK, Payload: topK(0, 0.25)}},
	}})
	must.OK(t, err)
	return seen
}

func TestInspect(t *testing.T) {
	seen := inspect(t)
	for i, want := range []string{"chelsea.png: cat 0.71, class 9 0.50, portrait 0.25", "coffee.jpg: nothing", "coffee.png: not answered"} {
		if got := seen[i].String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	// The photo is twice as wide as high: it fills the middle half of the
	// square input's height.
	cat := seen[0].Things[0]
	if want := image.Rect(50, 25, 100, 75); cat.Box != want || cat.Function != "detect" {
		t.Errorf("the cat is at %v, want %v", cat.Box, want)
	}
	if portrait := seen[0].Things[2]; !portrait.Box.Empty() || portrait.Colour == cat.Colour {
		t.Errorf("a class of the whole photo: %+v", portrait)
	}
}

func TestInspectErrors(t *testing.T) {
	_, err := loadgen.Inspect([]loadgen.View{{
		Function: "detect",
		Photos:   picture.NewPhotos(photos()[:1], input(8, "letterbox")),
		Answers:  []answer.Answer{{Kind: wire.KindBoxes, Payload: make([]byte, 5)}},
	}})
	if err == nil || err.Error() != "read what detect found in chelsea.png: "+wire.ErrPayload.Error() {
		t.Errorf("%v", err)
	}
}

func TestWritePictures(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "out")
	paths, err := loadgen.WritePictures(dir, inspect(t))
	must.OK(t, err)
	want := []string{"chelsea.png", "coffee.png", "coffee.png.png"}
	if len(paths) != len(want) {
		t.Fatalf("wrote %v", paths)
	}
	for i := range want {
		if paths[i] != filepath.Join(dir, want[i]) {
			t.Errorf("wrote %s, want %s", paths[i], want[i])
		}
	}
	file, err := os.Open(paths[0])
	must.OK(t, err)
	defer file.Close()
	img, err := png.Decode(file)
	must.OK(t, err)
	at := func(x, y int) color.RGBA { return color.RGBAModel.Convert(img.At(x, y)).(color.RGBA) }
	if img.Bounds().Dx() != 200 || at(99, 74) != picture.Palette[0] || at(75, 50) == picture.Palette[0] {
		t.Errorf("%v; corner of the cat %v, its middle %v", img.Bounds(), at(99, 74), at(75, 50))
	}
	if _, err := loadgen.WritePictures(paths[0], nil); err == nil {
		t.Error("wrote into a file")
	}
}

// TestInspectRaw: an answer of values names nothing, so the photo is not said to show nothing.
func TestInspectRaw(t *testing.T) {
	seen, err := loadgen.Inspect([]loadgen.View{{
		Function: "values", Photos: picture.NewPhotos(photos()[:1], input(8, "stretch")), Answers: []answer.Answer{{Kind: wire.KindRaw, Payload: []byte{0, 0, 0, 0}}},
	}})
	if err != nil || seen[0].Asked {
		t.Errorf("%+v, %v; want no thing and not asked", seen, err)
	}
}
