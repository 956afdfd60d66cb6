package draft

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/penstock/penstock/models"
)

// family is a decoder with its keys.
type family struct {
	name, keys string
	// why is empty for what an operator said.
	why    string
	labels []string
}

// family guesses what the outputs mean. The name is empty if nothing suggests it.
func (w *writer) family() family {
	var f family
	meta, out := w.model.Metadata, w.observed.Outputs
	switch task := meta["task"]; {
	case w.options.Decoder != "":
		f.name = w.options.Decoder
	case slices.Contains([]string{"detect", "segment", "pose", "obb"}, task):
		f.name, f.why = "yolo", "the metadata has the task "+task
	case meta["character"] != "" && len(out) == 1 && len(out[0].Shape) == 2:
		f.name, f.why = "text", "the metadata has an alphabet"
	case len(out) == 1 && len(out[0].Shape) == 1 && out[0].Probabilities:
		f.name, f.why = "classes", "the values of each image are at least 0, and their sum is 1"
	case w.picture && len(out) == 1 && w.isYOLO(out[0].Shape):
		f.name, f.why = "yolo", "the output has a row per cell of strides 8, 16 and 32"
	case w.picture && w.isFaces():
		f.name, f.why = "faces", fmt.Sprintf("the %d outputs have boxes, points and scores per cell of strides 8, 16 and 32", len(out))
	case w.picture && objects(out) != nil:
		f.name, f.why = "objects", "the outputs have a box, a score and a label per row"
	case w.picture && len(out) == 2 && pair(out) != nil:
		f.name, f.why = "detr", "the outputs have boxes and scores of the same number of rows"
	}
	if f.name == "" {
		return f
	}
	f.keys = w.keys(f.name)
	f.labels = names(meta["names"])
	if f.name == "text" {
		f.labels = strings.Split(strings.Trim(meta["character"], "\n"), "\n")
	}
	return f
}

// isYOLO reports whether a shape has a row, or three, per cell of the usual strides.
func (w *writer) isYOLO(shape []int64) bool {
	if len(shape) != 2 {
		return false
	}
	cells := int64(w.pictureSize().Cells(models.YOLOStrides[0]))
	return shape[1] == cells && shape[0] > 4 || shape[0] == 3*cells && shape[1] > 5
}

func (w *writer) pictureSize() *models.Input {
	size := w.size()
	return &models.Input{Height: int(size[0]), Width: int(size[1])}
}

func (w *writer) isFaces() bool {
	card := models.Card{Input: *w.pictureSize(), Decoder: models.Decoder{Name: "faces"}}
	for _, o := range w.observed.Outputs {
		card.Outputs = append(card.Outputs, models.Tensor{Name: o.Name, Shape: o.Shape})
	}
	_, err := card.Family()
	return err == nil
}

// pair returns the outputs of boxes and scores, or nil.
func pair(out []Output) []Output {
	for i, boxes := range out {
		scores := out[1-i]
		if len(boxes.Shape) == 2 && boxes.Shape[1] == 4 && len(scores.Shape) == 2 && scores.Shape[0] == boxes.Shape[0] {
			return []Output{boxes, scores}
		}
	}
	return nil
}

// objects returns the outputs of boxes, scores and labels of the same number of rows, or nil.
func objects(out []Output) []Output {
	find := func(shape []int64, labels bool) int {
		return slices.IndexFunc(out, func(o Output) bool { return slices.Equal(o.Shape, shape) && whole(o.Type) == labels })
	}
	for _, boxes := range out {
		if len(boxes.Shape) != 2 || boxes.Shape[1] != 4 {
			continue
		}
		scores, labels := find(boxes.Shape[:1], false), find(boxes.Shape[:1], true)
		if scores >= 0 && labels >= 0 {
			return []Output{boxes, out[scores], out[labels]}
		}
	}
	return nil
}

// keys returns the keys that a decoder needs, as YAML after its name.
func (w *writer) keys(name string) string {
	meta, out := w.model.Metadata, w.observed.Outputs
	switch name {
	case "yolo":
		switch points := ints(meta["kpt_shape"]); {
		case len(points) == 2:
			return fmt.Sprintf(", keypoints: %s", shape(points))
		case meta["task"] == "obb":
			return ", rotated: true"
		case len(out) == 2:
			if i := slices.IndexFunc(out, func(o Output) bool { return len(o.Shape) == 3 }); i >= 0 {
				return ", masks: " + quote(out[i].Name)
			}
		}
	case "detr":
		if len(out) != 2 || pair(out) == nil {
			return ""
		}
		activation := "sigmoid"
		if pair(out)[1].Fractions {
			activation = "none"
		}
		return fmt.Sprintf(", boxes: %s, scores: %s, activation: %s", quote(pair(out)[0].Name), quote(pair(out)[1].Name), activation)
	case "objects":
		if o := objects(out); o != nil {
			return fmt.Sprintf(", boxes: %s, scores: %s, labels: %s", quote(o[0].Name), quote(o[1].Name), quote(o[2].Name))
		}
	case "classes":
		if !out[0].Fractions {
			return ", activation: softmax"
		}
	case "map":
		switch s := out[0].Shape; {
		case len(s) == 3 && s[0] > 1, whole(out[0].Type):
			return ", cells: classes"
		case out[0].Fractions:
			return ", cells: u8"
		}
		return ", cells: f16"
	}
	return ""
}

// whole reports whether a type is one of whole numbers.
func whole(kind string) bool { return strings.HasPrefix(kind, "i") || strings.HasPrefix(kind, "u") }

// writeDecoder writes the decoder and labels. Without known values of pictures the answer is raw, unless the
// model takes no picture.
func (w *writer) writeDecoder(f family, known bool) {
	if !w.decoded(f, known) {
		w.line("decoder: {name: raw}")
		if w.options.Labels != "" {
			w.line("labels: %s", quote(w.options.Labels))
		}
		return
	}
	w.line("decoder: {name: %s%s}%s", quote(f.name), f.keys, guess(f.why))
	if len(f.labels) > 0 {
		list := make([]string, len(f.labels))
		for i, label := range f.labels {
			list[i] = strconv.Quote(label)
		}
		w.line("labels: [%s]", strings.Join(list, ", "))
	}
}

// decoded reports whether answers are decoded.
func (w *writer) decoded(f family, known bool) bool {
	return f.name != "" && (known || !w.picture) && !w.options.Raw
}

// kind says what requests and answers are.
func (w *writer) kind(f family, known bool) string {
	var list []string
	for _, in := range w.observed.Inputs {
		if in.Constant == nil && in.State == "" {
			list = append(list, fmt.Sprintf("%s %s %s", quote(in.Name), in.Type, shape(in.Shape)))
		}
	}
	takes := strings.Join(list, ", ") + " (raw)"
	if w.picture && known {
		s := w.size()
		takes = fmt.Sprintf("pictures, fitted into %d x %d", s[1], s[0])
	}
	if w.observed.SizeGuessed {
		takes += " (a guess, --size sets it)"
	}
	if w.decoded(f, known) {
		return takes + ", answers " + quote(f.name)
	}
	return takes + ", answers raw"
}

// hint says which flags are missing for a decoded answer.
func (w *writer) hint(f family, known bool) string {
	if !w.picture || w.decoded(f, known) || w.options.Raw {
		return ""
	}
	missing, flags := []string{}, []string{}
	if !known {
		missing, flags = append(missing, "how pictures become its tensor"), append(flags, "--scale 1/255 --colour rgb")
	}
	decoder := f.name
	if decoder == "" {
		missing = append(missing, "what its outputs mean")
		decoder = "yolo"
		switch first := &w.observed.Outputs[0]; {
		case len(first.Shape) <= 1:
			decoder = "classes"
		case len(first.Shape) == 3 && first.Shape[0] == 1 && first.Fractions:
			decoder = "map (or polygons, if it finds text)"
		case len(first.Shape) == 3, whole(first.Type):
			decoder = "map"
		case len(w.observed.Outputs) == 2:
			decoder = "detr"
		}
	}
	flags = append(flags, "--decoder "+decoder)
	return fmt.Sprintf("the file does not say %s; for decoded answers give what is right, like %s", strings.Join(missing, " or "), strings.Join(flags, " "))
}

// names reads a dictionary of Python from numbers to names, or a list, as {0: 'person', 1: "dog's"}.
func names(text string) (list []string) {
	for text != "" {
		at := strings.IndexAny(text, `'"`)
		if at < 0 {
			break
		}
		mark := text[at]
		var b strings.Builder
		i := at + 1
		for ; i < len(text) && text[i] != mark; i++ {
			if text[i] == '\\' && i+1 < len(text) {
				i++
			}
			b.WriteByte(text[i])
		}
		list = append(list, strings.ToValidUTF8(b.String(), ""))
		text = text[min(i+1, len(text)):]
	}
	if slices.Contains(list, "") {
		return nil // a card has no empty labels
	}
	return list
}
