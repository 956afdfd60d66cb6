package picture

import (
	"bytes"
	"encoding/binary"
	"iter"
)

// orientation returns the EXIF orientation of a photo, 1 to 8 (EXIF 2.3, 4.6.4); 1 if it has none.
// Damaged metadata do not make a photo unusable.
func orientation(file []byte, format string) int {
	exif, ok := exifOf(file, format)
	if !ok {
		return 1
	}
	return tiffOrientation(exif)
}

// exifHeader precedes EXIF data in a JPEG segment, and in WebP files of some programs.
var exifHeader = []byte("Exif\x00\x00")

// exifOf returns the EXIF data of a photo: a TIFF file without pixels.
func exifOf(file []byte, format string) (exif []byte, ok bool) {
	switch format {
	case "jpeg":
		for s := range segments(file) {
			if s.marker == app1 && bytes.HasPrefix(s.data, exifHeader) {
				return s.data[len(exifHeader):], true
			}
		}
	case "png":
		for name, data := range pngChunks(file) {
			if name == "eXIf" {
				return data, true
			}
		}
	case "webp":
		for name, data := range webpChunks(file[webpHeader:]) {
			if name == "EXIF" {
				return bytes.TrimPrefix(data, exifHeader), true
			}
		}
	}
	return nil, false
}

// tiffOrientation reads the orientation from the first directory of a TIFF file (TIFF 6.0,
// section 2). Writers use each of its integer types.
func tiffOrientation(file []byte) int {
	const (
		headerBytes    = 8
		entryBytes     = 12
		tagOrientation = 0x112
	)
	if len(file) < headerBytes {
		return 1
	}
	var order binary.ByteOrder
	switch string(file[:4]) {
	case "II*\x00":
		order = binary.LittleEndian
	case "MM\x00*":
		order = binary.BigEndian
	default:
		return 1
	}

	at := uint64(order.Uint32(file[4:]))
	if at+2 > uint64(len(file)) {
		return 1
	}
	entries := file[at+2:]
	for range order.Uint16(file[at:]) {
		if len(entries) < entryBytes {
			return 1
		}
		entry := entries[:entryBytes]
		entries = entries[entryBytes:]
		if order.Uint16(entry) != tagOrientation || order.Uint32(entry[4:]) != 1 {
			continue
		}
		value := uint32(0)
		switch kind := order.Uint16(entry[2:]); kind {
		case 1, 6, 7: // BYTE, SBYTE, UNDEFINED
			value = uint32(entry[8])
		case 3, 8: // SHORT, SSHORT
			value = uint32(order.Uint16(entry[8:]))
		case 4, 9: // LONG, SLONG
			value = order.Uint32(entry[8:])
		}
		if value >= 1 && value <= 8 {
			return int(value)
		}
	}
	return 1
}

// Markers of JPEG files (ISO 10918-1, table B.1).
const (
	rst0 = 0xd0
	rst7 = 0xd7
	soi  = 0xd8
	eoi  = 0xd9
	sos  = 0xda
	app1 = 0xe1
)

// segment is a marker of a JPEG file with its data.
type segment struct {
	marker byte
	at     int // in the file
	data   []byte
}

// segments returns the markers of a JPEG file up to its end marker. Any number of 0xFF may precede
// a marker.
func segments(file []byte) iter.Seq[segment] {
	return func(yield func(segment) bool) {
		for at := 2; ; { // after the start marker
			next := bytes.IndexByte(file[min(at, len(file)):], 0xff)
			if next < 0 {
				return
			}
			at += next
			s := segment{at: at}
			for at < len(file) && file[at] == 0xff {
				at++
			}
			if at == len(file) {
				return
			}
			s.marker = file[at]
			at++

			switch {
			case s.marker == 0, s.marker >= rst0 && s.marker <= rst7:
				continue // inside a scan
			case s.marker == eoi:
				yield(s)
				return
			case s.marker == soi:
				continue
			}
			if at+2 > len(file) {
				return
			}
			length := int(binary.BigEndian.Uint16(file[at:]))
			if length < 2 || at+length > len(file) {
				return
			}
			s.data = file[at+2 : at+length]
			at += length
			if !yield(s) {
				return
			}
		}
	}
}

// pngChunks returns the chunks of a PNG file with their names (PNG 3, 5.3).
func pngChunks(file []byte) iter.Seq2[string, []byte] {
	return func(yield func(string, []byte) bool) {
		const signature, head, checksum = 8, 8, 4 // bytes
		for rest := file[min(signature, len(file)):]; len(rest) >= head; {
			length, name := uint64(binary.BigEndian.Uint32(rest)), string(rest[4:head])
			rest = rest[head:]
			if length+checksum > uint64(len(rest)) || !yield(name, rest[:length]) {
				return
			}
			rest = rest[length+checksum:]
		}
	}
}

// webpHeader is the length of a WebP file's header: "RIFF", a length, "WEBP".
const webpHeader = 12

// webpChunks returns a sequence of RIFF chunks with their names. A chunk of odd length is followed
// by a byte of padding.
func webpChunks(rest []byte) iter.Seq2[string, []byte] {
	return func(yield func(string, []byte) bool) {
		const head = 8 // bytes
		for len(rest) >= head {
			length, name := uint64(binary.LittleEndian.Uint32(rest[4:])), string(rest[:4])
			rest = rest[head:]
			if length > uint64(len(rest)) || !yield(name, rest[:length]) {
				return
			}
			rest = rest[min(length+length%2, uint64(len(rest))):]
		}
	}
}
