package models

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/testing/must"
)

func TestSizeOfPicture(t *testing.T) {
	sides, line := []int{320, 640}, []int{48}
	for name, c := range map[string]struct {
		fit             string
		heights, widths []int
		width, height   int
		want            string
	}{
		"text that fits":          {"left", line, []int{320, 640, 960}, 200, 30, "48 x 320"},
		"text of the next size":   {"left", line, []int{320, 640, 960}, 201, 30, "48 x 640"},
		"text that is too long":   {"left", line, []int{320, 640, 960}, 9000, 30, "48 x 960"},
		"text of no width":        {"left", line, []int{320, 640, 960}, 1, 65535, "48 x 320"},
		"small picture":           {"letterbox", sides, sides, 100, 80, "320 x 320"},
		"picture of a size":       {"letterbox", sides, sides, 640, 320, "320 x 640"},
		"wide picture":            {"letterbox", sides, sides, 1920, 900, "320 x 640"},
		"high picture":            {"letterbox", sides, sides, 900, 1920, "640 x 320"},
		"picture larger than all": {"stretch", sides, sides, 4000, 3000, "640 x 640"},
		"picture of one pixel":    {"crop", sides, sides, 1, 1, "320 x 320"},
	} {
		t.Run(name, func(t *testing.T) {
			card := Card{Input: Input{Fit: c.fit, Heights: c.heights, Widths: c.widths}}
			sizes := card.Sizes()
			in := sizes[sizes.OfPicture(c.width, c.height)]
			if got := fmt.Sprintf("%d x %d", in.Height, in.Width); got != c.want {
				t.Errorf("%d x %d pixels got %s, want %s", c.width, c.height, got, c.want)
			}
		})
	}
}

// lengthsCard is a model with inputs of one length each, and one without.
func lengthsCard(t *testing.T, keys string) *Card {
	t.Helper()
	inputs := speechCard[strings.Index(speechCard, "inputs:"):strings.Index(speechCard, "constants:")]
	card, err := read(t, folder(t), strings.Replace(speechCard, inputs, keys+`inputs:
  - {name: audio, shape: [9]}
  - {name: mask, type: bool, shape: []}
  - {name: token ids, type: i64, shape: [9, 1]}
`, 1))
	must.OK(t, err)
	return card
}

func TestSizeOfBytes(t *testing.T) {
	for name, c := range map[string]struct {
		keys  string
		sizes map[int]int // by bytes; -1: refused
	}{
		"lengths":            {"lengths: [3, 6, 9]\n", map[int]int{37: 0, 73: 1, 109: 2, 0: -1, 36: -1, 49: -1, 110: -1, 145: -1}},
		"lengths, filled":    {"lengths: [3, 6, 9]\npad_lengths: true\n", map[int]int{37: 0, 73: 1, 109: 2, 13: 0, 25: 0, 49: 1, 97: 2, 0: -1, 1: -1, 12: -1, 14: -1, 48: -1, 121: -1}},
		"one length, filled": {"lengths: [9]\npad_lengths: true\n", map[int]int{109: 0, 13: 0, 97: 0, 1: -1, 108: -1, 121: -1}},
		"one length":         {"", map[int]int{109: 0, 13: -1, 97: -1}},
	} {
		t.Run(name, func(t *testing.T) {
			sizes := lengthsCard(t, c.keys).Sizes()
			for bytes, want := range c.sizes {
				got, ok := sizes.OfBytes(bytes)
				if !ok {
					got = -1
				}
				if got != want {
					t.Errorf("a request of %d bytes has size %d, want %d", bytes, got, want)
				}
			}
		})
	}
}

func TestSized(t *testing.T) {
	card := lengthsCard(t, "lengths: [3, 6, 9]\npad_lengths: true\n")
	sized := card.Sized(1)
	if got := sized.Inputs; !slices.Equal(got[0].Shape, []int64{6}) || len(got[1].Shape) > 0 || !slices.Equal(got[2].Shape, []int64{6, 1}) {
		t.Errorf("inputs %v", got)
	}
	if sized.Input.WireBytes() != 73 || card.Input.WireBytes() != 109 || card.Inputs[0].Shape[0] != 9 {
		t.Errorf("requests of %d bytes, and of %d", sized.Input.WireBytes(), card.Input.WireBytes())
	}
	one := card.OneSize()
	if _, ok := one.Input.Missing(97); ok || len(one.Sizes()) > 1 || len(one.Warnings) != 1 {
		t.Errorf("a device of one size takes %d; warnings %q", len(one.Sizes()), one.Warnings)
	}
	if plain := lengthsCard(t, "").OneSize(); len(plain.Warnings) > 0 {
		t.Errorf("a card of one size has warnings %q", plain.Warnings)
	}
}
