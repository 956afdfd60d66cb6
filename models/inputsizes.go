package models

import (
	"slices"

	"github.com/penstock/penstock/models/document"
)

// maxSizes limits the sizes of an input: the model runs with each before it serves.
const maxSizes = 64

// sizes is the number of sizes of the input.
func (c *Card) sizes() int { return max(1, len(c.Lengths), len(c.Input.Heights)*len(c.Input.Widths)) }

// hasLength reports whether the first dimension of an input is the length of requests.
func (c *Card) hasLength(t *Tensor) bool {
	n := len(c.Lengths)
	return n > 0 && len(t.Shape) > 0 && t.Shape[0] == int64(c.Lengths[n-1])
}

// Sized returns the card of a size of the input. Its outputs still have the shapes of the largest size; a run shows their own.
func (c *Card) Sized(size int) *Card {
	sized := *c
	sized.Outputs = slices.Clone(c.Outputs)
	if in := &sized.Input; len(in.Widths) > 0 {
		in.Height, in.Width = in.Heights[size/len(in.Widths)], in.Widths[size%len(in.Widths)]
	}
	if len(c.Lengths) > 0 {
		sized.Lengths, sized.Inputs = c.Lengths[:size+1], slices.Clone(c.Inputs)
		for i := range sized.Inputs {
			if t := &sized.Inputs[i]; c.hasLength(t) {
				t.Shape = append([]int64{int64(c.Lengths[size])}, t.Shape[1:]...)
			}
		}
		sized.Input = sized.pack()
	}
	return &sized
}

// OneSize returns the card for a device that runs the largest size only.
func (c *Card) OneSize() *Card {
	if c.Lengths == nil && c.Input.Widths == nil {
		return c
	}
	one := *c
	one.Warnings = append(slices.Clip(c.Warnings), c.File+": several sizes of the input need `device: cpu`; here all requests have the largest size")
	if one.Lengths, one.PadLengths, one.Input.Heights, one.Input.Widths = nil, false, nil, nil; c.Lengths != nil {
		one.Input = one.pack()
	}
	return &one
}

// Sizes are the inputs of all sizes of a card. The last is its own, and the largest.
type Sizes []Input

func (c *Card) Sizes() (s Sizes) {
	for i := range c.sizes() {
		s = append(s, c.Sized(i).Input)
	}
	return s
}

// OfPicture returns the size for a picture: the smallest of those that show it largest. A picture need not be enlarged, unless it fills
// the height.
func (s Sizes) OfPicture(width, height int) (best int) {
	largest := 0.0
	for i := range s {
		in := &s[i]
		scale := min(float64(in.Height)/float64(height), float64(in.Width)/float64(width))
		if in.Fit != "left" {
			scale = min(scale, 1)
		}
		if scale > largest || scale == largest && in.Height*in.Width < s[best].Height*s[best].Width {
			best, largest = i, scale
		}
	}
	return best
}

// OfBytes returns the size for a request of so many bytes. It returns false if no size takes it.
func (s Sizes) OfBytes(bytes int) (size int, ok bool) {
	for i := range s {
		if _, ok := s[i].Missing(bytes); ok {
			return i, true
		}
	}
	return 0, false
}

// Missing returns how much shorter than Parts a request of so many bytes is. It returns false if there is no such request.
func (in *Input) Missing(bytes int) (length int, ok bool) {
	row, most := 0, 0
	for _, p := range in.Parts {
		if row += p.Row; p.Row > 0 {
			most = p.Bytes / p.Row
		}
	}
	missing := in.WireBytes() - bytes
	if row == 0 || missing <= 0 {
		return 0, missing == 0
	}
	return missing / row, missing%row == 0 && missing/row < most
}

// checkSizes sets the sizes of the input. The largest must be that of its shape.
func (c *Card) checkSizes(root document.Value, f *cardFile) {
	in := &c.Input
	c.Lengths, c.PadLengths, in.Heights, in.Widths = f.Lengths, f.PadLengths, f.Input.Heights, f.Input.Widths
	check := func(at document.Value, sizes []int, largest bool) {
		switch {
		case len(sizes) == 0:
		case c.Framework != "onnx":
			at.Reject("is for framework onnx")
		case !slices.IsSorted(sizes):
			at.Reject("is %v, want sizes, ascending", sizes)
		case !largest:
			at.Reject("ends with %d, want the size in the shape: it is the largest", sizes[len(sizes)-1])
		case c.sizes() > maxSizes:
			at.Reject("makes %d sizes, want at most %d", c.sizes(), maxSizes)
		case len(in.Heights) > 1 && len(in.Widths) > 1 && in.Picture().Format == 0:
			at.Reject("is set next to other sides, which is for requests of u8 and hwc: they say their shape")
		}
	}
	check(root.Find("lengths"), c.Lengths, slices.ContainsFunc(c.Inputs, func(t Tensor) bool { return c.hasLength(&t) }))
	if len(in.Heights)+len(in.Widths) > 0 {
		heights, widths := root.Find("input", "heights"), root.Find("input", "widths")
		if in.Heights == nil {
			in.Heights = []int{in.Height}
		}
		if in.Widths == nil {
			in.Widths = []int{in.Width}
		}
		check(heights, in.Heights, slices.Max(in.Heights) == in.Height)
		check(widths, in.Widths, slices.Max(in.Widths) == in.Width)
	}
	if c.PadLengths && c.Lengths == nil {
		root.Find("pad_lengths").Reject("is true, and there are no lengths")
	}
}
