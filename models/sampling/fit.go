package sampling

import (
	"image"

	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/wire"
)

// The ways in which a picture of another shape becomes that of a card (models.Input.Fit). Another value is Letterbox.
const (
	// Letterbox keeps the picture's proportions. Half of the padding is on either side.
	Letterbox = "letterbox"
	// Stretch fills the tensor and changes the proportions.
	Stretch = "stretch"
	// Crop fills the tensor with the middle of the picture, and keeps its proportions.
	Crop = "crop"
	// Left fills the height, from the left on. Pictures that are too wide then are squeezed to the width. Models that read a line
	// of text take pictures like that.
	Left = "left"
)

// Region is the part of a picture that is sampled, and its place in the tensor. The rest of the tensor is padding.
type Region struct {
	Part, Inside image.Rectangle
}

// Fit returns the region of a picture of this size that a card asks for.
func Fit(in *models.Input, width, height int) Region {
	r := Region{image.Rect(0, 0, width, height), image.Rect(0, 0, in.Width, in.Height)}
	switch in.Fit {
	case Stretch:
	case Crop:
		r.Part = centred(r.Inside, r.Part)
	case Left:
		r.Inside.Max.X = min(in.Width, max(1, (width*in.Height+height-1)/max(1, height)))
	default:
		r.Inside = centred(r.Part, r.Inside)
	}
	return r
}

// centred returns the largest rectangle with the proportions of shape in the middle of whole. It is at least one pixel in each
// direction.
func centred(shape, whole image.Rectangle) image.Rectangle {
	width, height := whole.Dx(), whole.Dy()
	if shape.Dx()*height > shape.Dy()*width {
		height = max(1, (shape.Dy()*width+shape.Dx()/2)/shape.Dx())
	} else if shape.Dy() > 0 {
		width = max(1, (shape.Dx()*height+shape.Dy()/2)/shape.Dy())
	}
	corner := whole.Min.Add(image.Pt((whole.Dx()-width)/2, (whole.Dy()-height)/2))
	return image.Rectangle{Min: corner, Max: corner.Add(image.Pt(width, height))}
}

// Place returns the place of a whole picture of this size in the tensor.
func (r Region) Place(in *models.Input, width, height int) (p wire.Place) {
	p.X, p.Width = along(r.Part.Min.X, r.Part.Dx(), width, r.Inside.Min.X, r.Inside.Dx(), in.Width)
	p.Y, p.Height = along(r.Part.Min.Y, r.Part.Dy(), height, r.Inside.Min.Y, r.Inside.Dy(), in.Height)
	return p
}

// along returns the first and the length of a picture's side, in fractions of the tensor's.
func along(part, partLength, picture, inside, insideLength, tensor int) (first, length float64) {
	scale := float64(insideLength) / float64(partLength) / float64(tensor)
	return float64(inside)/float64(tensor) - float64(part)*scale, float64(picture) * scale
}
