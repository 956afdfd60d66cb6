package libml

import (
	"fmt"

	"github.com/penstock/penstock/models"
)

// blank is what libml writes into each byte of the outputs before a warm-up run on a CPU:
// as a float32 it is no number, and with a payload that no computation makes of numbers.
const blank = 0xff

// wipe makes outputs blank.
func wipe(outputs [][]byte) {
	for _, out := range outputs {
		for i := range out {
			out[i] = blank
		}
	}
}

// written returns an error where a value of outputs, which the card has, is still blank:
// a framework that leaves it so would answer with what another request got.
func written(card *models.Card, outputs [][]byte) error {
	for o, out := range outputs {
		left := 0
		for at := 0; at+4 <= len(out); at += 4 {
			if out[at]&out[at+1]&out[at+2]&out[at+3] == blank {
				left++
			}
		}
		if left > 0 {
			return fmt.Errorf("%d of %d values of output %s were not written: want all of a batch's outputs written in place, in the memory that configure_batch was given",
				left, len(out)/4, card.Outputs[o].Name)
		}
	}
	return nil
}
