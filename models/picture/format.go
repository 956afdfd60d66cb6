package picture

import (
	"bytes"
	"fmt"
	"image"
	"image/jpeg"
	"slices"
	"sync"
)

// decodable are the formats that Decode knows, for errors.
const decodable = "JPEG, PNG, GIF, WebP or BMP"

// formats are the first bytes of files, where '?' is any byte. Decode knows the first ones; the
// others are named in errors. A file has the format of the first row that fits.
var formats = []struct {
	magic, name string
	decodable   bool
}{
	{"\xff\xd8\xff", "JPEG", true},
	{"\x89PNG\r\n\x1a\n", "PNG", true},
	{"GIF8?a", "GIF", true},
	{"RIFF????WEBPVP8", "WebP", true},
	{"BM????\x00\x00\x00\x00", "BMP", true},
	{"II*\x00", "TIFF", false},
	{"MM\x00*", "TIFF", false},
	{"II+\x00", "BigTIFF", false},
	{"MM\x00+", "BigTIFF", false},
	{"????ftypavi", "AVIF", false},
	{"????ftyphe", "HEIC", false},
	{"????ftypmif1", "HEIC", false},
	{"????ftypmsf1", "HEIC", false},
	{"????ftypjp2", "JPEG 2000", false},
	{"????ftyp", "MP4 video", false},
	{"\x00\x00\x00\x0cjP  \r\n\x87\n", "JPEG 2000", false},
	{"\xff\x4f\xff\x51", "JPEG 2000", false},
	{"\x00\x00\x00\x0cJXL \r\n\x87\n", "JPEG XL", false},
	{"\xff\x0a", "JPEG XL", false},
	{"P1", "PBM", false},
	{"P4", "PBM", false},
	{"P2", "PGM", false},
	{"P5", "PGM", false},
	{"P3", "PPM", false},
	{"P6", "PPM", false},
	{"P7", "PAM", false},
	{"<svg", "SVG", false},
	{"<?xml", "SVG", false},
	{"qoif", "QOI", false},
	{"8BPS", "Photoshop", false},
	{"v/1\x01", "OpenEXR", false},
	{"#?RADIANCE", "Radiance HDR", false},
	{"\x00\x00\x01\x00", "Windows icon", false},
	{"%PDF-", "PDF", false},
	{"RIFF????AVI ", "AVI video", false},
	{"\x1a\x45\xdf\xa3", "Matroska video", false},
}

// Format returns the name of a file's format, also of formats that Decode does not know; empty if
// it is none of pictures or videos.
func Format(file []byte) string {
	name, _ := format(file)
	return name
}

func format(file []byte) (name string, decodable bool) {
	for _, f := range formats {
		if hasMagic(file, f.magic) {
			return f.name, f.decodable
		}
	}
	return "", false
}

func hasMagic(file []byte, magic string) bool {
	if len(file) < len(magic) {
		return false
	}
	for i := range len(magic) {
		if magic[i] != '?' && magic[i] != file[i] {
			return false
		}
	}
	return true
}

// checkFormat returns ErrFormat, with the format's name, for a file that Decode does not know.
func checkFormat(file []byte) error {
	name, known := format(file)
	switch {
	case len(file) == 0:
		return fmt.Errorf("%w: empty file; send %s", ErrFormat, decodable)
	case name == "":
		return fmt.Errorf("%w: unknown; send %s", ErrFormat, decodable)
	case !known:
		return fmt.Errorf("%w: %s; send %s", ErrFormat, name, decodable)
	case name == "JPEG":
		if kind := unknownJPEG(file); kind != "" {
			return fmt.Errorf("%w: %s; send a baseline or progressive JPEG of 8 bits", ErrFormat, kind)
		}
	}
	return nil
}

// unknownJPEG returns the kind of a JPEG file that package jpeg does not know (ISO 10918-1,
// table B.1); empty if it knows it.
func unknownJPEG(file []byte) string {
	for s := range segments(file) {
		switch s.marker {
		case sof0, sof1, sof2:
			if len(s.data) > 0 && s.data[0] != 8 {
				return fmt.Sprintf("JPEG of %d bits", s.data[0])
			}
		case 0xc3, 0xcb:
			return "lossless JPEG"
		case 0xc9, 0xca:
			return "arithmetic JPEG"
		case 0xc5, 0xc6, 0xc7, 0xcd, 0xce, 0xcf, 0xde:
			return "hierarchical JPEG"
		case 0xf7:
			return "JPEG-LS"
		case sos:
			return ""
		}
	}
	return ""
}

// completeJPEG adds to a baseline JPEG file what webcams leave out: the Huffman tables of ISO
// 10918-1, K.3.3, and the end marker. Only after a single scan of all components is it certain
// that nothing else is missing. cut reports whether the end marker was missing.
func completeJPEG(file []byte) (complete []byte, cut bool) {
	var tables, ended, whole bool
	components, scans, at := byte(0), 0, 0
	for s := range segments(file) {
		switch s.marker {
		case dht:
			tables = true
		case sof0, sof1:
			if len(s.data) > 5 {
				components = s.data[5]
			}
		case sos:
			if scans++; scans > 1 {
				break
			}
			at = s.at
			whole = len(s.data) > 0 && s.data[0] == components
			if tables || components == 0 {
				at = 0
			}
		case eoi:
			ended = true
		}
	}
	if at > 0 {
		file = slices.Concat(file[:at], standardTables(), file[at:])
	}
	if !ended && whole && scans == 1 {
		file = append(slices.Clip(file), 0xff, eoi)
	}
	return file, !ended
}

// standardTables returns a JPEG segment with the Huffman tables of ISO 10918-1, K.3.3. Package
// jpeg encodes with them.
var standardTables = sync.OnceValue(func() (tables []byte) {
	var b bytes.Buffer
	if err := jpeg.Encode(&b, image.NewRGBA(image.Rect(0, 0, 1, 1)), nil); err != nil {
		panic(err) // a buffer takes all
	}
	for s := range segments(b.Bytes()) {
		if s.marker == dht {
			const head = 4 // bytes: marker, length
			tables = append(tables, b.Bytes()[s.at:s.at+head+len(s.data)]...)
		}
	}
	return tables
})
