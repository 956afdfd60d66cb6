package picture

import (
	"bytes"
	"errors"
	"fmt"
	"image"
	_ "image/gif"  // for Decode
	_ "image/jpeg" // for Decode
	_ "image/png"  // for Decode

	_ "golang.org/x/image/bmp" // for Decode
	"golang.org/x/image/draw"
	_ "golang.org/x/image/webp" // for Decode
)

// MaxPixels is the size of the largest photo that Decode decodes: 64 Mpixel, in memory 256 MiB.
const MaxPixels = 64 << 20

// The errors of Decode and Pixels.
var (
	ErrFormat   = errors.New("not a JPEG, PNG, GIF, WebP or BMP picture")
	ErrTooLarge = errors.New("picture too large")
	ErrDamaged  = errors.New("picture damaged")
)

// Pixels returns the number of pixels of an encoded photo from its header. The errors are
// ErrFormat, ErrTooLarge (MaxPixels) and ErrDamaged.
func Pixels(file []byte) (int, error) {
	pixels, _, err := header(file)
	return pixels, err
}

func header(file []byte) (pixels int, format string, err error) {
	config, format, err := image.DecodeConfig(bytes.NewReader(file))
	switch {
	case errors.Is(err, image.ErrFormat):
		return 0, "", ErrFormat
	case err != nil:
		return 0, "", fmt.Errorf("%w: read header: %w", ErrDamaged, err)
	case config.Width <= 0 || config.Height <= 0:
		return 0, "", fmt.Errorf("%w: it has %d × %d pixels", ErrDamaged, config.Width, config.Height)
	case config.Width > MaxPixels/config.Height:
		return 0, "", fmt.Errorf("%w: %d × %d pixels, want at most %d Mpixel", ErrTooLarge, config.Width, config.Height, MaxPixels>>20)
	}
	return config.Width * config.Height, format, nil
}

// Decode decodes a photo and turns it upright, as its EXIF orientation says. The errors are
// those of Pixels.
func Decode(file []byte) (image.Image, error) {
	_, format, err := header(file)
	if err != nil {
		return nil, err
	}
	photo, _, err := image.Decode(bytes.NewReader(file))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return upright(photo, orientation(file, format)), nil
}

// upright undoes an EXIF orientation. Orientations 5 to 8 exchange width and height.
func upright(photo image.Image, orientation int) image.Image {
	if orientation == 1 {
		return photo
	}
	width, height := photo.Bounds().Dx(), photo.Bounds().Dy()
	from := image.NewRGBA(image.Rect(0, 0, width, height))
	draw.Draw(from, from.Bounds(), photo, photo.Bounds().Min, draw.Src)

	// In pixels, (x, y) goes to begin + x*right + y*down.
	last := width*height - 1
	size := image.Rect(0, 0, width, height)
	if orientation >= 5 {
		size = image.Rect(0, 0, height, width)
	}
	var begin, right, down int
	switch orientation {
	case 2: // mirrored left to right
		begin, right, down = width-1, -1, width
	case 3: // turned by 180°
		begin, right, down = last, -1, -width
	case 4: // mirrored top to bottom
		begin, right, down = last-(width-1), 1, -width
	case 5: // mirrored along the diagonal from the upper left
		begin, right, down = 0, height, 1
	case 6: // turned by 90° to the left
		begin, right, down = height-1, height, -1
	case 7: // mirrored along the diagonal from the upper right
		begin, right, down = last, -height, -1
	case 8: // turned by 90° to the right
		begin, right, down = last-(height-1), -height, 1
	}

	const pixel = 4 // bytes
	out := image.NewRGBA(size)
	for y := range height {
		for x := range width {
			to, at := pixel*(begin+x*right+y*down), pixel*(y*width+x)
			copy(out.Pix[to:to+pixel], from.Pix[at:at+pixel])
		}
	}
	return out
}
