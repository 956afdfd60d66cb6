package picture

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"image"
	_ "image/gif" // for Decode
	"image/jpeg"
	"image/png"
	"io"
	"math"

	"golang.org/x/image/bmp"
	"golang.org/x/image/draw"
	_ "golang.org/x/image/webp" // for Decode
)

// MaxPixels is the size of the largest photo that Decode decodes: 64 Mpixel, in memory 256 MiB.
const MaxPixels = 64 << 20

// The errors of Decode and Pixels.
var (
	ErrFormat   = errors.New("picture format not supported")
	ErrTooLarge = errors.New("picture too large")
	ErrDamaged  = errors.New("picture damaged")
)

// Pixels returns the number of pixels of an encoded photo from its header. The errors are
// ErrFormat, ErrTooLarge (MaxPixels) and ErrDamaged.
func Pixels(file []byte) (int, error) {
	size, _, err := header(file)
	return size.X * size.Y, err
}

// header returns the size of a photo and its format's name in package image.
func header(file []byte) (size image.Point, format string, err error) {
	if err := checkFormat(file); err != nil {
		return size, "", err
	}
	config, format, err := image.DecodeConfig(bytes.NewReader(file))
	switch {
	case unsupported(err):
		return size, "", fmt.Errorf("%w: %w; send %s", ErrFormat, err, decodable)
	case err != nil:
		return size, "", fmt.Errorf("%w: read header: %w", ErrDamaged, err)
	case config.Width <= 0 || config.Height <= 0:
		return size, "", fmt.Errorf("%w: it has %d × %d pixels", ErrDamaged, config.Width, config.Height)
	case config.Width > MaxPixels/config.Height:
		return size, "", fmt.Errorf("%w: %d × %d pixels, want at most %d Mpixel", ErrTooLarge, config.Width, config.Height, MaxPixels>>20)
	}
	return image.Pt(config.Width, config.Height), format, nil
}

// unsupported reports whether a decoder's error is about a kind of its format that it does not know.
func unsupported(err error) bool {
	var ofJPEG jpeg.UnsupportedError
	var ofPNG png.UnsupportedError
	return errors.As(err, &ofJPEG) || errors.As(err, &ofPNG) || errors.Is(err, bmp.ErrUnsupported)
}

// Decode decodes a photo, of an animation its first frame, and turns it upright, as its EXIF
// orientation says. Transparent parts are white for At, and stay transparent for Resize. The errors are those of Pixels, and that of a
// context that ends meanwhile.
func Decode(ctx context.Context, file []byte) (image.Image, error) {
	size, format, err := header(file)
	if err != nil {
		return nil, err
	}

	from := source{ctx: ctx, file: file, scans: math.MaxInt}
	whole := image.Rectangle{Max: size}
	place, cut := whole, false
	switch format {
	case "jpeg":
		from.scans = maxScanPixels / (size.X * size.Y)
		from.file, cut = completeJPEG(file)
	case "webp":
		if from.file, place = firstFrame(file, size); !place.In(whole) {
			return nil, fmt.Errorf("%w: its first frame is at %v of %v", ErrDamaged, place, size)
		}
	}
	photo, _, err := image.Decode(&from)
	switch {
	case from.err != nil:
		return nil, from.err
	case err != nil && cut:
		return nil, fmt.Errorf("%w: the file ends before its picture does (%w)", ErrDamaged, err)
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return view(flatten(photo, whole, place.Min), orientation(file, format)), nil
}

// flatten puts a photo that is smaller than its file says on a transparent sheet.
func flatten(photo image.Image, whole image.Rectangle, at image.Point) image.Image {
	place := photo.Bounds().Add(at)
	if place == whole {
		return photo
	}
	sheet := image.NewRGBA(whole)
	draw.Draw(sheet, place, photo, photo.Bounds().Min, draw.Src)
	return sheet
}

// maxScanPixels is the max number of scans of a JPEG file, times its pixels. A scan may need no
// data: a run of blocks without a change takes two bytes. libjpeg writes ten scans.
const maxScanPixels = 16 * MaxPixels

// source is a file for a decoder. It ends the decoder if its work is of no use or too much: the
// number of bytes bounds the work of all other formats that Decode knows.
type source struct {
	ctx   context.Context
	file  []byte
	at    int
	scans int   // of JPEG, that may still begin
	err   error // why the decoder was ended
}

func (s *source) Read(b []byte) (int, error) {
	if s.err == nil {
		s.err = s.ctx.Err()
	}
	if s.err != nil {
		return 0, s.err
	}
	if s.at == len(s.file) {
		return 0, io.EOF
	}

	n := copy(b, s.file[s.at:])
	if s.scans < math.MaxInt {
		if s.scans -= scans(s.file[s.at:], n); s.scans < 0 {
			s.err = fmt.Errorf("%w: its scans have over %d Mpixel in all; send a JPEG file that is not progressive", ErrTooLarge, maxScanPixels>>20)
			return 0, s.err
		}
	}
	s.at += n
	return n, nil
}

// scans counts the headers of scans that begin in the first n bytes of a part of a JPEG file. It
// does not follow the markers: after damage, a decoder may find others.
func scans(part []byte, n int) (count int) {
	header := []byte{0xff, sos, 0} // then the length: 6, and 2 per component
	const longest = 6 + 2*4
	part = part[:min(n+len(header), len(part))]
	for {
		at := bytes.Index(part, header)
		if at < 0 || at+len(header) >= len(part) {
			return count
		}
		if part[at+len(header)] <= longest {
			count++
		}
		part = part[at+1:]
	}
}
