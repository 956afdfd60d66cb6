package loadgen

import (
	"cmp"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/penstock/penstock/loadgen/answer"
	"github.com/penstock/penstock/models/picture"
	"github.com/penstock/penstock/wire"
)

// View has the answers of one function to photos.
type View struct {
	Function string
	Photos   *picture.Photos
	// Answers are FunctionReport.Answers of a run with these photos.
	Answers []answer.Answer
	// Labels are the names of the classes. A class without a name shows as its
	// number.
	Labels []string
}

// Seen is a photo with everything that any function found in it.
type Seen struct {
	Photo picture.Photo
	// Things are in the order of the views, the best first in each.
	Things []Thing
	// Asked is true if any function answered with classes or boxes.
	Asked bool
}

// Thing is something found in a photo.
type Thing struct {
	Function string
	Label    string
	Score    float64
	// Box is in the photo's pixels. It is empty for a class of the whole photo.
	Box image.Rectangle
	picture.Shape
	Colour color.RGBA
}

// Inspect combines what the functions found, photo by photo. Photos with the same
// name are the same photo.
func Inspect(views []View) ([]Seen, error) {
	var all []Seen
	places := make(map[string]int)
	for v, view := range views {
		colour := picture.Palette[v%len(picture.Palette)]
		for i, a := range view.Answers {
			photo, frame := view.Photos.Photo(i)
			at, known := places[photo.Name]
			if !known {
				at = len(all)
				places[photo.Name] = at
				all = append(all, Seen{Photo: photo})
			}
			if a.Payload == nil || a.Kind == wire.KindRaw || a.Kind == wire.KindTensors || a.Kind == wire.KindEmbedding || a.Kind == wire.KindMap {
				continue // values name nothing that can be shown
			}
			things, err := view.things(a, frame, colour)
			if err != nil {
				return nil, fmt.Errorf("read what %s found in %s: %w", view.Function, photo.Name, err)
			}
			all[at].Asked = true
			all[at].Things = append(all[at].Things, things...)
		}
	}
	return all, nil
}

func (v *View) things(a answer.Answer, frame picture.Frame, colour color.RGBA) ([]Thing, error) {
	var c wire.Content
	if err := c.Decode(a.Kind, a.Payload); err != nil {
		return nil, err
	}
	var things []Thing
	if len(c.Classes) > 0 {
		things = append(things, Thing{Function: v.Function, Label: v.label(c.Classes[0].Class), Score: float64(c.Classes[0].P), Colour: colour})
	}
	if a.Kind == wire.KindText {
		things = append(things, Thing{Function: v.Function, Label: c.Text, Score: float64(c.TextScore), Colour: colour})
	}
	for _, f := range frame.Find(&c) {
		things = append(things, Thing{Function: v.Function, Label: v.label(f.Class), Score: float64(f.Score), Box: f.Box, Shape: f.Shape, Colour: colour})
	}
	slices.SortStableFunc(things, func(a, b Thing) int { return cmp.Compare(b.Score, a.Score) })
	return things, nil
}

func (v *View) label(class uint16) string {
	if int(class) < len(v.Labels) {
		return v.Labels[class]
	}
	return fmt.Sprintf("class %d", class)
}

// String returns what was found as one line: "chelsea.jpg: cat 0.71".
func (s Seen) String() string {
	if !s.Asked {
		return s.Photo.Name + ": not answered"
	}
	if len(s.Things) == 0 {
		return s.Photo.Name + ": nothing"
	}
	found := make([]string, len(s.Things))
	for i, thing := range s.Things {
		found[i] = fmt.Sprintf("%s %.2f", thing.Label, thing.Score)
	}
	return s.Photo.Name + ": " + strings.Join(found, ", ")
}

// Draw returns the photo with the boxes drawn on it.
func (s Seen) Draw() image.Image {
	marks := make([]picture.Mark, len(s.Things))
	for i, thing := range s.Things {
		marks[i] = picture.Mark{Box: thing.Box, Text: fmt.Sprintf("%s %.2f", thing.Label, thing.Score), Colour: thing.Colour, Shape: thing.Shape}
	}
	return picture.Draw(s.Photo.Image, marks)
}

// WritePictures draws each photo and writes it as a PNG into dir, which it
// creates. cat.jpg becomes cat.png, or cat.jpg.png if there already is a
// cat.png. It returns the paths, in the order of the photos.
func WritePictures(dir string, all []Seen) ([]string, error) {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, fmt.Errorf("write pictures: %w", err)
	}
	var paths []string
	for _, seen := range all {
		name := filepath.Base(seen.Photo.Name)
		path := filepath.Join(dir, strings.TrimSuffix(name, filepath.Ext(name))+".png")
		if slices.Contains(paths, path) {
			path = filepath.Join(dir, name+".png")
		}
		if err := writePNG(path, seen.Draw()); err != nil {
			return paths, fmt.Errorf("write picture: %w", err)
		}
		paths = append(paths, path)
	}
	return paths, nil
}

func writePNG(path string, img image.Image) (err error) {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() {
		if closeErr := file.Close(); err == nil {
			err = closeErr
		}
	}()
	// A demo writes large photos while people wait.
	encoder := png.Encoder{CompressionLevel: png.BestSpeed}
	return encoder.Encode(file, img)
}
