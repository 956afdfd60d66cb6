package decode

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"github.com/penstock/penstock/internal/testing/devicetest"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/wire"
)

// Answers from selected rows are those from all rows, also if outputs have numbers that are not finite. The other rows
// have NaN.
func TestSelections(t *testing.T) {
	files, err := filepath.Glob("testdata/*.json")
	must.OK(t, err)
	selecting := map[string]int{}
	try := func(name string, card *models.Card, outputs [][]byte) {
		d := newDecoder(t, card)
		if len(d.Selections()) == 0 {
			return
		}
		selecting[card.Decoder.Name]++
		random := rand.New(rand.NewPCG(uint64(len(name)), 9))
		values := []float32{0.3, 0.46, 0.5, 0.99, 5, -5, float32(d.Selections()[0].Threshold), nan, -nan, infinity, -infinity}
		failed := 0
		for round := range 60 {
			o := random.IntN(len(outputs))
			for range round / 4 {
				set(outputs[o], random.IntN(len(outputs[o])/4), values[random.IntN(4+random.IntN(len(values)-3))])
			}
			results, selected := selectRows(d, outputs)
			want, _, wantErr := d.Append(nil, outputs)
			got, _, err := d.AppendFrom(nil, results, selected, 0, wire.Place{})
			if !bytes.Equal(got, want) || fmt.Sprint(err) != fmt.Sprint(wantErr) {
				t.Fatalf("%s, round %d: %d bytes, %v; of all rows %d bytes, %v", name, round, len(got), err, len(want), wantErr)
			}
			if err != nil {
				failed++
				outputs = empty(card)
			}
		}
		if failed == 0 {
			t.Errorf("%s: no output was refused", name)
		}
	}
	for _, file := range files {
		_, card, outputs := readReference(t, file)
		try(filepath.Base(file), card, outputs)
	}
	for _, card := range []*models.Card{faceCard(), detectCard()} {
		try(card.Name, card, empty(card))
	}
	for name, least := range map[string]int{"yolo": 6, "faces": 2, "boxes": 2} {
		if selecting[name] < least {
			t.Errorf("%d cards with decoder %s select rows, want %d", selecting[name], name, least)
		}
	}
}

// selectRows returns results with only the selected rows, and their bitmaps.
func selectRows(d *Decoder, outputs [][]byte) (results, selected [][]byte) {
	rows := map[int]bool{}
	for _, s := range d.Selections() {
		for _, read := range s.Read {
			rows[read.Output] = true
		}
	}
	for o, output := range outputs {
		if results = append(results, output); rows[o] {
			results[o] = bytes.Repeat([]byte{0xff}, len(output))
		}
	}
	selected = make([][]byte, len(outputs))
	for _, s := range d.Selections() {
		selected[s.Scores.Output] = make([]byte, devicetest.BitmapBytes(s))
		devicetest.Select(s, outputs, results, selected[s.Scores.Output])
	}
	return results, selected
}
