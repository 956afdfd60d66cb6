package picture

import (
	"context"
	"errors"
	"image"
	"strings"
	"testing"
)

// progressive returns a grey JPEG file. Its scans change nothing: each is one run of empty blocks
// after another, at most 2^14 blocks in 15 bits (ISO 10918-1, G.1.2.2).
func progressive(width, height, scans int) []byte {
	const run = 1 << 14
	blocks := (width + 7) / 8 * ((height + 7) / 8)
	scan := jpegSegment(0xda, "\x01\x01\x00\x01\x3f\x00") + strings.Repeat("\x00", (blocks/run+1)*15/8+1)
	return []byte("\xff\xd8" +
		jpegSegment(0xdb, "\x00"+strings.Repeat("\x01", 64)) +
		jpegSegment(0xc2, string([]byte{8, byte(height >> 8), byte(height), byte(width >> 8), byte(width), 1, 1, 0x11, 0})) +
		jpegSegment(0xc4, "\x10\x01"+strings.Repeat("\x00", 15)+"\xe0") + // the code 0 means a run
		strings.Repeat(scan, scans) + "\xff\xd9")
}

// A few bytes per scan make a decoder visit each block of the photo.
func TestScans(t *testing.T) {
	for _, c := range []struct {
		name          string
		width, height int
		scans         int
		want          error
	}{
		{"as many as libjpeg writes", 1000, 700, 10, nil},
		{"many of a small photo", 64, 64, 5000, nil},
		{"many of a large photo", 8192, 8192, 8000, ErrTooLarge},
		{"one more than allowed", 4096, 4096, 16*4 + 1, ErrTooLarge},
	} {
		photo, err := Decode(t.Context(), progressive(c.width, c.height, c.scans))
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
		if err == nil && photo.Bounds() != image.Rect(0, 0, c.width, c.height) {
			t.Errorf("%s: bounds %v", c.name, photo.Bounds())
		}
	}
}

// endingContext ends after some calls of Err.
type endingContext struct {
	context.Context
	left int
}

func (c *endingContext) Err() error {
	if c.left--; c.left < 0 {
		return context.Canceled
	}
	return nil
}

// A decoder stops when the client has left: it reads the file in parts of 4 KiB.
func TestDecodeEnds(t *testing.T) {
	file := progressive(256, 256, 2000)
	for _, left := range []int{0, 1, 3} {
		ctx := &endingContext{t.Context(), left}
		if _, err := Decode(ctx, file); !errors.Is(err, context.Canceled) {
			t.Errorf("after %d reads of a context that ends: %v, want %v", left, err, context.Canceled)
		}
		if ctx.left < -3 {
			t.Errorf("after %d reads of a context that ends, the decoder read %d times", left, -ctx.left)
		}
	}
	if _, err := Decode(t.Context(), file); err != nil {
		t.Errorf("without an end: %v", err)
	}
}

func TestCountScans(t *testing.T) {
	const scan = "\xff\xda\x00\x08"
	for _, c := range []struct {
		part string
		n    int
		want int
	}{
		{"", 0, 0},
		{scan, 4, 1},
		{scan, 1, 1}, // its first byte is inside
		{"x" + scan, 1, 0},
		{scan + scan + "\xff" + scan, 13, 3},
		{"\xff\xda\x00", 3, 0},
		{"\xff\xda\x00\x80", 4, 0}, // no header is so long
		{"\xff\xda\x01\x08", 4, 0},
	} {
		if got := scans([]byte(c.part), c.n); got != c.want {
			t.Errorf("%q, %d bytes: %d scans, want %d", c.part, c.n, got, c.want)
		}
	}
}
