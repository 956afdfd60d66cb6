package picture

import (
	"bytes"
	"encoding/binary"
	"errors"
	"image"
	"image/color"
	"image/gif"
	"image/jpeg"
	"image/png"
	"io"
	"runtime"
	"testing"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/models"
	"golang.org/x/image/bmp"
	"golang.org/x/image/draw"
)

// noise returns a picture that differs in each pixel, so that a wrong turn or place shows.
func noise(width, height int, alpha uint8) *image.NRGBA {
	img := image.NewNRGBA(image.Rect(0, 0, width, height))
	for y := range height {
		for x := range width {
			img.SetNRGBA(x, y, color.NRGBA{uint8(255 * x / width), uint8(255 * y / height), uint8(x / 16 * (y / 16)), alpha})
		}
	}
	return img
}

// Decode and Resize allocate no more than Memory says.
func TestMemory(t *testing.T) {
	const side = 800
	size := &models.Input{Height: 128, Width: 128, Channels: 3, WireType: models.U8, WireLayout: models.HWC}
	opaque, clear := noise(side, side, 255), noise(side, side, 100)
	wide := image.NewNRGBA64(opaque.Rect)
	draw.Draw(wide, wide.Rect, clear, image.Point{}, draw.Src)
	grey := image.NewGray(opaque.Rect)
	draw.Draw(grey, grey.Rect, opaque, image.Point{}, draw.Src)
	file := func(encode func(io.Writer, image.Image) error, img image.Image) []byte {
		var b bytes.Buffer
		must.OK(t, encode(&b, img))
		return b.Bytes()
	}
	asJPEG := func(w io.Writer, img image.Image) error { return jpeg.Encode(w, img, nil) }
	photo := file(asJPEG, opaque)
	turned := jpegWith(photo, jpegSegment(0xe1, "Exif\x00\x00"+string(exif(exifOptions{order: binary.BigEndian, kind: 3}, 6))))
	for name, file := range map[string][]byte{
		"JPEG":             photo,
		"JPEG, turned":     turned,
		"JPEG, grey":       file(asJPEG, grey),
		"progressive JPEG": progressive(side, side, 3),
		"PNG":              file(png.Encode, opaque),
		"PNG with alpha":   file(png.Encode, clear),
		"PNG, 16 bits":     file(png.Encode, wide),
		"PNG, grey":        file(png.Encode, grey),
		"GIF":              file(func(w io.Writer, img image.Image) error { return gif.Encode(w, img, nil) }, opaque),
		"BMP":              file(bmp.Encode, opaque),
		"WebP":             webpFile(webpChunk("VP8L", red32x16)),
	} {
		bound, err := Memory(file, size)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		decoded, err := Decode(t.Context(), file)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		Resize(decoded, size)
		runtime.ReadMemStats(&after)
		const buffers = 1 << 20
		if used := int(after.TotalAlloc - before.TotalAlloc); used > bound+buffers {
			t.Errorf("%s: allocates %d KiB, and Memory says %d KiB", name, used>>10, bound>>10)
		}
	}
	if _, err := Memory([]byte("x"), size); !errors.Is(err, ErrFormat) {
		t.Errorf("%v, want %v", err, ErrFormat)
	}
}

// jpegHeader returns the start of a JPEG file of 8192 × 8192 pixels with three components.
func jpegHeader(sof byte, factors string) []byte {
	data := "\x08\x20\x00\x20\x00\x03"
	for i := range 3 {
		data += string([]byte{byte(i + 1), factors[i], 0})
	}
	return []byte("\xff\xd8" + jpegSegment(0xe0, "JFIF\x00\x01\x02\x00\x00\x01\x00\x01\x00\x00") + jpegSegment(sof, data))
}

// A photo of 64 Mpixel fits 256 MiB, unless it is a progressive JPEG.
func TestMemoryOfLargePhotos(t *testing.T) {
	size := &models.Input{Height: 640, Width: 640, Channels: 3, WireType: models.U8}
	for _, c := range []struct {
		name string
		file []byte
		want int // MiB
	}{
		{"baseline 4:4:4", jpegHeader(sof0, "\x11\x11\x11"), 194},
		{"baseline 4:2:0", jpegHeader(sof0, "\x22\x11\x11"), 194},
		{"progressive 4:2:0", jpegHeader(sof2, "\x22\x11\x11"), 194 + 64*6},
		{"progressive 4:4:4", jpegHeader(sof2, "\x11\x11\x11"), 194 + 64*12},
	} {
		if got, err := Memory(c.file, size); err != nil || got>>20 != c.want {
			t.Errorf("%s: %d MiB, %v, want %d", c.name, got>>20, err, c.want)
		}
	}
}

// A photo that is turned by Resize looks like one that was turned before.
func TestResizeTurns(t *testing.T) {
	for orientation := 1; orientation <= 8; orientation++ {
		for _, alpha := range []uint8{255, 100} {
			photo := noise(160, 90, alpha)
			lazy := view(photo, orientation)
			whole := image.NewRGBA(lazy.Bounds())
			draw.Draw(whole, whole.Rect, lazy, image.Point{}, draw.Src) // by At

			flat := image.NewRGBA(photo.Rect)
			draw.Draw(flat, flat.Rect, image.White, image.Point{}, draw.Src)
			draw.Draw(flat, flat.Rect, photo, image.Point{}, draw.Over)
			before := image.NewRGBA(lazy.Bounds())
			before.Pix = upright(flat.Pix, flat.Rect.Size(), 4, orientation)
			if n := difference(whole.Pix, before.Pix); n > 1 {
				t.Errorf("orientation %d, alpha %d: At differs by %d", orientation, alpha, n)
			}
			for _, in := range []models.Input{{Height: 64, Width: 48, Channels: 3, WireLayout: models.HWC}, {Height: 48, Width: 64, Channels: 3, WireLayout: models.CHW}, {Height: 48, Width: 64, Channels: 1}} {
				in.WireType, in.Background = models.U8, [3]uint8{255, 255, 255}
				for _, in.Fit = range []string{"letterbox", "crop", "left"} {
					got, gotFrame := Resize(lazy, &in)
					want, wantFrame := Resize(before, &in)
					if n := difference(got, want); n > 2 || gotFrame != wantFrame {
						t.Errorf("orientation %d, alpha %d, %+v: differs by %d; %v, want %v", orientation, alpha, in, n, gotFrame, wantFrame)
					}
				}
			}
		}
	}
}

// difference returns the largest difference between two bytes.
func difference(a, b []byte) (most int) {
	if len(a) != len(b) {
		return 256
	}
	for i := range a {
		most = max(most, int(a[i])-int(b[i]), int(b[i])-int(a[i]))
	}
	return most
}
