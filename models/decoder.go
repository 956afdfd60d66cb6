package models

import (
	"fmt"
	"slices"

	"github.com/penstock/penstock/models/document"
)

// decodeDecoder reads a decoder and checks its own keys, so that a slip is
// reported with its place. Params hold them as plain data (map[string]any,
// []any, string, bool, int64, float64), the name left out.
//
//	topk   k
//	raw    nothing
//	boxes  style, score_threshold, iou_threshold, max_boxes and,
//	       of style ssd-anchors: scale, score_activation, grids [{size, anchors, scores, boxes}]
//	       of style dfl:         size, bins, levels [{stride, classes, boxes}]
//
// Where an output is named, it must be one of the card's, of the shape that the
// decoder reads.
func (c *Card) decodeDecoder(v document.Value) {
	c.Decoder = Decoder{Name: "raw", Params: map[string]any{}}
	if v.Absent() {
		return
	}
	// The keys that are right depend on the name, and on the style.
	name, style := v.Peek("name"), v.Peek("style")
	anchorKeys := []string{"scale", "score_activation", "grids"}
	dflKeys := []string{"size", "bins", "levels"}
	var keys []string
	if name != "topk" && name != "raw" {
		keys = append(keys, "style", "score_threshold", "iou_threshold", "max_boxes")
		if style != "dfl" {
			keys = append(keys, anchorKeys...)
		}
		if style != "ssd-anchors" {
			keys = append(keys, dflKeys...)
		}
	}
	if name != "boxes" && name != "raw" {
		keys = append(keys, "k")
	}
	m := v.Map(append(keys, "name")...)
	c.Decoder.Name = m.Need("name", "topk, boxes or raw").Choice(Decoders...)
	if plain, ok := v.Plain().(map[string]any); ok {
		delete(plain, "name")
		c.Decoder.Params = plain
	}
	switch c.Decoder.Name {
	case "topk":
		c.checkTopK(m)
	case "boxes":
		c.checkBoxes(m, style)
	}
}

func (c *Card) checkTopK(m document.Map) {
	if len(c.Outputs) == 0 {
		return // said already
	}
	classes := int64(c.Outputs[0].Elements())
	m.May("k").Int(1, classes)
	if len(c.Outputs) != 1 {
		m.At().Reject("topk reads one output, the card has %d", len(c.Outputs))
	}
	c.checkClasses(m, classes)
}

// checkClasses holds the labels against the number of classes.
func (c *Card) checkClasses(m document.Map, classes int64) {
	if n := int64(len(c.Labels)); n > 0 && n != classes {
		m.At().Reject("the outputs have %d classes, the labels name %d", classes, n)
	}
}

// maxBoxes bounds the answer to a picture: 22 bytes a box on the wire.
const maxBoxes = 1000

func (c *Card) checkBoxes(m document.Map, style string) {
	m.Need("style", "ssd-anchors or dfl").Choice("ssd-anchors", "dfl")
	m.May("score_threshold").Float(0, 1)
	m.May("iou_threshold").Float(0, 1)
	m.May("max_boxes").Int(1, maxBoxes)
	switch style {
	case "ssd-anchors":
		m.Need("scale", "the pixels that the raw boxes are in").Float(1e-6, MaxSide)
		m.May("score_activation").Choice("sigmoid", "none")
		const rule = "a list of {size, anchors, scores, boxes}"
		grids := m.Need("grids", rule)
		list := grids.List(rule)
		if grids.IsList() && len(list) == 0 {
			grids.Reject("is empty, want %s", rule)
		}
		for i, e := range list {
			g := e.Map("size", "anchors", "scores", "boxes")
			size := g.Need("size", "cells along a side").Int(1, MaxSide)
			anchors := g.Need("anchors", "anchors a cell").Int(1, 1<<10)
			scores := c.output(g.Need("scores", "an output"), size*size*anchors, 1)
			c.output(g.Need("boxes", "an output"), size*size*anchors, 4)
			if i == 0 && scores != nil {
				c.checkClasses(m, scores.Shape[len(scores.Shape)-1])
			}
		}
	case "dfl":
		m.Need("size", "the pixels that the strides count in").Int(1, MaxSide)
		bins := m.Need("bins", "bins a distance").Int(2, 1<<10)
		const rule = "a list of {stride, classes, boxes}"
		levels := m.Need("levels", rule)
		list := levels.List(rule)
		if levels.IsList() && len(list) == 0 {
			levels.Reject("is empty, want %s", rule)
		}
		for i, e := range list {
			l := e.Map("stride", "classes", "boxes")
			l.Need("stride", "pixels between cells").Int(1, MaxSide)
			classes := c.output(l.Need("classes", "an output"), 0, 1)
			boxes := l.Need("boxes", "an output")
			if o := c.output(boxes, 0, 4); o != nil && bins > 0 && o.Shape[len(o.Shape)-1] != 4*bins {
				boxes.Reject("%s has shape %v, want 4 distances of %d bins: %d in the last dimension", o.Name, o.Shape, bins, 4*bins)
			} else if o != nil && classes != nil && classes.Shape[0] != o.Shape[0] {
				boxes.Reject("%s has %d rows, %s has %d, want as many", o.Name, o.Shape[0], classes.Name, classes.Shape[0])
			}
			if i == 0 && classes != nil {
				c.checkClasses(m, classes.Shape[len(classes.Shape)-1])
			}
		}
	}
}

// output finds the output that v names and checks that it is [rows, columns],
// rows as given (0: any), columns at least so many. It returns nil where it is
// not.
func (c *Card) output(v document.Value, rows, columns int64) *Output {
	name := v.Text("an output's name")
	if name == "" {
		return nil
	}
	names := make([]string, len(c.Outputs))
	for i := range c.Outputs {
		names[i] = c.Outputs[i].Name
	}
	i := slices.Index(names, name)
	if i < 0 {
		v.Reject("no output is called %q%s", name, document.Meant(name, names))
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
