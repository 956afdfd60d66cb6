// Package picture turns pictures into requests and draws what was found in them.
//
//	photo ──Fit──> bytes on the wire ──model──> boxes in 0..1 ──Frame──> pixels of the photo ──Draw──> PNG
//
// A Frame records the photo's position in the model's input, so that boxes can
// be mapped back to the photo.
package picture

import (
	"context"
	"errors"
	"fmt"
	"image"
	"io/fs"
	"path"
	"slices"

	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/models/sampling"
	"github.com/penstock/penstock/wire"
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

// Frame is the position of a photo in a model's input.
type Frame struct {
	photo image.Rectangle // the photo's own bounds
	// Place is that of the photo in the input; zero if it is the input.
	Place wire.Place
}

// Whole is the frame of a photo of this size that is the model's input.
func Whole(size image.Point) Frame { return Frame{photo: image.Rectangle{Max: size}} }

// Resize makes the picture of a photo that a model takes, as the card's input says: the bytes of a request. Only inputs
// that are pictures have one (models.Input.IsPicture).
func Resize(photo image.Image, in *models.Input) ([]byte, Frame) {
	wire := *in
	wire.TensorType, wire.TensorLayout, wire.ReverseChannels, wire.Mean, wire.Std = models.U8, in.WireLayout, false, nil, nil
	bounds := photo.Bounds()
	region := sampling.Fit(in, bounds.Dx(), bounds.Dy())
	return sampled(photo, wire, region), Frame{bounds, region.Place(in, bounds.Dx(), bounds.Dy())}
}

// sampled samples a photo. It turns only the result if the photo lies on its side.
func sampled(photo image.Image, in models.Input, region sampling.Region) []byte {
	v, ok := photo.(*viewed)
	if !ok {
		v = &viewed{photo, 1}
	}
	from, shape := newRows(v.photo)
	region = sampling.Region{Part: v.turned(region.Part, v.Bounds().Size()), Inside: v.turned(region.Inside, image.Pt(in.Width, in.Height))}
	if v.orientation >= 5 {
		in.Width, in.Height = in.Height, in.Width
	}
	sampler, err := sampling.New(in)
	pixels := make([]byte, in.TensorBytes())
	if err == nil {
		err = sampler.Sample(pixels, shape, region, from)
	}
	if err != nil {
		panic(fmt.Sprintf("picture: %v", err)) // the size and the part are not empty
	}
	if v.orientation == 1 {
		return pixels
	}
	planes := 1
	if in.TensorLayout == models.CHW {
		planes = in.Channels
	}
	var turned []byte
	for plane := range slices.Chunk(pixels, len(pixels)/planes) {
		turned = append(turned, upright(plane, image.Pt(in.Width, in.Height), in.Channels/planes, v.orientation)...)
	}
	return turned
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
	x, y = f.Place.Point(x, y)
	return f.photo.Min.Add(image.Pt(scale(x, f.photo.Dx()), scale(y, f.photo.Dy())))
}

// scale turns a fraction of a length into pixels. It clips it to at most one length outside, so that any float fits an int.
func scale(fraction float64, length int) int {
	return int(min(max(fraction, -1), 2)*float64(length) + 0.5)
}

// Photos are photos prepared for one model. It is immutable.
type Photos struct {
	// Pictures are the bytes of the photos in the model's form.
	Pictures [][]byte

	photos []Photo
	frames []Frame
}

// NewPhotos resizes photos to a model's input.
func NewPhotos(photos []Photo, in *models.Input) *Photos {
	p := &Photos{photos: photos}
	for _, photo := range photos {
		bytes, frame := Resize(photo.Image, in)
		p.Pictures = append(p.Pictures, bytes)
		p.frames = append(p.frames, frame)
	}
	return p
}

// Photo returns photo i and its position in the model's input.
func (p *Photos) Photo(i int) (Photo, Frame) { return p.photos[i], p.frames[i] }
