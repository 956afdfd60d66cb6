package functions

import (
	"context"
	"errors"
	"fmt"
	"image"
	"net/netip"

	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/models/picture"
	"github.com/penstock/penstock/wire"
)

// ErrNoPicture is returned for a function that takes tensors which no photo can be resized to, or
// pictures of cameras only.
var ErrNoPicture = errors.New("function takes no pictures")

// Detection is a box around something in a photo.
type Detection struct {
	// Label is the name of the class, or empty.
	Label string
	picture.Found
}

// Prepared is a photo as it is sent to a function.
type Prepared struct {
	pixels []byte
	shape  wire.Picture // zero: the card's
	place  wire.Place   // of the photo in the card's picture
	Size   image.Point  // of the photo
}

// Prepare makes a request of a photo. A picture.Raw is sent as it is, if the function takes pictures of that size. All
// others become the card's picture here, by the code that samples pictures in functions. As it is, a
// photo of 12 Mpixel is 35,000 datagrams, and would not be complete in time.
func (f *Function) Prepare(photo image.Image) (Prepared, error) {
	if err := CheckPhotos(&f.Card.Input); err != nil {
		return Prepared{}, fmt.Errorf("prepare photo for %s: %w", f.Name, err)
	}
	p := Prepared{Size: photo.Bounds().Size()}
	if raw, ok := photo.(*picture.Raw); ok && raw.Shape.Check(len(raw.Pix), f.LargestPicture) == nil {
		p.pixels, p.shape = raw.Pix, raw.Shape
		return p, nil
	}
	in := f.Card.Input
	if sizes := f.Card.Sizes(); len(sizes) > 1 {
		in = sizes[sizes.OfPicture(p.Size.X, p.Size.Y)]
		p.shape = in.Picture()
	}
	pixels, frame := picture.Resize(photo, &in)
	p.pixels, p.place = pixels, frame.Place
	return p, nil
}

// InferPhoto sends a photo and waits for the answer, which is about the photo.
func (f *Function) InferPhoto(ctx context.Context, photo image.Image, w Wanted) (a Answer, found []Detection, err error) {
	p, err := f.Prepare(photo)
	if err != nil {
		return a, nil, err
	}
	return f.InferPrepared(ctx, &p, w)
}

// InferPrepared is InferPhoto for a result of Prepare.
func (f *Function) InferPrepared(ctx context.Context, p *Prepared, w Wanted) (a Answer, found []Detection, err error) {
	w.Picture, w.place = p.shape, p.place
	if a, err = f.Infer(ctx, p.pixels, w); err != nil {
		return a, nil, err
	}
	return a, f.locate(&a, picture.Whole(p.Size)), nil
}

// InInput returns the detections of an answer of Infer, in the pixels of the model's input.
func (f *Function) InInput(a *Answer) []Detection {
	return f.locate(a, picture.Whole(size(&f.Card.Input)))
}

// locate maps what an answer has found to the pixels of a photo.
func (f *Function) locate(a *Answer, frame picture.Frame) (found []Detection) {
	for _, d := range frame.Find(&a.Content) {
		found = append(found, Detection{f.Label(d.Class), d})
	}
	return found
}

// LocalAddr is the address that this program's requests come from.
func (f *Function) LocalAddr() netip.AddrPort {
	own := f.client.LocalAddr()
	return netip.AddrPortFrom(own.Addr().Unmap(), own.Port())
}

// Read turns a request of any client and its answer into a picture and what was found in it. The
// picture may use pixels. It is a picture.Raw if shape is not the zero value.
func (f *Function) Read(shape wire.Picture, pixels []byte, kind wire.Kind, payload []byte) (photo image.Image, a Answer, found []Detection, err error) {
	in := &f.Card.Input
	if shape.Format != 0 {
		if err := shape.Check(len(pixels), len(pixels)); err != nil {
			return nil, a, nil, fmt.Errorf("read picture of %s: %w", f.Name, err)
		}
		if err := a.Decode(kind, payload); err != nil {
			return nil, a, nil, fmt.Errorf("decode answer of %s: %w", f.Name, err)
		}
		raw := &picture.Raw{Shape: shape, Pix: pixels}
		return raw, a, f.locate(&a, picture.Whole(raw.Bounds().Size())), nil
	}
	if err := CheckPhotos(in); err != nil {
		return nil, a, nil, err
	}
	if len(pixels) != in.WireBytes() {
		return nil, a, nil, fmt.Errorf("picture of %s has %d bytes, want %d", f.Name, len(pixels), in.WireBytes())
	}
	if err := a.Decode(kind, payload); err != nil {
		return nil, a, nil, fmt.Errorf("decode answer of %s: %w", f.Name, err)
	}
	return photoOf(in, pixels), a, f.locate(&a, picture.Whole(size(in))), nil
}

// photoOf shows the bytes of a request as a picture.
func photoOf(in *models.Input, pixels []byte) image.Image {
	bounds := image.Rect(0, 0, in.Width, in.Height)
	if in.Channels == 1 {
		return &image.Gray{Pix: pixels, Stride: in.Width, Rect: bounds}
	}
	photo, count := image.NewRGBA(bounds), in.Width*in.Height
	for i := range count {
		for c := range 3 {
			at := 3*i + c
			if in.WireLayout == models.CHW {
				at = c*count + i
			}
			photo.Pix[4*i+c] = pixels[at]
		}
		photo.Pix[4*i+3] = 0xff
	}
	return photo
}

// TakesPhotos reports whether photos can be resized to what the function takes.
func (f *Function) TakesPhotos() bool { return f.Camera == "" && CheckPhotos(&f.Card.Input) == nil }

func size(in *models.Input) image.Point { return image.Pt(in.Width, in.Height) }

// Item is something found in a photo, as commands and files show it.
type Item struct {
	Label string  `json:"label,omitempty"`
	Class uint16  `json:"class"`
	Score float32 `json:"score"`
	// Box has the corners in the photo's pixels: left, top, right, bottom. Classes of the whole
	// photo have none.
	Box []int `json:"box,omitempty"`
	// Points are key points, Corners those of an outline like a rotated box: x and y of each.
	Points  [][2]int `json:"points,omitempty"`
	Corners [][2]int `json:"corners,omitempty"`
	// Shape has the same for drawing, and the mask.
	Shape picture.Shape `json:"-"`
}

// pairs returns x and y of each point.
func pairs(points []image.Point) (list [][2]int) {
	for _, p := range points {
		list = append(list, [2]int{p.X, p.Y})
	}
	return list
}

// Items are the detections and the classes of an answer of InferPhoto. Text that was read is a label.
func (f *Function) Items(a Answer, found []Detection) (items []Item) {
	for _, d := range found {
		box := []int{d.Box.Min.X, d.Box.Min.Y, d.Box.Max.X, d.Box.Max.Y}
		items = append(items, Item{d.Label, d.Class, d.Score, box, pairs(d.Points), pairs(d.Outline), d.Shape})
	}
	for _, c := range a.Classes {
		items = append(items, Item{Label: f.Label(c.Class), Class: c.Class, Score: c.P})
	}
	if a.Kind == wire.KindText {
		items = append(items, Item{Label: a.Text, Score: a.TextScore})
	}
	return items
}

// CheckPhotos returns ErrNoPicture if photos cannot be resized to a model's input.
func CheckPhotos(in *models.Input) error {
	if len(in.Parts) > 0 {
		return fmt.Errorf("%w: send its tensors", ErrNoPicture)
	}
	if !in.IsPicture() {
		return fmt.Errorf("%w: it takes %d channels of %s, want 1 or 3 of u8; send a tensor instead", ErrNoPicture, in.Channels, in.WireType)
	}
	return nil
}
