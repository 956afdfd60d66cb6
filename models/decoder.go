package models

import (
	"fmt"
	"maps"
	"slices"

	"github.com/penstock/penstock/models/document"
)

// decoderNames are the names of all decoders.
var decoderNames = append(slices.Sorted(maps.Keys(families)), "topk", "boxes", "raw")

// decodeDecoder reads a decoder and checks its own keys, so that errors have a
// position. Params hold the keys without the name, as plain data
// (map[string]any, []any, string, bool, int64, float64).
//
// An output that is named must be one of the card's, with the shape that the
// decoder reads.
func (c *Card) decodeDecoder(v document.Value) {
	c.Decoder = Decoder{Name: "raw", Params: map[string]any{}}
	if v.Absent() {
		return
	}
	name := v.Peek("name")
	made, known := families[name]
	switch {
	case known:
		f := made()
		document.SetDefaults(f)
		v.Decode(f)
		if slices.ContainsFunc(c.Outputs, func(o Tensor) bool { return o.Elements() < 1 }) || len(c.Outputs) == 0 {
			break // already reported
		}
		if err := f.resolve(c); err != nil {
			v.Reject("%v", err)
		}
	case name == "topk":
		var f topKFile
		v.Decode(&f)
		c.checkTopK(v, f.K)
	case name == "boxes":
		c.decodeBoxes(v)
	case name == "raw" || !v.IsMap():
		v.Decode(new(rawFile))
	case !v.Has("name"):
		v.Find("name").Reject("is missing, want %s", document.OrList(decoderNames))
	default:
		v.Find("name").Reject("is %q, want %s%s", name, document.OrList(decoderNames), document.Near(name, decoderNames))
	}
	c.Decoder.Name = name
	if plain, ok := v.Plain().(map[string]any); ok {
		delete(plain, "name")
		c.Decoder.Params = plain
	}
}

func (c *Card) checkTopK(v document.Value, k int64) {
	if len(c.Outputs) == 0 {
		return // already reported
	}
	classes := int64(c.Outputs[0].Elements())
	if len(c.Outputs[0].longAxes()) > 1 {
		v.Find("name").Reject("topk reads one value per class, and %s has shape %v; want a shape like [%d], or another decoder: raw, boxes",
			c.Outputs[0].Name, c.Outputs[0].Shape, slices.Max(c.Outputs[0].Shape))
		return
	}
	if k > classes {
		v.Find("k").Reject("is %d, want an integer from 1 to %d", k, classes)
	}
	if len(c.Outputs) != 1 {
		v.Reject("topk reads one output, the card has %d", len(c.Outputs))
	}
	c.checkClasses(v, classes)
}

// checkClasses compares the number of labels with the number of classes.
func (c *Card) checkClasses(v document.Value, classes int64) {
	if n := int64(len(c.Labels)); n > 0 && n != classes {
		v.Reject("the outputs have %d classes, the labels name %d", classes, n)
	}
}

// maxBoxes is the max number of boxes in an answer if the card does not set it.
const maxBoxes = 1000

func (c *Card) decodeBoxes(v document.Value) {
	switch v.Peek("style") {
	case "ssd-anchors":
		var f anchorsFile
		v.Decode(&f)
		for i, g := range f.Grids {
			at, rows := v.Find("grids", i), g.Size*g.Size*g.Anchors
			if (g.Size > 0) == (g.Stride > 0) {
				at.Reject("has stride %d and size %d, want one of the two", g.Stride, g.Size)
				continue
			}
			if g.Stride > 0 {
				rows = int64(c.Input.Cells([]int{g.Stride})) * g.Anchors
			}
			scores := c.output(at.Find("scores"), g.Scores, rows, 1)
			c.output(at.Find("boxes"), g.Boxes, rows, 4)
			if i == 0 && scores != nil {
				c.checkClasses(v, scores.Shape[len(scores.Shape)-1])
			}
		}
	case "dfl":
		var f dflFile
		v.Decode(&f)
		for i, l := range f.Levels {
			at := v.Find("levels", i)
			in := c.Input
			if f.Size > 0 {
				in.Height, in.Width = int(f.Size), int(f.Size)
			}
			rows := int64(0)
			if l.Stride > 0 {
				rows = int64(in.Cells([]int{int(l.Stride)}))
			}
			classes := c.output(at.Find("classes"), l.Classes, rows, 1)
			boxes := at.Find("boxes")
			if o := c.output(boxes, l.Boxes, rows, 4); o != nil && f.Bins > 0 && o.Shape[len(o.Shape)-1] != 4*f.Bins {
				boxes.Reject("%s has shape %v, want 4 distances of %d bins: %d in the last dimension", o.Name, o.Shape, f.Bins, 4*f.Bins)
			}
			if i == 0 && classes != nil {
				c.checkClasses(v, classes.Shape[len(classes.Shape)-1])
			}
		}
	default:
		v.Find("style").Reject("is %q, want ssd-anchors or dfl", v.Peek("style"))
	}
}

// output finds the output that v names and checks that its shape is [rows,
// columns]: exactly rows (0: any) and at least columns. Otherwise it returns
// nil.
func (c *Card) output(v document.Value, name string, rows, columns int64) *Tensor {
	if name == "" {
		return nil
	}
	names := make([]string, len(c.Outputs))
	for i := range c.Outputs {
		names[i] = c.Outputs[i].Name
	}
	i := slices.Index(names, name)
	if i < 0 {
		v.Reject("no output is called %q%s", name, document.Correct(name, names))
		return nil
	}
	o := &c.Outputs[i]
	want := fmt.Sprintf("[%d, at least %d]", rows, columns)
	if rows == 0 {
		want = fmt.Sprintf("[cells, at least %d]", columns)
	}
	if len(o.Shape) != 2 || rows != 0 && o.Shape[0] != rows || o.Shape[1] < columns {
		v.Reject("%s has shape %v, want %s", name, o.Shape, want)
		return nil
	}
	return o
}
