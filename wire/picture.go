package wire

import (
	"fmt"
	"math"
)

// PictureFormat says how the pixels of a picture lie in a request. The zero value is the format of the function's card.
//
// The names of Bayer formats say the first two pixels of the picture, as those of GenICam's PFNC do. Samples of 10
// and 12 bits are little endian in 16 bits, or packed. A "p" means without gaps, from the lowest bits of the first byte on (PFNC).
// "packed" means three bytes for two samples: the high bits of one, the low bits of both, the high bits of the other (GigE Vision 2.2).
type PictureFormat uint8

// Formats of pictures. The lowest two bits of a Bayer format are the order.
const (
	FormatRGB8  PictureFormat = 1
	FormatBGR8  PictureFormat = 2
	FormatRGBA8 PictureFormat = 3
	FormatNV12  PictureFormat = 4 // 4:2:0: all Y, then pairs of U and V
	FormatI420  PictureFormat = 5 // 4:2:0: all Y, all U, all V
	FormatUYVY  PictureFormat = 6 // 4:2:2
	FormatYUYV  PictureFormat = 7 // 4:2:2
	// RFC 4175's: 4:2:2 and RGB of 10 bits without gaps, the highest bits first; and 4:2:0, four Y of two rows, U, V.
	FormatUYVY10 PictureFormat = 8
	FormatYYYYUV PictureFormat = 9
	FormatRGB10  PictureFormat = 10

	FormatGrey8        PictureFormat = 16
	FormatGrey10       PictureFormat = 17
	FormatGrey10p      PictureFormat = 18
	FormatGrey10Packed PictureFormat = 19
	FormatGrey12       PictureFormat = 20
	FormatGrey12p      PictureFormat = 21
	FormatGrey12Packed PictureFormat = 22
	FormatGrey16       PictureFormat = 23

	FormatBayerRG8        PictureFormat = 64
	FormatBayerRG10       PictureFormat = 68
	FormatBayerRG10p      PictureFormat = 72
	FormatBayerRG10Packed PictureFormat = 76
	FormatBayerRG12       PictureFormat = 80
	FormatBayerRG12p      PictureFormat = 84
	FormatBayerRG12Packed PictureFormat = 88
)

// BayerOrder is the colours of the first two pixels of the first row.
type BayerOrder uint8

// The orders of Bayer formats.
const (
	BayerRG BayerOrder = iota
	BayerGR
	BayerGB
	BayerBG
)

// Packing is how the samples of a row lie in its bytes.
type Packing uint8

// The packings.
const (
	Whole     Packing = iota // in 8 or 16 bits
	Tight                    // without gaps
	HighFirst                // two in three bytes: high, low of both, high
)

// PictureLayout describes a format.
type PictureLayout struct {
	Name string
	// Samples is how many samples a pixel has in a row of the first plane. Bits is the size of each.
	Samples, Bits int
	Packing       Packing
	// Bayer: a pixel has one colour, of Order.
	Bayer bool
	Order BayerOrder
	// EvenWidth and EvenHeight: pixels come in pairs.
	EvenWidth, EvenHeight bool
}

var layouts = func() (all [256]PictureLayout) {
	all[FormatRGB8] = PictureLayout{Name: "rgb8", Samples: 3, Bits: 8}
	all[FormatBGR8] = PictureLayout{Name: "bgr8", Samples: 3, Bits: 8}
	all[FormatRGBA8] = PictureLayout{Name: "rgba8", Samples: 4, Bits: 8}
	all[FormatNV12] = PictureLayout{Name: "nv12", Samples: 1, Bits: 8, EvenWidth: true, EvenHeight: true}
	all[FormatI420] = PictureLayout{Name: "i420", Samples: 1, Bits: 8, EvenWidth: true, EvenHeight: true}
	all[FormatUYVY] = PictureLayout{Name: "uyvy", Samples: 2, Bits: 8, EvenWidth: true}
	all[FormatYUYV] = PictureLayout{Name: "yuyv", Samples: 2, Bits: 8, EvenWidth: true}
	all[FormatUYVY10] = PictureLayout{Name: "uyvy10", Samples: 2, Bits: 10, Packing: Tight, EvenWidth: true}
	all[FormatRGB10] = PictureLayout{Name: "rgb10", Samples: 3, Bits: 10, Packing: Tight}
	all[FormatYYYYUV] = PictureLayout{Name: "yyyyuv", Samples: 3, Bits: 8, EvenWidth: true, EvenHeight: true}
	depths := []struct {
		suffix  string
		bits    int
		packing Packing
	}{{"8", 8, Whole}, {"10", 10, Whole}, {"10p", 10, Tight}, {"10packed", 10, HighFirst}, {"12", 12, Whole}, {"12p", 12, Tight}, {"12packed", 12, HighFirst}}
	for i, d := range depths {
		all[int(FormatGrey8)+i] = PictureLayout{Name: "grey" + d.suffix, Samples: 1, Bits: d.bits, Packing: d.packing}
		for order, name := range []string{"rg", "gr", "gb", "bg"} {
			all[int(FormatBayerRG8)+4*i+order] = PictureLayout{Name: "bayer_" + name + d.suffix, Samples: 1, Bits: d.bits, Packing: d.packing,
				Bayer: true, Order: BayerOrder(order), EvenWidth: true, EvenHeight: true}
		}
	}
	all[FormatGrey16] = PictureLayout{Name: "grey16", Samples: 1, Bits: 16}
	return all
}()

// Layout describes the format; ok is false if it is unknown, or the card's.
func (f PictureFormat) Layout() (l PictureLayout, ok bool) {
	l = layouts[f]
	return l, l.Name != ""
}

// String returns the format's name.
func (f PictureFormat) String() string {
	if l, ok := f.Layout(); ok {
		return l.Name
	}
	return fmt.Sprintf("format %d", uint8(f))
}

// Colours say which colours Y, U and V stand for: a matrix, and whether the samples have the full range. The zero value is
// BT.601 with the limited range, 16 to 235. Formats without Y, U and V ignore them.
type Colours uint8

// The matrices, and the flag of the full range. BT.2020 has a constant part of each colour in Y, of which there is no flag.
const (
	BT601     Colours = 0
	BT709     Colours = 1
	BT2020    Colours = 2
	FullRange Colours = 4
)

// ColourNames are the names of Colours; those without a name are unknown.
var ColourNames = [...]string{"bt601", "bt709", "bt2020", "", "bt601-full", "bt709-full", "bt2020-full"}

func (c Colours) known() bool { return int(c) < len(ColourNames) && ColourNames[c] != "" }

// Picture is the shape of a picture in a request.
type Picture struct {
	Format        PictureFormat
	Width, Height int
	// Stride is the number of bytes from one row to the next; 0 means RowBytes. Rows of the planes U and V of I420 have half of it.
	// YYYYUV has two rows in one. It is at most MaxStride.
	Stride  int
	Colours Colours
}

// MaxStride is the largest stride.
const MaxStride = 1<<24 - 1

// RowBytes returns the number of bytes of a row's pixels in the first plane. The format is known.
func (p Picture) RowBytes() int {
	l := layouts[p.Format]
	n := p.Width * l.Samples
	switch {
	case l.Packing == HighFirst:
		return (n*12 + 7) / 8
	case l.Packing == Tight:
		return (n*l.Bits + 7) / 8
	case l.Bits > 8:
		return 2 * n
	}
	return n
}

// Check returns an error if a request of total bytes cannot have the picture, or it is larger than the largest picture. If
// that is 0, the function takes no pictures of other formats and shapes than its card's.
func (p Picture) Check(total, largest int) error {
	size, err := p.Bytes()
	switch {
	case largest == 0:
		return fmt.Errorf("picture is %d x %d of %s, and the function takes only its card's pictures; set its max_picture", p.Width, p.Height, p.Format)
	case err != nil:
		return err
	case size > largest:
		return fmt.Errorf("picture of %d x %d of %s has %d bytes, and the function takes at most %d", p.Width, p.Height, p.Format, size, largest)
	case size != total:
		return fmt.Errorf("picture of %d x %d of %s has %d bytes, and the request %d", p.Width, p.Height, p.Format, size, total)
	}
	return nil
}

// Bytes returns the size of the picture. It fails if the format is unknown or the shape is impossible.
func (p Picture) Bytes() (int, error) {
	l, ok := p.Format.Layout()
	if !ok {
		return 0, fmt.Errorf("picture has format %d, which is unknown; want one of docs/wire.md", uint8(p.Format))
	}
	row, rows := p.RowBytes(), p.Height
	switch p.Format {
	case FormatNV12, FormatI420:
		rows = rows * 3 / 2
	case FormatYYYYUV:
		rows /= 2
	}
	switch {
	case min(p.Width, p.Height) < 1 || max(p.Width, p.Height) > math.MaxUint16:
		return 0, fmt.Errorf("picture has %d x %d pixels, want 1 to %d on each side", p.Width, p.Height, math.MaxUint16)
	case l.EvenWidth && p.Width%2 != 0, l.EvenHeight && p.Height%2 != 0:
		return 0, fmt.Errorf("picture has %d x %d pixels, want even numbers for %s", p.Width, p.Height, l.Name)
	case l.Bayer && (p.Width < 4 || p.Height < 4):
		return 0, fmt.Errorf("picture has %d x %d pixels, want at least 4 x 4 for %s", p.Width, p.Height, l.Name)
	case !p.Colours.known():
		return 0, fmt.Errorf("picture has colours %d, which are unknown; want 0 to 2, or 4 to 6", p.Colours)
	case p.Stride == 0:
		return rows * row, nil
	case p.Stride < row || p.Stride > MaxStride:
		return 0, fmt.Errorf("picture has a stride of %d bytes, want %d to %d for %d pixels of %s", p.Stride, row, MaxStride, p.Width, l.Name)
	case p.Format == FormatI420 && p.Stride%2 != 0:
		return 0, fmt.Errorf("picture has a stride of %d bytes, want an even number for %s", p.Stride, l.Name)
	}
	return rows * p.Stride, nil
}
