package picture

import (
	"bytes"
	"encoding/binary"
	"image"
	"iter"
)

// Markers of JPEG files (ISO 10918-1, table B.1).
const (
	sof0 = 0xc0
	sof1 = 0xc1
	sof2 = 0xc2
	dht  = 0xc4
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

// firstFrame returns the first frame of an animated WebP file as a file, and its place in the
// picture; the file itself if it is not animated. Package webp decodes still pictures only, and
// checks that the frame has the size of its place.
func firstFrame(file []byte, size image.Point) (still []byte, place image.Rectangle) {
	const head = 16 // bytes: left and top in steps of 2, width and height less 1, of 3 bytes each; duration and flags
	for name, frame := range webpChunks(file[webpHeader:]) {
		if name != "ANMF" || len(frame) < head {
			continue
		}
		number := func(b []byte) int { return int(b[0]) | int(b[1])<<8 | int(b[2])<<16 }
		flags := byte(0)
		for name := range webpChunks(frame[head:]) {
			if name == "ALPH" {
				flags = 0x10
			}
		}

		still = append(still, "RIFF????WEBPVP8X\x0a\x00\x00\x00"...)
		still = append(still, flags, 0, 0, 0)
		still = append(still, frame[6:12]...)
		still = append(still, frame[head:]...)
		binary.LittleEndian.PutUint32(still[4:], uint32(len(still)-8))
		corner := image.Pt(2*number(frame), 2*number(frame[3:]))
		return still, image.Rectangle{corner, corner.Add(image.Pt(1+number(frame[6:]), 1+number(frame[9:])))}
	}
	return file, image.Rectangle{Max: size}
}
