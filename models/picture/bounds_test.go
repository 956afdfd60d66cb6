package picture

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"image"
	"image/color/palette"
	"image/draw"
	"image/gif"
	"image/png"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/testing/must"
	"golang.org/x/image/bmp"
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

// samples are small files of each kind that Decode knows.
func samples(t testing.TB) map[string][]byte {
	t.Helper()
	paletted := image.NewPaletted(ramp().Bounds(), palette.WebSafe)
	draw.Draw(paletted, paletted.Rect, ramp(), image.Point{}, draw.Src)
	files := map[string][]byte{
		"progressive JPEG": progressive(64, 48, 3),
		"JPEG":             encodeJPEG(t, ramp()),
		"bare JPEG":        without(encodeJPEG(t, ramp()), dht),
		"WebP":             webpFile(webpChunk("VP8X", "\x08\x00\x00\x00\x1f\x00\x00\x0f\x00\x00"), webpChunk("VP8L", red32x16), webpChunk("EXIF", string(exif(exifOptions{order: binary.BigEndian, kind: 4}, 6)))),
		"animated WebP":    animated(6, 2),
	}
	for name, encode := range map[string]func(b *bytes.Buffer) error{
		"PNG":          func(b *bytes.Buffer) error { return png.Encode(b, ramp()) },
		"paletted PNG": func(b *bytes.Buffer) error { return png.Encode(b, paletted) },
		"GIF":          func(b *bytes.Buffer) error { return gif.Encode(b, ramp(), nil) },
		"BMP":          func(b *bytes.Buffer) error { return bmp.Encode(b, ramp()) },
	} {
		var b bytes.Buffer
		must.OK(t, encode(&b))
		files[name] = b.Bytes()
	}
	return files
}

// checkDecode decodes a file, which may be damaged. The photo has the size that its header gives,
// and the memory for it is bounded by that size.
func checkDecode(t testing.TB, file []byte) (decoded bool) {
	t.Helper()
	pixels, err := Pixels(file)
	if err != nil {
		if !errors.Is(err, ErrFormat) && !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrTooLarge) {
			t.Errorf("header: %v", err)
		}
		return false
	}
	if pixels > 1<<20 {
		return false // larger ones only cost time
	}

	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	photo, err := Decode(t.Context(), file)
	runtime.ReadMemStats(&after)
	// A JPEG picture may be one pixel wide, and still needs blocks of 32 × 8 pixels, with 4
	// coefficients of 4 bytes each.
	if took, most := after.TotalAlloc-before.TotalAlloc, uint64(4<<20+1<<10*pixels+8*len(file)); took > most {
		t.Errorf("%d bytes for %d pixels, want at most %d", took, pixels, most)
	}
	if err != nil {
		if !errors.Is(err, ErrFormat) && !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrTooLarge) {
			t.Error(err)
		}
		return false
	}
	if size := photo.Bounds().Size(); size.X*size.Y != pixels || photo.Bounds().Min != (image.Point{}) {
		t.Errorf("bounds %v, want %d pixels", photo.Bounds(), pixels)
	}
	return true
}

// mutate changes bytes, cuts, repeats or moves parts of a file.
func mutate(random *rand.Rand, file []byte) []byte {
	file = bytes.Clone(file)
	for range 1 + random.IntN(4) {
		at := random.IntN(len(file))
		if random.IntN(2) == 0 {
			at = random.IntN(min(len(file), 64)) // headers
		}
		end := at + 1 + random.IntN(min(len(file)-at, 40))
		switch random.IntN(6) {
		case 0:
			file[at] ^= 1 << random.IntN(8)
		case 1:
			file[at] = byte(random.Uint32())
		case 2:
			file[at] = []byte{0, 1, 0x7f, 0x80, 0xff}[random.IntN(5)]
		case 3:
			file = append(file[:at], file[end:]...)
		case 4:
			file = append(file[:end:end], file[at:]...)
		case 5:
			file = file[:max(at, 1)]
		}
		if len(file) == 0 {
			return file
		}
	}
	return file
}

func TestMutatedPictures(t *testing.T) {
	const each = 150
	for name, file := range samples(t) {
		random := rand.New(rand.NewPCG(20261128, 0))
		if !checkDecode(t, file) {
			t.Errorf("%s: the sound file is not decoded", name)
		}
		decoded := 0
		for range each {
			mutated := mutate(random, file)
			if checkDecode(t, mutated) {
				decoded++
			}
			if t.Failed() {
				t.Fatalf("%s: %x", name, mutated)
			}
		}
		if decoded == each {
			t.Errorf("%s: all of %d mutated files are decoded", name, each)
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, file := range samples(f) {
		f.Add(file)
	}
	f.Fuzz(func(t *testing.T, file []byte) { checkDecode(t, file) })
}
