package picture

import (
	"bytes"
	"encoding/binary"
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
