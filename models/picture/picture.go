// Package picture turns pictures into requests and draws what was found in them.
//
//	photo ──Fit──> bytes on the wire ──model──> boxes in 0..1 ──Frame──> pixels of the photo ──Draw──> PNG
//
// A Frame records the photo's position in the model's input, so that boxes can
// be mapped back to the photo.
package picture

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"image"
	"image/color"
	"io/fs"
	"path"
	"slices"

	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/models/sampling"
)

// Photo is a picture to look at.
type Photo struct {
	// Name is the file's name, without its folder.
	Name  string
	Image image.Image
}

// ErrNone is returned when no file matches.
var ErrNone = errors.New("no picture matches")

// Read decodes the PNG and JPEG files that match the patterns (syntax of
// fs.Glob), each once, in the order of their names.
func Read(fsys fs.FS, patterns ...string) ([]Photo, error) {
	var names []string
	for _, pattern := range patterns {
		matches, err := fs.Glob(fsys, pattern)
		if err != nil {
			return nil, fmt.Errorf("find pictures %q: %w", pattern, err)
		}
		names = append(names, matches...)
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("find pictures %q: %w", patterns, ErrNone)
	}
	slices.Sort(names)
	var photos []Photo
	for _, name := range slices.Compact(names) {
		photo, err := decode(fsys, name)
		if err != nil {
			return nil, fmt.Errorf("read picture %s: %w", name, err)
		}
		photos = append(photos, Photo{Name: path.Base(name), Image: photo})
	}
	return photos, nil
}

func decode(fsys fs.FS, name string) (image.Image, error) {
	file, err := fs.ReadFile(fsys, name)
	if err != nil {
		return nil, err
	}
	return Decode(context.Background(), file)
}

// Size is the shape of a model's input: u8, height × width × channels, with 3
// channels (RGB) or 1 (grey).
type Size struct {
	Height, Width, Channels int
}

// Bytes returns the length of a picture of this size.
func (s Size) Bytes() int { return s.Height * s.Width * s.Channels }

// Fit is how a photo of another shape is adapted to the model's input. The zero value letterboxes on black.
type Fit struct {
	Way Way
	// Pad is the colour beside the photo.
	Pad color.RGBA
	// Antialias: a pixel of a smaller picture is the mean of what it covers, instead of a mixture of the nearest four pixels.
	Antialias bool
}

// FitOf is the fit of a card's input: models.Input.Fit, Pad and Antialias.
func FitOf(way string, pad []int, antialias bool) Fit {
	f := Fit{Way: Way(way), Antialias: antialias}
	switch len(pad) {
	case 1:
		f.Pad = color.RGBA{uint8(pad[0]), uint8(pad[0]), uint8(pad[0]), 0xff}
	case 3:
		f.Pad = color.RGBA{uint8(pad[0]), uint8(pad[1]), uint8(pad[2]), 0xff}
	}
	return f
}

// Way is a way to fit a photo, as in a card (models.Input.Fit). Another value is Letterbox.
type Way string

const (
	// Letterbox keeps the photo's proportions. Half of the padding is on either side.
	Letterbox Way = "letterbox"
	// Stretch fills the model's input and changes the proportions.
	Stretch Way = "stretch"
	// Crop fills the model's input with the middle of the photo, and keeps its proportions.
	Crop Way = "crop"
	// Left fills the height, from the left on. Photos that are too wide then are squeezed to the width. Models that read a line
	// of text take pictures like that.
	Left Way = "left"
)

// Frame is the position of a photo in a model's input.
type Frame struct {
	photo  image.Rectangle // the photo's own bounds
	inside image.Rectangle // in the input, in pixels
	size   Size
}

// Whole is the frame of a photo that has the model's size already.
func Whole(size Size) Frame {
	whole := image.Rect(0, 0, size.Width, size.Height)
	return Frame{photo: whole, inside: whole, size: size}
}

// Resize adapts a photo to a size. The bytes are rows from the top, pixels from
// the left, channels together. It panics if the size has neither 1 nor 3
// channels.
func Resize(photo image.Image, size Size, fit Fit) ([]byte, Frame) {
	if size.Channels != 1 && size.Channels != 3 {
		panic(fmt.Sprintf("picture: %d channels", size.Channels))
	}
	whole := image.Rect(0, 0, size.Width, size.Height)
	b := photo.Bounds()
	frame, part := Frame{photo: b, inside: whole, size: size}, b
	inside := whole // of the input, which the part fills
	switch fit.Way {
	case Stretch:
	case Crop:
		part = centred(whole, b)
		frame.inside = around(b, part, whole)
	case Left:
		if b.Dy() > 0 {
			inside.Max.X = min(whole.Dx(), max(1, (b.Dx()*whole.Dy()+b.Dy()-1)/b.Dy()))
		}
		frame.inside = inside
	default:
		inside = centred(b, whole)
		frame.inside = inside
	}
	pixels := scaled(photo, part, Size{inside.Dy(), inside.Dx(), size.Channels}, fit.Antialias)
	if inside == whole {
		return pixels, frame
	}
	pad := []byte{fit.Pad.R, fit.Pad.G, fit.Pad.B}
	if size.Channels == 1 {
		pad = []byte{color.GrayModel.Convert(fit.Pad).(color.Gray).Y}
	}
	sheet := bytes.Repeat(pad, size.Height*size.Width)
	row := inside.Dx() * size.Channels
	for y := range inside.Dy() {
		copy(sheet[((inside.Min.Y+y)*size.Width+inside.Min.X)*size.Channels:], pixels[y*row:][:row])
	}
	return sheet, frame
}

// scaled returns a part of a photo in another size. It turns only the result if the photo lies on its side.
func scaled(photo image.Image, part image.Rectangle, size Size, antialias bool) []byte {
	v, ok := photo.(*viewed)
	if !ok {
		v, part = &viewed{photo, 1}, part.Sub(photo.Bounds().Min)
	}
	lying := size
	if v.orientation >= 5 {
		lying.Height, lying.Width = size.Width, size.Height
	}
	in := models.Input{Height: lying.Height, Width: lying.Width, Channels: size.Channels, TensorType: models.U8, TensorLayout: models.HWC}
	sampler, err := sampling.New(in, sampling.Options{Area: antialias, Background: [3]uint8{255, 255, 255}})
	pixels := make([]byte, size.Bytes())
	if err == nil {
		from := newRows(v.photo)
		region := sampling.Region{Part: v.turned(part).Sub(v.photo.Bounds().Min), Inside: image.Rect(0, 0, lying.Width, lying.Height)}
		err = sampler.Sample(pixels, from.shape, region, from)
	}
	if err != nil {
		panic(fmt.Sprintf("picture: %v", err)) // the size and the part are not empty
	}
	return upright(pixels, image.Pt(lying.Width, lying.Height), size.Channels, v.orientation)
}

// around returns the place of a whole photo in an input that a part of it fills.
func around(photo, part, whole image.Rectangle) image.Rectangle {
	across := func(x int) int { return (x - part.Min.X) * whole.Dx() / part.Dx() }
	down := func(y int) int { return (y - part.Min.Y) * whole.Dy() / part.Dy() }
	return image.Rect(across(photo.Min.X), down(photo.Min.Y), across(photo.Max.X), down(photo.Max.Y))
}

// centred returns the largest rectangle with the photo's proportions in the
// middle of whole. It is at least one pixel in each direction.
func centred(photo, whole image.Rectangle) image.Rectangle {
	width, height := whole.Dx(), whole.Dy()
	if photo.Dx()*height > photo.Dy()*width {
		height = max(1, (photo.Dy()*width+photo.Dx()/2)/photo.Dx())
	} else if photo.Dy() > 0 {
		width = max(1, (photo.Dx()*height+photo.Dy()/2)/photo.Dy())
	}
	corner := whole.Min.Add(image.Pt((whole.Dx()-width)/2, (whole.Dy()-height)/2))
	return image.Rectangle{Min: corner, Max: corner.Add(image.Pt(width, height))}
}

// Locate maps a box in 0..1 of the model's input to pixels of the photo, clipped
// to the photo. The result is empty if the box is outside or has a NaN corner.
func (f Frame) Locate(x0, y0, x1, y1 float64) image.Rectangle {
	if !(x0 < x1 && y0 < y1) {
		return image.Rectangle{}
	}
	return image.Rectangle{Min: f.at(x0, y0), Max: f.at(x1, y1)}.Intersect(f.photo)
}

// at maps a point in fractions of the model's input to a pixel of the photo.
func (f Frame) at(x, y float64) image.Point {
	return f.photo.Min.Add(image.Pt(
		scale(x*float64(f.size.Width)-float64(f.inside.Min.X), f.inside.Dx(), f.photo.Dx()),
		scale(y*float64(f.size.Height)-float64(f.inside.Min.Y), f.inside.Dy(), f.photo.Dy())))
}

// scale maps a position among `from` pixels to one among `to`. It clips the
// result to at most one picture's length outside, so that any float fits an int.
func scale(v float64, from, to int) int {
	part := min(max(v/float64(from), -1), 2)
	return int(part*float64(to) + 0.5)
}

// Photos are photos prepared for one model. It is immutable.
type Photos struct {
	photos   []Photo
	frames   []Frame
	pictures [][]byte
}

// NewPhotos resizes photos to a model's input.
func NewPhotos(photos []Photo, size Size, fit Fit) *Photos {
	p := &Photos{photos: photos}
	for _, photo := range photos {
		bytes, frame := Resize(photo.Image, size, fit)
		p.pictures = append(p.pictures, bytes)
		p.frames = append(p.frames, frame)
	}
	return p
}

// Len returns the number of photos.
func (p *Photos) Len() int { return len(p.photos) }

// Picture returns the bytes of photo i, which are read-only. Photos have no
// label.
func (p *Photos) Picture(i int) ([]byte, int) { return p.pictures[i], NoLabel }

// Photo returns photo i and its position in the model's input.
func (p *Photos) Photo(i int) (Photo, Frame) { return p.photos[i], p.frames[i] }

// NoLabel is the label of a picture whose class is not known.
const NoLabel = -1

// Labelled are pictures whose class is known, ready for their model. It is
// immutable.
type Labelled struct {
	pictures [][]byte
	labels   []int
}

// NewLabelled takes ownership of pictures and their labels. A label may be
// NoLabel if it is not known.
func NewLabelled(pictures [][]byte, labels []int) (*Labelled, error) {
	if len(pictures) != len(labels) {
		return nil, fmt.Errorf("label pictures: %d labels for %d pictures", len(labels), len(pictures))
	}
	return &Labelled{pictures: pictures, labels: labels}, nil
}

// Len returns the number of pictures.
func (l *Labelled) Len() int { return len(l.pictures) }

// Picture returns the bytes of picture i, which are read-only, and its class.
func (l *Labelled) Picture(i int) ([]byte, int) { return l.pictures[i], l.labels[i] }
