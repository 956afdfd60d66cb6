package picture

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"image"
	"image/jpeg"
	"image/png"
	"testing"

	"github.com/penstock/penstock/internal/testing/must"
)

// exifOptions are the freedoms that a writer of EXIF data has.
type exifOptions struct {
	order  binary.ByteOrder
	kind   uint16 // of the value, as in TIFF
	before int    // bytes before the directory
	other  bool   // another entry comes first
}

// exif returns EXIF data with an orientation.
func exif(o exifOptions, orientation int) []byte {
	data := []byte("MM")
	if o.order == binary.LittleEndian {
		data = []byte("II")
	}
	order := o.order.(binary.AppendByteOrder)
	data = order.AppendUint16(data, 42)
	data = order.AppendUint32(data, uint32(8+o.before))
	data = append(data, make([]byte, o.before)...)

	entry := func(tag, kind uint16, value int) {
		data = order.AppendUint16(data, tag)
		data = order.AppendUint16(data, kind)
		data = order.AppendUint32(data, 1)
		switch kind {
		case 1, 6, 7:
			data = append(data, byte(value), 0, 0, 0)
		case 3, 8:
			data = order.AppendUint16(data, uint16(value))
			data = append(data, 0, 0)
		default:
			data = order.AppendUint32(data, uint32(value))
		}
	}
	if o.other {
		data = order.AppendUint16(data, 2)
		entry(0x100, 3, 640)
	} else {
		data = order.AppendUint16(data, 1)
	}
	entry(0x112, o.kind, orientation)
	return append(data, 0, 0, 0, 0)
}

// wide is a photo of 32 × 16 pixels in each format that can have EXIF data.
func wide(t *testing.T, format string, exif []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	photo := image.NewGray(image.Rect(0, 0, 32, 16))
	switch format {
	case "jpeg":
		must.OK(t, jpeg.Encode(&b, photo, nil))
		return jpegWith(b.Bytes(), jpegSegment(0xe1, "Exif\x00\x00"+string(exif)))
	case "png":
		must.OK(t, png.Encode(&b, photo))
		const header = 8 + 25 // signature and IHDR
		return bytes.Join([][]byte{b.Bytes()[:header], pngChunk("eXIf", exif), b.Bytes()[header:]}, nil)
	case "webp":
		return webpFile(webpChunk("VP8X", "\x08\x00\x00\x00\x1f\x00\x00\x0f\x00\x00"), webpChunk("VP8L", red32x16), webpChunk("EXIF", string(exif)))
	}
	t.Fatalf("no format %q", format)
	return nil
}

// jpegWith puts segments after a JPEG file's start marker.
func jpegWith(file []byte, segments ...string) []byte {
	out := append([]byte{}, file[:2]...)
	for _, s := range segments {
		out = append(out, s...)
	}
	return append(out, file[2:]...)
}

func jpegSegment(marker byte, data string) string {
	head := binary.BigEndian.AppendUint16([]byte{0xff, marker}, uint16(2+len(data)))
	return string(head) + data
}

func pngChunk(name string, data []byte) []byte {
	chunk := binary.BigEndian.AppendUint32(nil, uint32(len(data)))
	chunk = append(append(chunk, name...), data...)
	return binary.BigEndian.AppendUint32(chunk, crc32.ChecksumIEEE(chunk[4:]))
}

// These VP8L chunks, pictures of one colour, have odd lengths.
const (
	red32x16   = "/\x1f\xc0\x03\x00\x07\x10\xfd\x8f\xfe\x07\x22\xa2\xff\x01"
	green32x16 = "/\x1f\xc0\x03\x00\x07\xd0\xff\x88\xfe\x07\x22\xa2\xff\x01"
)

func webpChunk(name, data string) string {
	head := binary.LittleEndian.AppendUint32([]byte(name), uint32(len(data)))
	return string(head) + data + "\x00"[:len(data)%2]
}

func webpFile(chunks ...string) []byte {
	body := "WEBP"
	for _, c := range chunks {
		body += c
	}
	return append(binary.LittleEndian.AppendUint32([]byte("RIFF"), uint32(len(body))), body...)
}

// TestOrientationEncodings: programs write the same orientation in many ways.
func TestOrientationEncodings(t *testing.T) {
	big := exifOptions{order: binary.BigEndian, kind: 3}
	for name, o := range map[string]exifOptions{
		"SHORT, big endian":    big,
		"SHORT, little endian": {order: binary.LittleEndian, kind: 3},
		"LONG, big endian":     {order: binary.BigEndian, kind: 4},
		"LONG, little endian":  {order: binary.LittleEndian, kind: 4},
		"BYTE, big endian":     {order: binary.BigEndian, kind: 1},
		"BYTE, little endian":  {order: binary.LittleEndian, kind: 1},
		"SSHORT, big endian":   {order: binary.BigEndian, kind: 8},
		"SLONG, big endian":    {order: binary.BigEndian, kind: 9},
		"directory at odd":     {order: binary.BigEndian, kind: 3, before: 5},
		"directory far away":   {order: binary.LittleEndian, kind: 4, before: 3000},
		"second entry":         {order: binary.LittleEndian, kind: 3, other: true},
	} {
		for _, format := range []string{"jpeg", "png", "webp"} {
			for _, orientation := range []int{1, 6} {
				photo, err := Decode(t.Context(), wide(t, format, exif(o, orientation)))
				if err != nil {
					t.Fatalf("%s, %s: %v", format, name, err)
				}
				if turned := photo.Bounds().Dx() == 16; turned != (orientation == 6) {
					t.Errorf("%s, %s, orientation %d: bounds %v", format, name, orientation, photo.Bounds())
				}
			}
		}
	}

	whole, six := wide(t, "jpeg", nil), "Exif\x00\x00"+string(exif(big, 6))
	for name, file := range map[string][]byte{
		"after fill bytes":    jpegWith(whole, "\xff\xff"+jpegSegment(0xe1, six)),
		"after XMP":           jpegWith(whole, jpegSegment(0xe1, "http://ns.adobe.com/xap/1.0/\x00<x/>"), jpegSegment(0xe1, six)),
		"after a comment":     jpegWith(whole, jpegSegment(0xfe, "hello"), jpegSegment(0xe1, six)),
		"before another EXIF": jpegWith(wide(t, "jpeg", exif(big, 1)), jpegSegment(0xe1, six)),
		"with a JPEG header":  webpFile(webpChunk("VP8X", "\x08\x00\x00\x00\x1f\x00\x00\x0f\x00\x00"), webpChunk("VP8L", red32x16), webpChunk("EXIF", six)),
	} {
		if photo, err := Decode(t.Context(), file); err != nil || photo.Bounds().Dx() != 16 {
			t.Errorf("EXIF %s: the photo was not turned (%v)", name, err)
		}
	}
}

// TestDamagedEXIF: the photo is decoded as it is.
func TestDamagedEXIF(t *testing.T) {
	good := exif(exifOptions{order: binary.BigEndian, kind: 3}, 6)
	damaged := map[string][]byte{
		"value of 0":      exif(exifOptions{order: binary.BigEndian, kind: 3}, 0),
		"value of 9":      exif(exifOptions{order: binary.LittleEndian, kind: 4}, 9),
		"value of -1":     exif(exifOptions{order: binary.BigEndian, kind: 8}, -1),
		"text":            exif(exifOptions{order: binary.BigEndian, kind: 2}, 6),
		"offset past end": bytes.Replace(good, []byte{0, 0, 0, 8}, []byte{0xff, 0xff, 0xff, 0xff}, 1),
	}
	for length := range len(good) - 8 { // up to the value
		damaged["cut"] = good[:length]
		for name, data := range damaged {
			for _, format := range []string{"jpeg", "png", "webp"} {
				if photo, err := Decode(t.Context(), wide(t, format, data)); err != nil || photo.Bounds().Dx() != 32 {
					t.Fatalf("%s, %s %d: %v", format, name, length, err)
				}
			}
		}
	}
}
