package picture

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/jpeg"
	"image/png"
	"testing"

	"github.com/penstock/penstock/internal/testing/must"
)

// photoWithBlock is a photo with one bright block of 8 × 8 pixels.
func photoWithBlock(width, height int, block image.Point) image.Image {
	img := image.NewGray(image.Rect(0, 0, width, height))
	for y := range 8 {
		for x := range 8 {
			img.Set(block.X+x, block.Y+y, color.White)
		}
	}
	return img
}

// withOrientation puts an EXIF orientation into a JPEG file.
func withOrientation(t *testing.T, img image.Image, orientation int) []byte {
	t.Helper()
	var b bytes.Buffer
	must.OK(t, jpeg.Encode(&b, img, nil))
	return jpegWith(b.Bytes(), jpegSegment(0xe1, "Exif\x00\x00"+string(exif(exifOptions{order: binary.BigEndian, kind: 3}, orientation))))
}

// The numbers say where a photo's upper left is in the file (EXIF 2.3, 4.6.4).
func TestOrientation(t *testing.T) {
	const width, height = 32, 16
	left, right, top, bottom := 0, width-8, 0, height-8
	for orientation, c := range map[int]struct {
		block  image.Point
		turned bool
	}{
		1: {image.Pt(left, top), false},
		2: {image.Pt(right, top), false},
		3: {image.Pt(right, bottom), false},
		4: {image.Pt(left, bottom), false},
		5: {image.Pt(left, top), true},
		6: {image.Pt(left, bottom), true},
		7: {image.Pt(right, bottom), true},
		8: {image.Pt(right, top), true},
	} {
		t.Run(fmt.Sprint(orientation), func(t *testing.T) {
			photo, err := Decode(t.Context(), withOrientation(t, photoWithBlock(width, height, c.block), orientation))
			must.OK(t, err)
			want := image.Rect(0, 0, width, height)
			if c.turned {
				want = image.Rect(0, 0, height, width)
			}
			if photo.Bounds() != want {
				t.Errorf("bounds %v, want %v", photo.Bounds(), want)
			}
			bright, dark := color.GrayModel.Convert(photo.At(3, 3)).(color.Gray).Y, color.GrayModel.Convert(photo.At(want.Max.X-4, want.Max.Y-4)).(color.Gray).Y
			if bright < 200 || dark > 50 {
				t.Errorf("upper left is %d, lower right %d: not upright", bright, dark)
			}
		})
	}
}

func TestDecodeErrors(t *testing.T) {
	var large, whole bytes.Buffer
	must.OK(t, png.Encode(&large, image.NewGray(image.Rect(0, 0, 1, 1))))
	binary.BigEndian.PutUint32(large.Bytes()[16:], 60000)
	binary.BigEndian.PutUint32(large.Bytes()[20:], 60000)
	must.OK(t, jpeg.Encode(&whole, photoWithBlock(64, 64, image.Point{}), nil))
	for name, c := range map[string]struct {
		file []byte
		want error
	}{
		"empty":       {nil, ErrFormat},
		"text":        {[]byte("a picture of a cat"), ErrFormat},
		"cut":         {whole.Bytes()[:whole.Len()/2], ErrDamaged},
		"header only": {whole.Bytes()[:4], ErrDamaged},
		"checksum":    {large.Bytes(), ErrDamaged},
	} {
		if _, err := Decode(t.Context(), c.file); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}
