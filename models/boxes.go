package models

import (
	"fmt"

	"github.com/penstock/penstock/wire"
)

// Boxes are the keys of both styles of the decoder boxes, and the grids of cells that it reads.
type Boxes struct {
	familyFile
	// How boxes are encoded.
	Style string `yaml:"style" required:"true" oneof:"ssd-anchors|dfl"`
	// Boxes with a lower score are left out.
	ScoreThreshold float64 `yaml:"score_threshold" default:"0.5" min:"0" max:"1"`
	// Of boxes that overlap more, one is left.
	IoUThreshold float64 `yaml:"iou_threshold" default:"0.5" min:"0" max:"1"`
	// Maximum number of boxes in an answer: 22 bytes each on the wire.
	MaxBoxes int `yaml:"max_boxes" default:"100" min:"1" max:"1000"`

	Heads []Head
}

// Head is one grid of cells, with an output of scores and one of boxes. Both have a row per box, in the order y, x, anchor.
type Head struct {
	Scores, Boxes   int // indexes of outputs
	Classes         int // columns of the scores
	Columns         int // of the boxes
	CellsX, CellsY  int
	Anchors, Stride int
}

// Rows is the number of boxes in the grid.
func (h *Head) Rows() int { return h.CellsX * h.CellsY * h.Anchors }

func (f *Boxes) ResultBytes() int { return f.MaxBoxes * wire.BoxSize }

// addHead finds the outputs of a grid: element i of the list that the card calls list. The key of its scores is scoresKey.
func (f *Boxes) addHead(c *Card, h Head, list string, i int, scoresKey, scores, boxes string, columns int) (err error) {
	if h.Scores, h.Classes, err = c.rowsOf(scores, h.Rows(), 1); err != nil {
		return at(err, list, i, scoresKey)
	}
	if h.Boxes, h.Columns, err = c.rowsOf(boxes, h.Rows(), columns); err != nil {
		return at(err, list, i, "boxes")
	}
	f.Heads = append(f.Heads, h)
	return at(c.labelled(h.Classes), list, i, scoresKey)
}

// rowsOf returns the index and the columns of an output. Its shape is [rows, columns], with at least this number of columns.
func (c *Card) rowsOf(name string, rows, columns int) (index, have int, err error) {
	i, err := c.outputNamed(name)
	if err != nil {
		return 0, 0, err
	}
	shape := c.Outputs[i].Shape
	if len(shape) != 2 || int(shape[0]) != rows || int(shape[1]) < columns {
		return 0, 0, fmt.Errorf("%s has shape %v, want [%d, at least %d]", name, shape, rows, columns)
	}
	return i, int(shape[1]), nil
}

// Anchors decodes boxes of style ssd-anchors (BlazeFace, SSD): centre and size, relative to the middle of a cell.
type Anchors struct {
	Boxes
	// The side of the picture in the unit of the raw boxes; their unit is a pixel if left out.
	Scale float64 `yaml:"scale" min:"1e-6" max:"16384"`
	// The function that makes a score of a raw score.
	ScoreActivation string `yaml:"score_activation" default:"sigmoid" oneof:"sigmoid|none"`
	// The grids of anchors.
	Grids []anchorGrid `yaml:"grids" required:"true" minItems:"1" want:"{size, anchors, scores, boxes}"`
}

type anchorGrid struct {
	// Pixels between cells.
	Stride int `yaml:"stride" min:"1" max:"16384"`
	// Cells along each side, without stride.
	Size int `yaml:"size" min:"1" max:"16384"`
	// Anchors per cell.
	Anchors int `yaml:"anchors" required:"true" min:"1" max:"1024"`
	// An output of shape [cells x anchors, classes].
	Scores string `yaml:"scores" required:"true" want:"an output's name"`
	// An output of shape [cells x anchors, 4 or more].
	Boxes string `yaml:"boxes" required:"true" want:"an output's name"`
}

func (f *Anchors) resolve(c *Card) error {
	for i, g := range f.Grids {
		h := Head{CellsX: g.Size, CellsY: g.Size, Anchors: g.Anchors}
		switch {
		case (g.Size > 0) == (g.Stride > 0):
			return at(fmt.Errorf("has stride %d and size %d, want one of the two", g.Stride, g.Size), "grids", i)
		case c.Input.Width < 1 && (g.Stride > 0 || f.Scale == 0):
			return errNoPicture
		case g.Stride > 0:
			h.CellsX, h.CellsY = c.Input.Grid(g.Stride)
		}
		if err := f.addHead(c, h, "grids", i, "scores", g.Scores, g.Boxes, 4); err != nil {
			return err
		}
	}
	return nil
}

// Distances decodes boxes of style dfl (NanoDet, GFL): the distances of the sides from the middle of a cell, each a
// distribution over bins.
type Distances struct {
	Boxes
	// The side of a square picture in the pixels of the strides; input.size if left out.
	Size int `yaml:"size" min:"1" max:"16384"`
	// Bins per distance.
	Bins int `yaml:"bins" required:"true" min:"2" max:"1024"`
	// The levels of the pyramid.
	Levels []distanceLevel `yaml:"levels" required:"true" minItems:"1" want:"{stride, classes, boxes}"`

	// Width and Height are the picture's, in the pixels of the strides.
	Width, Height int
}

type distanceLevel struct {
	// Pixels between cells.
	Stride int `yaml:"stride" required:"true" min:"1" max:"16384"`
	// An output of shape [cells, classes].
	Classes string `yaml:"classes" required:"true" want:"an output's name"`
	// An output of shape [cells, 4 x bins].
	Boxes string `yaml:"boxes" required:"true" want:"an output's name"`
}

func (f *Distances) resolve(c *Card) error {
	in := Input{Width: f.Size, Height: f.Size}
	if f.Size == 0 {
		in = c.Input
	}
	if f.Width, f.Height = in.Width, in.Height; f.Width < 1 {
		return errNoPicture
	}
	for i, l := range f.Levels {
		h := Head{Anchors: 1, Stride: l.Stride}
		h.CellsX, h.CellsY = in.Grid(l.Stride)
		if err := f.addHead(c, h, "levels", i, "classes", l.Classes, l.Boxes, 1); err != nil {
			return err
		}
		if o := &c.Outputs[f.Heads[i].Boxes]; f.Heads[i].Columns != 4*f.Bins {
			return at(fmt.Errorf("%s has shape %v, want 4 distances of %d bins: %d in the last dimension", o.Name, o.Shape, f.Bins, 4*f.Bins), "levels", i, "boxes")
		}
	}
	return nil
}
