package picture

import (
	"bytes"
	"context"
	"errors"
	"image"
	"image/color"
	"image/gif"
	"image/jpeg"
	"image/png"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/models"
	"golang.org/x/image/draw"
)

// without returns a JPEG file without the segments of a marker.
func without(file []byte, marker byte) []byte {
	for s := range segments(file) {
		if s.marker == marker {
			return without(append(bytes.Clone(file[:s.at]), file[s.at+4+len(s.data):]...), marker)
		}
	}
	return file
}

// ramp is a photo with all kinds of blocks, so that its file needs many codes.
func ramp() image.Image {
	img := image.NewRGBA(image.Rect(0, 0, 64, 48))
	for y := range 48 {
		for x := range 64 {
			img.Set(x, y, color.RGBA{uint8(4 * x), uint8(x * y), uint8(255 - 5*y), 255})
		}
	}
	return img
}

func encodeJPEG(t testing.TB, photo image.Image) []byte {
	t.Helper()
	var b bytes.Buffer
	must.OK(t, jpeg.Encode(&b, photo, nil))
	return b.Bytes()
}

// TestWebcamFrames: Motion JPEG has no Huffman tables, and some cameras write no end marker.
func TestWebcamFrames(t *testing.T) {
	for name, photo := range map[string]image.Image{"colour": ramp(), "grey": photoWithBlock(64, 48, image.Pt(8, 8))} {
		whole := encodeJPEG(t, photo)
		want, err := Decode(t.Context(), whole)
		must.OK(t, err)
		bare := without(whole, dht)
		for part, file := range map[string][]byte{
			"tables":      bare,
			"end":         whole[:len(whole)-2],
			"both":        bare[:len(bare)-2],
			"half an end": whole[:len(whole)-1],
		} {
			got, err := Decode(t.Context(), file)
			if err != nil {
				t.Errorf("%s without %s: %v", name, part, err)
				continue
			}
			for y := range 48 {
				for x := range 64 {
					if got.At(x, y) != want.At(x, y) {
						t.Fatalf("%s without %s: pixel (%d, %d) is %v, want %v", name, part, x, y, got.At(x, y), want.At(x, y))
					}
				}
			}
		}

		// One byte of the scan less is a damaged picture.
		for _, file := range [][]byte{whole[:len(whole)-4], bare[:len(bare)-4]} {
			if _, err := Decode(t.Context(), file); !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), "ends before") {
				t.Errorf("%s, cut: %v", name, err)
			}
		}
	}

	// A file of several scans may lack the last ones.
	file := progressive(64, 64, 3)
	if _, err := Decode(t.Context(), file[:len(file)-2]); !errors.Is(err, ErrDamaged) {
		t.Errorf("progressive without end: %v", err)
	}
}

func TestStandardTables(t *testing.T) {
	const length = 4 + 2*(1+16+12) + 2*(1+16+162) // K.3.3: 12 codes of DC, 162 of AC, each for two components
	if tables := standardTables(); len(tables) != length || !bytes.HasPrefix(tables, []byte{0xff, dht, 0x01, 0xa2, 0, 0, 1, 5, 1}) {
		t.Errorf("%d bytes, want %d: % x", len(tables), length, tables[:min(len(tables), 32)])
	}
}

// animated returns a WebP animation of 40 × 20 pixels. Its first frame, 32 × 16, is red.
func animated(left, top byte) []byte {
	frame := func(image string) string {
		return webpChunk("ANMF", string([]byte{left / 2, 0, 0, top / 2, 0, 0, 31, 0, 0, 15, 0, 0, 100, 0, 0, 0})+webpChunk("VP8L", image))
	}
	return webpFile(webpChunk("VP8X", "\x02\x00\x00\x00\x27\x00\x00\x13\x00\x00"), webpChunk("ANIM", "\x00\x00\x00\x00\x00\x00"),
		frame(red32x16), frame(green32x16))
}

// TestFirstFrame: an animation is its first frame, in its place.
func TestFirstFrame(t *testing.T) {
	animation := gif.GIF{Config: image.Config{Width: 40, Height: 20}, Delay: []int{1, 1}}
	for _, c := range []color.Color{color.RGBA{0xff, 0, 0, 0xff}, color.RGBA{0, 0xff, 0, 0xff}} {
		animation.Image = append(animation.Image, image.NewPaletted(image.Rect(6, 2, 38, 18), color.Palette{c}))
	}
	var b bytes.Buffer
	must.OK(t, gif.EncodeAll(&b, &animation))
	for name, file := range map[string][]byte{"webp": animated(6, 2), "gif": b.Bytes()} {
		photo, err := Decode(t.Context(), file)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if photo.Bounds() != image.Rect(0, 0, 40, 20) {
			t.Errorf("%s: bounds %v", name, photo.Bounds())
		}
		for at, want := range map[image.Point]color.RGBA{
			{6, 2}: {0xff, 0, 0, 0xff}, {37, 17}: {0xff, 0, 0, 0xff}, {5, 2}: {0xff, 0xff, 0xff, 0xff}, {38, 17}: {0xff, 0xff, 0xff, 0xff},
		} {
			if got := color.RGBAModel.Convert(photo.At(at.X, at.Y)); got != want {
				t.Errorf("%s: %v is %v, want %v", name, at, got, want)
			}
		}
	}

	for name, file := range map[string][]byte{
		"outside of the picture":     animated(200, 2),
		"partly outside":             animated(6, 6),
		"of another size than it is": bytes.Replace(animated(6, 2), []byte{31, 0, 0, 15}, []byte{30, 0, 0, 15}, 1),
	} {
		if _, err := Decode(t.Context(), file); !errors.Is(err, ErrDamaged) {
			t.Errorf("first frame %s: %v, want %v", name, err, ErrDamaged)
		}
	}
	whole := animated(6, 2)
	for length := range len(whole) - 60 { // up to the first frame's picture
		if _, err := Decode(t.Context(), whole[:length]); err == nil {
			t.Fatalf("the first %d bytes are decoded", length)
		}
	}
}

// Transparent parts have the card's background: black text must not become a black picture.
func TestBackground(t *testing.T) {
	text := image.NewNRGBA(image.Rect(0, 0, 4, 1))
	text.Set(1, 0, color.NRGBA{0, 0, 0, 0xff})
	text.Set(2, 0, color.NRGBA{0, 0, 0, 0x80})
	text.Set(3, 0, color.NRGBA{0xff, 0, 0, 0xff})
	wide := image.NewNRGBA64(text.Rect)
	draw.Draw(wide, wide.Rect, text, image.Point{}, draw.Src)
	in := models.Input{Height: 1, Width: 4, Channels: 3, WireType: models.U8, WireLayout: models.HWC}
	for _, photo := range []image.Image{text, wide} {
		var b bytes.Buffer
		must.OK(t, png.Encode(&b, photo))
		photo, err := Decode(t.Context(), b.Bytes())
		must.OK(t, err)
		for _, in.Background = range [][3]uint8{{255, 255, 255}, {0, 100, 200}} {
			d := in.Background
			pixels, _ := Resize(photo, &in)
			if want := []byte{d[0], d[1], d[2], 0, 0, 0, d[0] / 2, d[1] / 2, d[2] / 2, 255, 0, 0}; difference(pixels, want) > 1 {
				t.Errorf("%v, want %v", pixels, want)
			}
		}
	}
}

// Samples of more than 8 bits have the card's range.
func TestRange(t *testing.T) {
	photo := image.NewGray16(image.Rect(0, 0, 4, 1))
	for x, v := range []uint16{100, 512, 4095, 0xffff} {
		photo.SetGray16(x, 0, color.Gray16{v})
	}
	in := models.Input{Height: 1, Width: 4, Channels: 1, WireType: models.U8, WireLayout: models.HWC}
	for _, c := range []struct {
		samples [2]int
		want    []byte
	}{{[2]int{}, []byte{0, 2, 16, 255}}, {[2]int{0, 4095}, []byte{6, 32, 255, 255}}, {[2]int{100, 924}, []byte{0, 128, 255, 255}}} {
		in.Range = c.samples
		if got, _ := Resize(photo, &in); !bytes.Equal(got, c.want) {
			t.Errorf("range %v: %v, want %v", c.samples, got, c.want)
		}
	}
}

// frameHeader is a JPEG file up to the header of a frame.
func frameHeader(marker, bits byte) string {
	return "\xff\xd8" + jpegSegment(marker, string([]byte{bits, 0, 16, 0, 16, 1, 1, 0x11, 0}))
}

// TestUnknownFormats: no file of a format or kind that Decode does not know is called damaged.
func TestUnknownFormats(t *testing.T) {
	var palette bytes.Buffer
	must.OK(t, png.Encode(&palette, photoWithBlock(8, 8, image.Point{})))
	palette.Bytes()[24] = 5 // bits per sample

	for file, want := range map[string]string{
		"":                               "empty file",
		"a picture of a cat":             "unknown; send JPEG, PNG, GIF, WebP or BMP",
		"II*\x00\x08\x00\x00\x00":        "TIFF; send",
		"MM\x00*\x00\x00\x00\x08":        "TIFF; send",
		"\x00\x00\x00\x18ftypheic":       "HEIC; send",
		"\x00\x00\x00\x18ftypmif1":       "HEIC; send",
		"\x00\x00\x00\x1cftypavif":       "AVIF; send",
		"\x00\x00\x00\x14ftypqt  ":       "MP4 video; send",
		"\x00\x00\x00\x0cjP  \r\n\x87\n": "JPEG 2000; send",
		"\xff\x0a\xfa\x1f":               "JPEG XL; send",
		"P6\n2 2\n255\n":                 "PPM; send",
		"P5 2 2 255 ":                    "PGM; send",
		"<svg xmlns=":                    "SVG; send",
		"RIFF\x00\x00\x00\x00AVI LIST":   "AVI video; send",
		frameHeader(0xc3, 8):             "lossless JPEG; send a baseline or progressive JPEG of 8 bits",
		frameHeader(0xf7, 8):             "JPEG-LS; send a baseline",
		frameHeader(0xc9, 8):             "arithmetic JPEG; send a baseline",
		frameHeader(0xca, 8):             "arithmetic JPEG; send a baseline",
		frameHeader(0xde, 8):             "hierarchical JPEG; send a baseline",
		frameHeader(0xc5, 8):             "hierarchical JPEG; send a baseline",
		frameHeader(0xc1, 12):            "JPEG of 12 bits; send a baseline",
		palette.String():                 "bit depth 5",
	} {
		_, err := Decode(context.Background(), []byte(file))
		if !errors.Is(err, ErrFormat) || !strings.Contains(err.Error(), want) {
			t.Errorf("%.16q: %v, want %q", file, err, want)
		}
	}
}
