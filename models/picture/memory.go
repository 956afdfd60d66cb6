package picture

import (
	"bytes"
	"image"
	"image/color"

	"github.com/penstock/penstock/models"
)

// Memory returns the bytes that Decode of a photo and Resize for an input need at most, from the photo's
// header. The errors are those of Pixels.
func Memory(file []byte, in *models.Input) (int, error) {
	photo, format, err := header(file)
	if err != nil {
		return 0, err
	}
	const rowPixel, resultPixel = 4 + 8, 4 * 8 // bytes: a row in RGB and as it is read; rows and weights of the result
	side := max(photo.X, photo.Y)              // it may be turned
	return decodedBytes(file, format, photo) + side*rowPixel + max(in.Width, in.Height)*resultPixel + 2*in.WireBytes(), nil
}

// decodedBytes follows the decoders: the picture in memory, what they need besides, and a sheet
// for what may be smaller than its file says.
func decodedBytes(file []byte, format string, size image.Point) int {
	pixels := size.X * size.Y
	const sheet = 4 // bytes per pixel
	switch format {
	case "jpeg":
		const block = 8 * 4 // pixels, of a component with the fewest samples
		padded := (size.X + block - 1) / block * block * ((size.Y + block - 1) / block * block)
		perPixel, samples, progressive := jpegBytes(file)
		need := padded*perPixel + len(file) // a completed copy
		if progressive {
			need += int(4 * samples * float64(padded)) // coefficients
		}
		return need
	case "png":
		const interlaced = 28 // the offset of that byte in the header (PNG, 11.2.2)
		perPixel := 4
		if model := colorModel(file); model == color.RGBA64Model || model == color.NRGBA64Model || model == color.Gray16Model {
			perPixel = 8
		}
		if len(file) > interlaced && file[interlaced] != 0 {
			return pixels * perPixel * 3 / 2 // the last pass has half of the pixels
		}
		return pixels * perPixel
	case "gif":
		return pixels * (2 + sheet)
	case "webp":
		switch {
		case bytes.HasPrefix(file[webpHeader:], []byte("VP8 ")):
			return pixels * 2
		case bytes.HasPrefix(file[webpHeader:], []byte("VP8L")):
			return pixels * 8
		}
		return pixels * (8 + sheet)
	}
	return pixels * 4
}

func colorModel(file []byte) color.Model {
	config, _, _ := image.DecodeConfig(bytes.NewReader(file)) // header has read it
	return config.ColorModel
}

// jpegBytes returns the bytes per pixel of a JPEG file without coefficients, and its samples per pixel.
func jpegBytes(file []byte) (perPixel int, samples float64, progressive bool) {
	switch colorModel(file) {
	case color.GrayModel:
		perPixel = 1
	case color.RGBAModel:
		perPixel = 3 + 4
	case color.CMYKModel:
		perPixel = 4 + 4
	default:
		perPixel = 3
	}
	for s := range segments(file) {
		if s.marker != sof0 && s.marker != sof1 && s.marker != sof2 {
			continue
		}
		const head, component = 6, 3 // bytes: precision, height, width, count; number, sampling factors, table
		var sum, across, down int
		for at := head; at+component <= len(s.data); at += component {
			h, v := int(s.data[at+1]>>4), int(s.data[at+1]&0xf)
			sum, across, down = sum+h*v, max(across, h), max(down, v)
		}
		if sum > 0 {
			samples = float64(sum) / float64(max(1, across*down))
		}
		return perPixel, samples, s.marker == sof2
	}
	return perPixel, 4, true
}
